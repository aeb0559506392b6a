"""``%gpu`` and its words, ``--bg``, completion."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import until
from notebook_kernel import Notebook, notebook

from gpuqueue.client import LocalClient
from gpuqueue.errors import InvalidRequest
from gpuqueue.magics.complete import candidates
from gpuqueue.magics.options import parse_options, split_line
from gpuqueue.model import JobState
from gpuqueue.paths import Home


@pytest.fixture
def book(home: Home, tmp_path: Path) -> Iterator[Notebook]:
    with notebook(tmp_path / "work") as made:
        yield made


def test_the_words(book: Notebook, client: LocalClient) -> None:
    assert "GPU 0" in str(book.ok("%gpu").result)
    book.ok("blocker = %gpu submit --exclusive --tag block -- sleep 600")
    until(lambda: client.job(1).state is JobState.RUNNING)
    book.ok("%gpu submit -- echo one\n")
    book.ok("%gpu submit --tag second -- echo two")
    book.ok("%gpu swap 2 3")
    assert client.job(3).order < client.job(2).order
    book.ok("%gpu priority 2")
    assert client.job(2).order < client.job(3).order
    book.ok("%gpu priority 3 7")
    assert client.job(3).request.priority == 7
    answer = book.ok("%gpu resize 3 --share 0.5 --mem 2G").result
    assert str(answer) == "job 3 has share 0.5 (at its next start), mem 2G (at its next start)"
    assert client.job(3).request.share == 500
    assert "resize ID --share" in str(book.run("%gpu resize 3 --eta 4m").error)
    assert "second" in book.ok("%gpu jobs").stream()
    assert "echo two" in book.ok("%gpu show 3").stream()
    book.ok("%gpu cancel {blocker.id}")
    assert "succeeded" in book.ok("%gpu wait 2").stream()
    book.ok("%gpu wait 3")
    assert book.ok("%gpu logs 2").stream() == "one\n"
    assert "Job 4" in str(book.ok("%gpu retry 2").result)
    assert book.ok("%gpu logs 4 -f").stream() == "one\n"
    refused = book.run("%gpu pull 2")
    assert refused.error is not None
    assert "no cell" in refused.error[1]


def test_a_cells_outputs_can_be_shown_again(book: Notebook) -> None:
    book.gpu("from IPython.display import HTML\nprint('text')\nHTML('<i>rich</i>')")
    ran = book.ok("%gpu logs 1")
    assert ran.stream() == "text\n"
    assert ran.outputs[-1].data["text/html"] == "<i>rich</i>"
    assert book.ok("%gpu logs 1 -n 1").stream().count("\n") == 1


def test_in_the_background(book: Notebook, client: LocalClient, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    heard: list[tuple[str, Any, dict[str, Any]]] = []
    # outputs that belong to the cell come when it has long ended
    take = book._client.kc.iopub_channel.get_msg

    async def listen(*args: Any, **words: Any) -> Any:
        msg = await take(*args, **words)
        heard.append((msg["msg_type"], msg["parent_header"].get("msg_id"), msg["content"]))
        return msg

    book._client.kc.iopub_channel.get_msg = listen
    ran = book.gpu(
        "import time, pathlib\n"
        f"while not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.01)\n"
        "print('late'); y = 5",
        "--bg",
    )
    assert ran.error is None
    assert "Job 1" in str(ran.result)
    (mine,) = {parent for kind, parent, _ in heard if kind == "execute_result"}
    early = book.run("%gpu pull 1")
    assert early.error is not None
    assert "wait" in early.error[1]
    gate.touch()
    book.ok("%gpu wait 1")

    def arrived() -> bool:
        book.ok("None")
        return any(
            kind == "stream" and parent == mine and "pull 1" in content["text"]
            for kind, parent, content in heard
        )

    until(arrived, what="its last words in its own cell")
    assert any(
        kind == "stream" and parent == mine and "late" in content["text"]
        for kind, parent, content in heard
    )
    assert book.ok("'y' in globals()").result == "False"
    book.ok("%gpu pull 1 y")
    assert book.ok("y").result == "5"
    missing = book.run("%gpu pull 1 z")
    assert missing.error is not None
    assert "it made" in missing.error[1]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("%gpu st", ["status"]),
        ("%gpu pr", ["priority"]),
        ("%gpu logs -", ["-f", "-n"]),
        ("%%gpu --pr", ["--preemptible", "--preset", "--priority"]),
        ("%%gpu --one --sh", ["--share"]),
        ("%%gpu --preset e", ["exclusive"]),
        ("%%gpu --mem ", []),
        ("%gpu submit --b", ["--burst"]),
        ("%%gpu --b", ["--bg", "--burst"]),
        ("%gpu resize 1 --", ["--mem", "--share"]),
        ("print(", []),
    ],
)
def test_tab(line: str, found: list[str]) -> None:
    assert candidates(line) == found


def test_tab_knows_jobs(client: LocalClient, home: Home) -> None:
    from gpuqueue.client import options_from
    from gpuqueue.client.payload import script_payload

    client.submit([(script_payload(["true"]), options_from({})) for _ in range(2)])
    assert sorted(candidates("%gpu logs ")) == ["1", "2"]
    assert candidates("%%gpu --after 2") == ["2"]


def test_options_as_typed() -> None:
    asked = parse_options(
        split_line(
            "--two --mem=6G --share 1/4 --eta '1h 30m' --priority 5 --after 12,13 --tag 'a b' "
            "--restartable --no-wait --bg --in a,b --in c --out r"
        )
    )
    assert asked.options == {
        "preset": "two", "mem": "6G", "share": "1/4", "eta": "1h 30m", "priority": "5",
        "after": "12,13", "tag": "a b", "restartable": True, "wait": False,
    }  # fmt: skip
    assert (asked.background, asked.ins, asked.outs) == (True, ["a", "b", "c"], ["r"])
    assert parse_options(["--priority", "--one"]).options == {"priority": True, "preset": "one"}
    command = parse_options(["--one", "--", "ls", "--bg"], cell=False)
    assert command.rest == ["ls", "--bg"]
    for line in ("one", "--bg=1", "--gpu 2", "'", "--bg --out"):
        with pytest.raises(InvalidRequest):
            parse_options(split_line(line))
    with pytest.raises(InvalidRequest, match="--bg"):
        parse_options(["--bg"], cell=False)


def test_loading_is_idempotent_and_unloading_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from IPython.core.interactiveshell import InteractiveShell

    import gpuqueue

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    shell = InteractiveShell()
    for _ in range(2):
        gpuqueue.load_ipython_extension(shell)
    assert len(shell.Completer.custom_matchers) == 1
    assert "gpu" in shell.magics_manager.magics["cell"]
    for _ in range(2):
        gpuqueue.unload_ipython_extension(shell)
    assert shell.Completer.custom_matchers == []
    assert "gpu" not in shell.magics_manager.magics["line"]
    atexit.unregister(shell.atexit_operations)
