"""Checkpoints as files: whole or not there, the newest found, the needed ones kept."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
import zipfile
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuqueue import checkpoint
from gpuqueue.checkpoint import atomic_dir, atomic_path, keep, latest_checkpoint, why_incomplete


def left(folder):
    """Everything in a folder, hidden or not."""
    return sorted(os.listdir(folder))


# -- whole or not at all ---------------------------------------------------------------------------


def test_a_file_appears_whole(tmp_path):
    target = tmp_path / "deep" / "step1.npz"
    with atomic_path(target) as path:
        assert path.parent == target.parent
        assert path.suffix == ".npz"  # numpy would add it and write elsewhere
        path.write_text("new")
        assert not target.exists()
    assert target.read_text() == "new"
    assert left(target.parent) == ["step1.npz"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_exception_leaves_what_was_there(tmp_path, error):
    target = tmp_path / "a.pt"
    target.write_text("old")

    def fail(path):
        path.write_text("half")
        raise error

    with pytest.raises(error), atomic_path(target) as path:
        fail(path)
    with pytest.raises(error), atomic_dir(tmp_path / "b") as path:
        fail(path / "x")
    assert target.read_text() == "old"
    assert left(tmp_path) == ["a.pt"]


def test_nothing_written_is_an_error(tmp_path):
    with (
        pytest.raises(FileNotFoundError, match="write to the path given"),
        atomic_path(tmp_path / "a.pt"),
    ):
        pass
    assert left(tmp_path) == []


@pytest.mark.parametrize("swaps", [True, False])
def test_a_folder_takes_the_place_of_another(tmp_path, monkeypatch, swaps):
    if not swaps:  # as on a network file system
        monkeypatch.setattr(checkpoint, "_exchange", lambda *_: False)
    target = tmp_path / "checkpoint-5"
    for text in ("old", "new"):
        with atomic_dir(target) as path:
            (path / "inner").mkdir()
            (path / "inner" / f"{text}.bin").write_text(text)
    assert left(target / "inner") == ["new.bin"]
    assert left(tmp_path) == ["checkpoint-5"]


def test_atomic_path_takes_a_folder_too(tmp_path):
    with atomic_path(tmp_path / "sharded") as path:
        path.mkdir()
        (path / "x").write_text("x")
    assert left(tmp_path) == ["sharded"]


def test_killed_between_the_two_renames(tmp_path):
    """Where names cannot be swapped, the old folder is put back by the next save."""
    code = f"""
import os, signal
from gpuqueue import checkpoint
checkpoint._exchange = lambda *_: False
rename = os.rename
def last(*names):
    rename(*names)
    os.kill(os.getpid(), signal.SIGKILL)
for text in ("old", "new"):
    with checkpoint.atomic_dir({str(tmp_path / "last")!r}) as path:
        (path / text).write_text(text)
        os.rename = last if text == "new" else rename
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    assert not (tmp_path / "last").exists()
    checkpoint.sweep(tmp_path)
    assert left(tmp_path) == ["last"]
    assert left(tmp_path / "last") == ["old"]


def temporary(pid, start, where=None, name="a.pt"):
    return f".gpuqueue-new-{pid}-{start}-{where or checkpoint._here()}-1-{name}"


def test_only_leftovers_of_the_dead_are_swept(tmp_path):
    me = os.getpid()
    mine = temporary(me, checkpoint._start_of(me))
    recycled = temporary(me, checkpoint._start_of(me) - 1)
    elsewhere = temporary(me, 5, "00000000")
    old = temporary(me, 6, "00000000")
    for name in (mine, recycled, elsewhere, old, ".gpuqueue-new-x", "a.pt"):
        (tmp_path / name).write_text("half")
    os.utime(tmp_path / old, (1, 1))
    with atomic_path(tmp_path / "b.pt") as path:
        path.write_text("b")
    assert left(tmp_path) == sorted([mine, elsewhere, ".gpuqueue-new-x", "a.pt", "b.pt"])


def test_data_is_on_the_disk_before_the_name_is(tmp_path, monkeypatch):
    done = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(
        os, "fsync", lambda f: (done.append(os.readlink(f"/proc/self/fd/{f}")), sync(f))
    )
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append("replace"), replace(a, b)))
    with atomic_path(tmp_path / "a.pt") as path:
        path.write_text("a")
    assert done == [str(path), "replace", str(tmp_path)]


def test_a_full_disk_leaves_the_old_one(tmp_path, monkeypatch):
    (tmp_path / "a.pt").write_text("old")

    def full(_):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"), atomic_path(tmp_path / "a.pt") as path:
        path.write_text("new")
    assert (tmp_path / "a.pt").read_text() == "old"
    assert left(tmp_path) == ["a.pt"]


# -- which is the last -----------------------------------------------------------------------------


def save(path, payload=b"weights"):
    """A file as torch writes it: a zip."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data.pkl", payload)
    return path


def tensors(path, short=0):
    header = json.dumps({"w": {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\1" * (64 - short))
    return path


def name_of(found):
    return found and found.name


def test_none_on_a_fresh_start(tmp_path):
    assert latest_checkpoint(tmp_path) is None
    assert latest_checkpoint(tmp_path / "missing") is None


@given(
    st.lists(st.integers(0, 10**9), min_size=1, max_size=6, unique=True),
    st.sampled_from(
        ["step{}.pt", "checkpoint-{}", "epoch=3-step={}.ckpt", "global_step{}", "iter_{:09}.pt",
         "{}.pth", "run2-model-{}.pt", "ckpt_{}_loss0.25.pt", "step-{}-of-run-7.npz"]
    ),
)  # fmt: skip
@settings(deadline=timedelta(seconds=30), max_examples=60)
def test_order_is_numeric(tmp_path_factory, steps, form):
    folder = tmp_path_factory.mktemp("order")
    for step in sorted(steps, reverse=True):  # the time of change would say otherwise
        path = folder / form.format(step)
        if path.suffix in (".pt", ".ckpt", ".pth", ".npz"):
            save(path)
        else:
            path.mkdir()
            save(path / "weights.pt")
    assert name_of(latest_checkpoint(folder)) == form.format(max(steps))


def test_steps_before_epochs_and_metrics(tmp_path):
    save(tmp_path / "epoch=10-step=90-loss=0.99.ckpt")
    save(tmp_path / "epoch=9-step=100-loss=0.10.ckpt")
    assert name_of(latest_checkpoint(tmp_path)) == "epoch=9-step=100-loss=0.10.ckpt"


def test_what_is_numbered_is_newer_than_what_is_not(tmp_path):
    save(tmp_path / "step9.pt")
    save(tmp_path / "best.pt")
    assert name_of(latest_checkpoint(tmp_path)) == "step9.pt"


def test_without_numbers_the_time_counts(tmp_path):
    for name, when in (("b.pt", 5), ("a.pt", 9)):
        os.utime(save(tmp_path / name), (when, when))
    assert name_of(latest_checkpoint(tmp_path)) == "a.pt"


def test_what_is_half_written_is_passed_over(tmp_path, caplog):
    save(tmp_path / "step1.pt")
    whole = save(tmp_path / "step9.pt", os.urandom(5000)).read_bytes()
    (tmp_path / "step9.pt").write_bytes(whole[:-300])
    (tmp_path / "step8.pt").write_bytes(b"")
    tensors(tmp_path / "step7.safetensors", short=1)
    (tmp_path / "step6.safetensors").write_bytes(bytes(500))
    for name in ("step10.pt.tmp", "step11.pt.part", "tmp-step12.pt", "step13.quarantined.pt"):
        save(tmp_path / name)
    save(tmp_path / temporary(1, 2, name="step14.pt"))
    assert name_of(latest_checkpoint(tmp_path)) == "step1.pt"
    assert "step9.pt is cut short" in caplog.text
    assert "step6.safetensors has no readable header" in caplog.text


def test_other_files_are_no_checkpoints(tmp_path):
    save(tmp_path / "step2.pt")
    for name in ("events.out.tfevents.1790000000.host.77", "step3.log", "config.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "wandb-99").mkdir()
    assert name_of(latest_checkpoint(tmp_path)) == "step2.pt"
    assert name_of(latest_checkpoint(tmp_path, "*.log")) == "step3.log"


def trainer_folder(root, step, *, full=True):
    """A checkpoint of Hugging Face's Trainer, with stand-ins for its tensors."""
    folder = root / f"checkpoint-{step}"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"\0" * (1000 if full else 10))
    (folder / "optimizer.pt").write_bytes(b"\0" * 1000)
    if full:
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return folder


def test_trainer(tmp_path, caplog):
    for step, full in ((100, True), (200, False), (90, True)):
        trainer_folder(tmp_path, step, full=full)
    (tmp_path / "checkpoint-tmp-300").mkdir()
    assert name_of(latest_checkpoint(tmp_path)) == "checkpoint-100"
    assert "checkpoint-200 is passed over: it has no trainer_state.json" in caplog.text
    trainer_folder(tmp_path, 1000)
    assert name_of(latest_checkpoint(tmp_path)) == "checkpoint-1000"
    (tmp_path / "checkpoint-1000" / "trainer_state.json").write_text('{"global_st')
    assert name_of(latest_checkpoint(tmp_path)) == "checkpoint-100"
    tensors(tmp_path / "checkpoint-100" / "model.safetensors", short=3)
    assert name_of(latest_checkpoint(tmp_path)) == "checkpoint-90"
    assert len(left(tmp_path)) == 5  # nothing is deleted


def test_accelerate(tmp_path):
    folder = tmp_path / "checkpoint-5"  # as diffusers' examples name them
    folder.mkdir()
    tensors(folder / "model.safetensors")
    for name in ("optimizer.bin", "scheduler.bin"):
        save(folder / name)
    assert why_incomplete(folder).startswith("it has no random_states_0.pkl")
    (folder / "random_states_0.pkl").write_bytes(b"x")
    assert why_incomplete(folder) == ""


def test_needs(tmp_path):
    for step in (5, 6):
        (tmp_path / f"checkpoint-{step}").mkdir()
        tensors(tmp_path / f"checkpoint-{step}" / "model.safetensors")
    (tmp_path / "checkpoint-5" / "done").touch()
    assert name_of(latest_checkpoint(tmp_path)) == "checkpoint-6"
    assert name_of(latest_checkpoint(tmp_path, needs="done")) == "checkpoint-5"


def test_sharded_weights(tmp_path):
    folder = tmp_path / "step-5"
    folder.mkdir()
    names = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    for name in names[:2]:
        tensors(folder / name)
    assert "it has 2 of the 3 shards" in why_incomplete(folder)
    index = {"weight_map": {f"w{i}": name for i, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "00003-of-00003" in why_incomplete(folder)
    tensors(folder / names[2])
    assert why_incomplete(folder) == ""
    (folder / "model.safetensors.index.json").unlink()
    assert "index.json" in why_incomplete(folder)
    (folder / "model.safetensors.index.json").write_text("[")
    assert "not whole" in why_incomplete(folder)


def test_shards_counted_from_zero(tmp_path):
    folder = tmp_path / "checkpoint-5"
    folder.mkdir()
    for number in (0, 2):
        save(folder / f"rank-{number}-of-3.pt")
    assert "it has 2 of the 3 shards" in why_incomplete(folder)
    save(folder / "rank-1-of-3.pt")
    assert why_incomplete(folder) == ""


def test_distributed_checkpoint(tmp_path):
    folder = tmp_path / "step7"
    inner = folder / "optimizer"
    inner.mkdir(parents=True)
    assert why_incomplete(tmp_path / "step8") != ""
    (inner / "__0_0.distcp").write_bytes(b"x" * 9)
    assert why_incomplete(folder) == "optimizer: it has no .metadata, which is written last"
    (inner / ".metadata").write_bytes(b"")
    assert why_incomplete(folder) == "optimizer: .metadata is empty"
    (inner / ".metadata").write_bytes(b"x")
    assert why_incomplete(folder) == ""


def test_a_zip_inside_a_folder_is_looked_at(tmp_path):
    folder = tmp_path / "step7"
    folder.mkdir()
    assert why_incomplete(folder) == "it is empty"
    whole = save(folder / "a.ckpt").read_bytes()
    assert why_incomplete(folder) == ""
    (folder / "a.ckpt").write_bytes(whole[: len(whole) // 2])
    assert why_incomplete(folder) == "a.ckpt is cut short"


# -- which stay ------------------------------------------------------------------------------------


def test_best_and_last_stay(tmp_path):
    losses = [9.0, 5.0, 1.0, 2.0, 3.0, math.nan, 4.0, 6.0, 7.0, 8.0]
    for step, loss in enumerate(losses, 1):
        save(tmp_path / f"step{step}.pt")
        keep(tmp_path, last=1, best=2, score=loss)
    assert left(tmp_path) == [".checkpoint-scores.json", "step10.pt", "step3.pt", "step4.pt"]


def test_without_scores_the_newest_stay(tmp_path):
    for step in range(1, 13):
        save(tmp_path / f"step{step}.pt")
    assert len(keep(tmp_path, last=3)) == 9
    assert left(tmp_path) == ["step10.pt", "step11.pt", "step12.pt"]


def test_what_is_incomplete_does_not_count_and_is_not_touched(tmp_path):
    save(tmp_path / "step1.pt")
    save(tmp_path / "step2.pt")
    (tmp_path / "step3.pt").write_bytes(b"")
    trainer_folder(tmp_path, 4, full=False)
    assert [path.name for path in keep(tmp_path)] == ["step1.pt"]
    assert left(tmp_path) == ["checkpoint-4", "step2.pt", "step3.pt"]


def test_only_numbered_checkpoints_are_removed(tmp_path):
    others = ["best.pt", "final.safetensors", "model-7.pt", "notes.txt", "run2"]
    save(tmp_path / "best.pt")
    tensors(tmp_path / "final.safetensors")
    save(tmp_path / "model-7.pt")
    (tmp_path / "notes.txt").touch()
    (tmp_path / "run2").mkdir()
    save(tmp_path / "run2" / "weights.pt")
    for step in (1, 2):
        save(tmp_path / f"step{step}.pt")
    assert [path.name for path in keep(tmp_path)] == ["step1.pt"]
    assert left(tmp_path) == sorted([*others, "step2.pt"])
    assert keep(tmp_path, pattern="model*") == []
    save(tmp_path / "model-8.pt")
    assert [path.name for path in keep(tmp_path, pattern="model*")] == ["model-7.pt"]


def test_folders_go_whole(tmp_path):
    for step in (1, 2):
        trainer_folder(tmp_path, step)
    keep(tmp_path)
    assert left(tmp_path) == ["checkpoint-2"]


def test_scores_that_cannot_be_read_stop_it(tmp_path):
    for step in (1, 2):
        save(tmp_path / f"step{step}.pt")
    (tmp_path / ".checkpoint-scores.json").write_text('{"step1')
    with pytest.raises(ValueError, match="delete it to forget"):
        keep(tmp_path)
    assert len(left(tmp_path)) == 3


@pytest.mark.parametrize("wrong", [{"last": 0}, {"best": -1}, {"mode": "most"}])
def test_keep_refuses(tmp_path, wrong):
    (field,) = wrong
    with pytest.raises(ValueError, match=f"^{field}="):
        keep(tmp_path, **wrong)


@given(
    scores=st.lists(st.one_of(st.none(), st.floats()), min_size=1, max_size=12),
    last=st.integers(1, 4), best=st.integers(0, 4), mode=st.sampled_from(["min", "max"]),
    again=st.integers(0, 12),
)  # fmt: skip
@settings(deadline=timedelta(seconds=30), max_examples=60)
def test_the_last_and_the_best_always_stay(  # noqa: PLR0917
    tmp_path_factory, scores, last, best, mode, again
):
    """After every save, across restarts (nothing is remembered but what is on the disk)."""
    folder = tmp_path_factory.mktemp("keep")
    known = {}
    for step, score in enumerate(scores, 1):
        save(folder / f"step{step}.pt")
        keep(folder, last=last, best=best, score=score, mode=mode)
        if step == again:
            keep(folder, last=last, best=best, mode=mode)
        there = {path.name for path in folder.glob("*.pt")}
        if score is not None and not math.isnan(score):
            known[f"step{step}.pt"] = score
        newest = {f"step{n}.pt" for n in range(max(1, step - last + 1), step + 1)}
        assert newest <= there
        pick = min if mode == "min" else max
        if known:
            assert any(known.get(name) == pick(known.values()) for name in there)
        assert len(there) <= last + max(1, best)


# -- how often -------------------------------------------------------------------------------------


def test_young():
    assert round(checkpoint.interval(30, 10800), 2) == 804.98
    assert checkpoint.every(mtbf=10800, save_s=30).steps(2.0) == 402
    assert checkpoint.interval(30, 10800, workers=4) == checkpoint.interval(30, 10800) / 2
    assert checkpoint.interval(90, 100) == 100  # a save that takes about as long as a machine lasts
    assert checkpoint.every(save_s=1).steps(1e6) == 1


@pytest.mark.parametrize(
    ("arguments", "field"), [((0,), "save_s"), ((1, -1), "mtbf_s"), ((1, 1, 0), "workers")]
)
def test_interval_refuses(arguments, field):
    with pytest.raises(ValueError, match=field):
        checkpoint.interval(*arguments)


def test_pace_learns_what_a_save_costs(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now[0])
    pace = checkpoint.every(mtbf=10800, save_s=0.5)
    now[0] = 103.9
    assert not pace.due()  # sqrt(2 * 10800 * 0.5) is 103.92
    now[0] = 104.0
    assert pace.due()
    for _ in range(6):
        with pace.saving():
            now[0] += 30
    assert pace.save_s == 30
    assert not pace.due()
    now[0] += 805
    assert pace.due()


# -- progress --------------------------------------------------------------------------------------


@pytest.fixture
def attempt(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUQUEUE_ATTEMPT_DIR", str(tmp_path))
    return tmp_path


def lines_of(folder, name="progress.jsonl"):
    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    text = (folder / name).read_text()
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def test_log(attempt):
    class Scalar:
        def item(self):
            return 0.5

    checkpoint.log(7, loss=Scalar(), lr=1e-3, phase="warm", bad=math.nan, far=-math.inf, ok=True)
    checkpoint.log(loss=1)
    first, second = lines_of(attempt)
    assert first["step"] == 7
    assert first["metrics"] == {
        "loss": 0.5, "lr": 1e-3, "phase": "warm", "bad": "nan", "far": "-inf", "ok": True,
    }  # fmt: skip
    assert second["step"] is None
    assert second["time"] >= first["time"] > 1e9


def test_log_refuses_what_is_no_number(attempt):
    with pytest.raises(TypeError, match=r"^loss: a list"):
        checkpoint.log(1, loss=[1, 2])
    assert left(attempt) == []


def test_log_is_bounded(attempt, monkeypatch):
    monkeypatch.setattr(checkpoint, "_HALF", 10_000)
    for step in range(2000):
        checkpoint.log(step, loss=0.5)
    steps = [
        r["step"] for n in ("progress.old.jsonl", "progress.jsonl") for r in lines_of(attempt, n)
    ]
    assert steps == list(range(steps[0], 2000))
    assert sum(path.stat().st_size for path in attempt.iterdir()) < 21_000


def test_log_drops_what_makes_a_line_too_long(attempt):
    checkpoint.log(3, **{f"metric{i}": i / 7 for i in range(900)})
    (line,) = lines_of(attempt)
    assert line["dropped"] + len(line["metrics"]) == 900
    assert line["metrics"]["metric1"] == 1 / 7
    assert (attempt / "progress.jsonl").stat().st_size <= 4000


def test_log_survives_a_folder_that_is_gone(monkeypatch, tmp_path):
    monkeypatch.setenv("GPUQUEUE_ATTEMPT_DIR", str(tmp_path / "gone"))
    checkpoint.log(1, loss=1.0)
    assert left(tmp_path) == []


def test_lines_of_several_processes_do_not_mix(attempt):
    code = (
        "import sys; from gpuqueue import checkpoint\n"
        "for step in range(300): checkpoint.log(step, rank=sys.argv[1], pad='x' * 900)"
    )
    jobs = [subprocess.Popen([sys.executable, "-c", code, str(rank)]) for rank in range(3)]
    assert [job.wait() for job in jobs] == [0, 0, 0]
    found = lines_of(attempt)
    for rank in "012":
        assert [r["step"] for r in found if r["metrics"]["rank"] == rank] == list(range(300))
