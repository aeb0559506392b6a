"""A damaged database: set aside as it is, and made anew of what can be read."""

from __future__ import annotations

import errno
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpuqueue.errors import NoSpace, StateRebuilt
from gpuqueue.model import Job, JobKind, JobState, Origin, Request
from gpuqueue.store import RESCUE, Draft, Store
from gpuqueue.store import rescue as rescue_room
from gpuqueue.store.rescue import RESCUE as FACT
from gpuqueue.store.schema import VERSION

PAGE = 4096
JOBS = 300


def draft(number: int) -> Draft:
    return Draft(
        kind=JobKind.SCRIPT, request=Request(eta=float(number)), tag=f"tag {number}", owner="o",
        command="true", cwd="/", origin=Origin("python", "", "s"),
        spec='{"env": {"SECRET": "%s"}}' % ("x" * 700),
    )  # fmt: skip


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with 300 jobs, most of them ended; half of it is still in its log."""
    folder = tmp_path_factory.mktemp("pristine")
    store = Store(folder / "state.db")
    jobs = store.submit([draft(number) for number in range(JOBS - 50)], lambda *_: None)
    with store.transaction() as db:
        for job in jobs[:200]:
            ended = replace(job, state=JobState.SUCCEEDED, attempt=1, returncode=0, ended=5.0)
            store.move(db, job, ended, "ended", 5.0)
    store.close()  # all of it moves into the database
    store = Store(folder / "state.db")
    for number in range(JOBS - 50, JOBS):
        store.submit([draft(number)], lambda *_: None)
    made = folder / "killed"
    made.mkdir()
    for name in ("state.db", "state.db-wal"):  # as a kill leaves them
        shutil.copyfile(folder / name, made / name)
    store.close()
    return made


@pytest.fixture
def path(pristine: Path, tmp_path: Path) -> Path:
    for name in ("state.db", "state.db-wal"):
        shutil.copyfile(pristine / name, tmp_path / name)
    return tmp_path / "state.db"


@pytest.fixture(scope="module")
def originals(pristine: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Job]:
    folder = tmp_path_factory.mktemp("copy")
    for name in ("state.db", "state.db-wal"):
        shutil.copyfile(pristine / name, folder / name)
    store = Store(folder / "state.db")
    found = {job.id: job for job in store.jobs(limit=10**6)}
    store.close()
    assert len(found) == JOBS
    return found


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def settled(path: Path) -> None:
    """Have all of it in the database file, and no log."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


DAMAGE: dict[str, tuple[Callable[[Path], object], int]] = {
    "header, log as it was": (lambda path: overwrite(path, 0, b"\0" * 100), JOBS),
    "header": (lambda path: (settled(path), overwrite(path, 0, noise(100))), JOBS),
    "first page": (lambda path: (settled(path), overwrite(path, 0, noise(PAGE))), JOBS),
    "truncated": (
        lambda path: (settled(path), os.truncate(path, path.stat().st_size // 2 + 11)), 30,
    ),
    "empty, with its log": (lambda path: os.truncate(path, 0), 0),
    "no database": (lambda path: (settled(path), path.write_bytes(b"this is none" * 999)), 0),
    "log's header": (lambda path: overwrite(Path(f"{path}-wal"), 0, noise(32)), JOBS),
    "log's middle": (
        lambda path: overwrite(
            Path(f"{path}-wal"), Path(f"{path}-wal").stat().st_size // 2, noise(40)
        ),
        JOBS - 8,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_what_can_be_read_is_kept(path: Path, originals: dict[int, Job], name: str) -> None:
    damage, least = DAMAGE[name]
    damage(path)
    (path.parent / "jobs").mkdir()
    (path.parent / "jobs" / str(JOBS)).mkdir()
    before = {part: read(Path(f"{path}{part}")) for part in ("", "-wal")}
    told: list[str] = []
    store = Store(path, on_wait=told.append)
    store.verify()
    kept = store.jobs(limit=10**6)
    assert len(kept) >= least
    for job in kept:
        assert job == originals[job.id]
    if name == "header, log as it was":
        assert told == []  # its log has that page too
        store.close()
        return
    (words,) = told
    assert "made anew" in words
    assert store.fact(RESCUE)["words"] == words
    aside = path.with_name(store.fact(RESCUE)["aside"])
    if name == "log's middle":  # by that time what comes before it has been moved
        before = {"": b"", "-wal": b""}
    if before[""]:
        assert read(aside) == before[""]
    if before["-wal"]:
        assert read(Path(f"{aside}-wal")) == before["-wal"]
    (new,) = store.submit([draft(0)], lambda *_: None)
    assert new.id > JOBS
    assert store.last_event() == max(event.seq for event in store.events(limit=10**6))
    store.close()
    assert Store(path, on_wait=told.append).jobs(limit=1)[0].id == new.id
    assert len(told) == 1
    left = {entry.name for entry in path.parent.iterdir() if "damaged" not in entry.name}
    assert left <= {"state.db", "state.db-wal", "state.db-shm", "state.db.lock", "jobs"}


def read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


@pytest.mark.parametrize("with_what", ["zeros", "noise"])
def test_any_page_may_be_the_damaged_one(
    path: Path, originals: dict[int, Job], tmp_path: Path, with_what: str
) -> None:
    settled(path)
    pages = path.stat().st_size // PAGE
    step = max(1, pages // 15)
    lost = []
    for page in range(0, pages, step):
        folder = tmp_path / f"{with_what}-{page}"
        folder.mkdir()
        copy = folder / "state.db"
        shutil.copyfile(path, copy)
        overwrite(copy, page * PAGE, noise(PAGE) if with_what == "noise" else b"\0" * PAGE)
        store = Store(copy, on_wait=lambda _: None)
        store.verify()
        kept = {job.id: job for job in store.jobs(limit=10**6)}
        for job in kept.values():
            assert job == originals[job.id]
        specs = sum(store.spec(number) is not None for number in originals)
        lost.append(JOBS - len(kept))
        assert specs >= JOBS * 0.9 or len(kept) == JOBS
        (new,) = store.submit([draft(0)], lambda *_: None)
        assert new.id > JOBS
        store.close()
    # an inner page of the table of jobs is the worst; there are few of those
    assert sorted(lost)[len(lost) * 9 // 10] <= 30


def test_damage_that_is_met_while_it_is_used(path: Path, originals: dict[int, Job]) -> None:
    """A write fails and is told so; a read gives what there is."""
    settled(path)
    store, other = Store(path, on_wait=print), Store(path, on_wait=print)
    controller = Store(path, durable=False)
    assert len(store.jobs(limit=10**6)) == JOBS
    for page in range(2, path.stat().st_size // PAGE):  # 1 and 2 are where it looks first
        overwrite(path, page * PAGE, noise(PAGE))
    fresh = Store(path, on_wait=print)
    fresh.verify()
    assert fresh.fact(FACT)
    with pytest.raises(StateRebuilt), controller.transaction():
        pass
    with pytest.raises(StateRebuilt):
        controller.check_version()
    (new,) = other.submit([draft(0)], lambda *_: None)
    assert store.job(new.id) == new
    for each in (store, other, controller, fresh):
        each.close()


def test_of_two_that_find_it_one_mends_it(path: Path) -> None:
    settled(path)
    overwrite(path, 0, noise(PAGE))
    code = (
        "import sys; from pathlib import Path; from gpuqueue.store import Store; sys.stdin.read();"
        "told = []; store = Store(Path(sys.argv[1]), on_wait=told.append);"
        "print(len(store.jobs(limit=10**6)), len(told), flush=True)"
    )
    several = [
        subprocess.Popen(
            [sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]  # fmt: skip
    for process in several:
        assert process.stdin is not None
        process.stdin.close()
    answers = [process.stdout.read().split() for process in several if process.stdout]
    for process in several:
        process.wait()
    assert [number for number, _ in answers] == [str(JOBS)] * 4
    assert sorted(told for _, told in answers) == ["0", "0", "0", "1"]
    assert len(list(path.parent.glob("state.db.damaged-*"))) == 1


@pytest.mark.parametrize("step", range(6))
def test_a_mend_that_is_cut_short_is_gone_on_with(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Killed at any of its steps: the next one that opens it ends what was begun."""
    settled(path)
    overwrite(path, 0, noise(PAGE))
    calls = 0

    class Killed(BaseException):
        pass

    def cut(*_: object, **__: object) -> None:
        nonlocal calls
        calls += 1
        if calls > step:
            raise Killed

    real_rename, real_make = Path.rename, rescue_room._make

    def rename(self: Path, target: Path) -> Path:
        cut()
        return real_rename(self, target)

    def make(*words: object) -> str:
        cut()
        return real_make(*words)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "rename", rename)
    monkeypatch.setattr(rescue_room, "_make", make)
    monkeypatch.setattr(rescue_room, "_remove", cut)
    try:
        Store(path, on_wait=lambda _: None).close()
        done = True
    except Killed:
        done = False
    monkeypatch.undo()
    store = Store(path, on_wait=lambda _: None)
    assert len(store.jobs(limit=10**6)) == JOBS
    assert store.fact(RESCUE)["why"] == "file is not a database" or done
    assert len(list(path.parent.glob("state.db.damaged-*"))) == 1
    assert not list(path.parent.glob("state.db.rescue*"))
    store.close()


def test_no_room_to_mend_it_is_told_and_tried_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled(path)
    overwrite(path, 0, noise(PAGE))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(rescue_room.shutil, "copyfile", full)
        with pytest.raises(NoSpace, match="damaged"):
            Store(path)
    store = Store(path, on_wait=lambda _: None)
    assert len(store.jobs(limit=10**6)) == JOBS
    store.close()


def test_what_is_sound_is_left_alone(path: Path) -> None:
    """Neither a kill, nor a log with half a transaction at its end, is damage."""
    with open(f"{path}-wal", "r+b") as log:
        log.seek(0, os.SEEK_END)
        end = log.tell()
        log.seek(end - (PAGE + 24))
        last = bytearray(log.read())
        last[4:8] = b"\0\0\0\0"  # a frame that is no commit
        log.write(last)
    store = Store(path, on_wait=lambda words: pytest.fail(words))
    store.verify()
    assert len(store.jobs(limit=10**6)) == JOBS
    store.close()


def test_the_tables_are_told_by_the_first_page_alone(tmp_path: Path) -> None:
    """A mend of the first page relies on it."""
    Store(tmp_path / "state.db").close()
    page = (tmp_path / "state.db").read_bytes()[:PAGE]
    assert page[100] == 13, f"schema {VERSION} needs more than one page: see salvage.transplant"


def test_what_is_written_into_a_file_set_aside_is_not_taken_for_done(path: Path) -> None:
    settled(path)
    store, other = Store(path), Store(path, on_wait=lambda _: None)

    def meanwhile(*_: object) -> None:
        other.mend("a trial")

    with pytest.raises(StateRebuilt, match="ask again"):
        store.submit([draft(7)], meanwhile)
    assert len(other.jobs(limit=10**6)) == JOBS
    (job,) = store.submit([draft(7)], lambda *_: None)
    assert other.job(job.id) == job
    store.close()
    other.close()
