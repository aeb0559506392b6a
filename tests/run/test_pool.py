"""Runners that take the next job when theirs was over before anybody was told of it."""

import contextlib
import json
import os
import select
import socket

import pytest
from conftest import until

from gpuqueue.run import runner
from gpuqueue.run.files import is_settled, read_claim, read_exit
from gpuqueue.run.pool import Pool, serve


def order_of(folder, number, argv=("true",)):
    spec = {"program": "/bin/sh", "argv": ["sh", "-c", *argv], "cwd": "/", "env": {}}
    return {
        "job": number,
        "job_dir": str(folder / str(number)),
        "attempt_dir": str(folder / str(number) / "1"),
        "env": {},
        "wake": str(folder / "nobody"),
        "grace": 5.0,
        "log_limit": 4096,
        "spec": json.dumps(spec),
    }


@contextlib.contextmanager
def serving(first):
    """A process that serves; gives the launcher's end of its socket."""
    here, there = socket.socketpair()
    pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException):
            here.close()
            serve(first, there)
        os._exit(0)
    there.close()
    here.settimeout(60)
    try:
        yield here
    finally:
        here.close()
        os.waitpid(pid, 0)


def test_a_runner_goes_on_to_the_next_job(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "_SHORT", 600.0)
    with serving(order_of(tmp_path, 1, ["echo one; umask 0; cd /tmp"])) as channel:
        assert channel.recv(1) == b"."
        assert read_exit(tmp_path / "1/1")["returncode"] == 0
        channel.sendall(json.dumps(order_of(tmp_path, 2, ["pwd; exit 3"])).encode() + b"\n")
        assert channel.recv(1) == b"."
    assert read_exit(tmp_path / "2/1")["returncode"] == 3
    assert (tmp_path / "1/1/log").read_text() == "one\n"
    assert (tmp_path / "2/1/log").read_text() == "/\n"
    assert read_claim(tmp_path / "1/1") == read_claim(tmp_path / "2/1")


def test_one_that_was_named_ends_with_its_job(tmp_path, monkeypatch):
    """What is sent to the process of a job that has just ended must not meet another job."""
    monkeypatch.setattr(runner, "_SHORT", 0.0)
    with serving(order_of(tmp_path, 1, [f"until test -e '{tmp_path}/go'; do :; done"])) as channel:
        until(lambda: is_settled(tmp_path / "1/1"))
        (tmp_path / "go").touch()
        assert channel.recv(1) == b"-"
        assert channel.recv(1) == b""


def test_one_that_could_not_record_an_end_ends(tmp_path, monkeypatch):
    """Otherwise its job would seem to run for as long as the process does."""
    monkeypatch.setattr(runner, "_SHORT", 600.0)
    with serving(order_of(tmp_path, 1, [f"rm -r '{tmp_path}/1'"])) as channel:
        assert channel.recv(1) != b"."


class Forked:
    """Stands for the launcher's fork: keeps the runner's end of each socket."""

    def __init__(self) -> None:
        self.orders: list[bytes] = []
        self.ends: list[socket.socket] = []

    def __call__(self, order, channel) -> bool:
        self.orders.append(order)
        self.ends.append(channel.dup())
        return True


@pytest.mark.parametrize("answered", [True, False])
def test_what_a_killed_runner_was_given_is_given_once_more(answered):
    forked = Forked()
    pool = Pool(forked)
    pool.give(b"1")
    forked.ends[0].send(b".")
    pool.give(b"2")
    assert forked.orders == [b"1"]
    assert forked.ends[0].recv(10) == b"2\n"
    if answered:
        forked.ends[0].send(b"-")
    forked.ends[0].close()
    pool.tidy()
    assert forked.orders == ([b"1"] if answered else [b"1", b"2"])
    pool.forget()
    for end in forked.ends[1:]:
        end.close()


def test_one_that_does_not_read_is_passed_over():
    forked = Forked()
    pool = Pool(forked)
    pool.give(b"1")
    forked.ends[0].send(b".")
    pool.give(b"2" * (8 << 20))  # more than a socket holds
    assert forked.orders[1:] == [b"2" * (8 << 20)]
    pool.forget()


def test_an_ended_launcher_ends_those_that_are_free(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "_SHORT", 600.0)
    with serving(order_of(tmp_path, 1)) as channel:
        assert channel.recv(1) == b"."
    assert read_exit(tmp_path / "1/1")["returncode"] == 0


def test_one_whose_last_word_nobody_has_read_ends_quietly(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "_SHORT", 600.0)
    here, there = socket.socketpair()
    pid = os.fork()
    if not pid:
        try:
            here.close()
            serve(order_of(tmp_path, 1), there)
        except BaseException:  # noqa: BLE001 - a fork of a test ends here
            os._exit(1)
        os._exit(0)
    there.close()
    assert select.select([here], [], [], 60)[0]
    here.close()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
