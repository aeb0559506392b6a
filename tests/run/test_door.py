"""The door of a notebook's kernel goes on answering, whatever one answer has come to."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from gpuqueue.errors import NoShare
from gpuqueue.run import door as doors
from gpuqueue.run.door import Asked, Changes, Door, ask, doors_work

pytestmark = [
    pytest.mark.skipif(not doors_work(), reason="there are no such sockets here"),
    pytest.mark.timeout(120),
]
LONG = 60.0


def failing_first(error: Exception) -> Callable[[Asked], Changes]:
    left = [error]

    def answer(_: Asked) -> Changes:
        if left:
            raise left.pop()
        return {"A": "1", "B": None}

    return answer


@pytest.mark.parametrize("error", [KeyError("x"), OSError(errno.EIO, "gone"), NoShare("full")])
def test_an_answer_that_fails_is_a_refusal_and_the_next_one_is_given(error: Exception) -> None:
    with contextlib.closing(Door(failing_first(error), LONG)) as door:
        with pytest.raises(NoShare) as refused:
            ask(door.name)
        assert "no longer answers" not in str(refused.value)
        assert str(error) in str(refused.value)
        assert ask(door.name) == {"A": "1", "B": None}


def test_a_question_that_is_none_keeps_nobody_waiting() -> None:
    with contextlib.closing(Door(failing_first(NoShare("full")), LONG)) as door:
        with socket.socket(socket.AF_UNIX) as there:
            there.settimeout(LONG)
            there.connect(f"\0{door.name.partition(':')[2]}")
            there.sendall(b"[" * 60_000 + b"\n")
            assert there.recv(1) == b""
        with pytest.raises(NoShare, match="full"):
            ask(door.name)


def test_it_listens_again_once_there_is_a_file_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = threading.Event()

    class Full(socket.socket):
        def accept(self) -> Any:
            if not refused.is_set():
                refused.set()
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    with monkeypatch.context() as patch:
        patch.setattr(doors.socket, "socket", Full)
        door = Door(lambda _: {"A": "1"}, LONG)
        assert refused.wait(LONG)
    with contextlib.closing(door):
        assert ask(door.name) == {"A": "1"}


def test_a_closed_one_ends_its_thread() -> None:
    before = set(threading.enumerate())
    door = Door(lambda _: {}, LONG)
    (thread,) = set(threading.enumerate()) - before
    door.close()
    thread.join(LONG)
    assert not thread.is_alive()
    with pytest.raises(NoShare, match="no longer answers"):
        ask(door.name)
