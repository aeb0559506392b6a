"""What a thread prints is not shown for a while, and that of others is."""

from __future__ import annotations

import io
import sys
import threading

import pytest

from gpuqueue.run.quiet import quiet


class Stream(io.StringIO):
    """One that takes attributes, as a kernel's does."""


def put(monkeypatch: pytest.MonkeyPatch) -> Stream:
    stream = Stream()
    monkeypatch.setattr(sys, "stdout", stream)
    return stream


def test_only_this_thread_and_only_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = put(monkeypatch)

    with quiet():
        print("hidden")
        with quiet():
            print("hidden")
        print("hidden")
        other = threading.Thread(target=print, args=("other",))
        other.start()
        other.join()
    print("after")
    assert shown.getvalue() == "other\nafter\n"
    assert "write" not in vars(shown)


def test_threads_that_end_in_another_order_than_they_began_are_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = put(monkeypatch)

    first_in, second_in, first_out = (threading.Event() for _ in range(3))

    def first() -> None:
        with quiet():
            first_in.set()
            second_in.wait(60)
            print("hidden")
        first_out.set()

    def second() -> None:
        first_in.wait(60)
        with quiet():
            second_in.set()
            first_out.wait(60)
            print("hidden")
        print("second")

    one, two = threading.Thread(target=first), threading.Thread(target=second)
    one.start()
    two.start()
    one.join()
    two.join()
    with quiet():
        pass
    print("main")
    assert shown.getvalue() == "second\nmain\n"
    assert "write" not in vars(shown)


def test_what_a_module_has_put_in_its_place_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = put(monkeypatch)

    def loud(text: str) -> int:
        return io.StringIO.write(shown, text.upper())

    with quiet():
        shown.write = loud  # type: ignore[method-assign]
    print("after")
    assert shown.getvalue() == "AFTER\n"
