"""Kernels that get their share as CUDA begins in them, on a driver without a GPU."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import until
from gpuqueue_jupyter import admission
from jupyter_client.provisioning.factory import KernelProvisionerFactory
from server_fixtures import *  # noqa: F403
from started_kernels import Start, Talk, held, manager, of, specs, start

from gpuqueue.client import LocalClient
from gpuqueue.client.shares import acquire
from gpuqueue.client.wishes import Wish, remember
from gpuqueue.control.holding import FACT
from gpuqueue.model import JobState
from gpuqueue.paths import Home
from gpuqueue.run.door import LATE
from gpuqueue.run.files import is_held
from gpuqueue.run.kernelshare import SHARE, own_share

sys.path.insert(0, str(Path(__file__).parents[1] / "share"))

from share_cards import HERE, ONE, drivers, needs_compiler

pytestmark = [needs_compiler, pytest.mark.timeout(300)]
__all__ = ["drivers", "manager", "specs", "start"]

USE = "import cudalike as cuda; context = cuda.use() and None; "
ALLOC = "print(cuda.alloc(512 * cuda.MIB + 1), cuda.alloc(512 * cuda.MIB) > 0)"
"""What a quarter of a GPU of 2 GiB refuses, and what it gives."""


@pytest.fixture(autouse=True)
def machine(
    home: Home, drivers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """One GPU of 2 GiB that has a driver, and a rule for all kernels."""
    home.config.write_text('kernel_shares = "late"\n')
    (tmp_path / "card").write_bytes(bytes(4096))
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", f"2G/uuid={ONE}")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(drivers))
    monkeypatch.setenv("FAKE_CUDA_CARD", str(tmp_path / "card"))
    paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))
    KernelProvisionerFactory.clear_instance()
    yield
    KernelProvisionerFactory.clear_instance()


@pytest.fixture
def late(manager: Any, start: Start, client: LocalClient) -> Callable[..., Any]:
    """Starts kernels once what holds shares was tried."""
    client.wake("hold")
    told = until(lambda: (client.store.fact(FACT) or {}).get("standings"), 120, "the cap is tried")
    assert told["memory"] == "capped"
    return start


@pytest.fixture
def talk() -> Iterator[Callable[[Any], Talk]]:
    made: list[Talk] = []

    def to(kernel: Any) -> Talk:
        made.append(Talk(kernel))
        return made[-1]

    yield to
    for each in made:
        each.close()


def running(client: LocalClient) -> int:
    """The only share, once its kernel runs."""
    until(lambda: [job.state for job in held(client)] == [JobState.RUNNING])
    return held(client)[0].id


def test_it_starts_inert_and_is_held_from_its_first_use_on(
    late: Start, talk: Any, client: LocalClient
) -> None:
    kernel = late("python3")
    env = of(kernel)
    assert (env["CUDA_VISIBLE_DEVICES"], own_share(env)["late"]) == ("0", True)
    assert {LATE, "LD_PRELOAD"} <= set(env)
    cells = talk(kernel)
    assert cells.run("import os; print(os.system('true'))") == ("0\n", "")
    assert held(client) == []
    assert client.store.jobs() == []
    out, err = cells.run(USE + ALLOC)
    assert out == "-2 True\n"
    job = client.job(running(client))
    # what the library has set is known to Python from the end of the cell on
    words = "for this notebook: compute admitted only, memory capped\n"
    assert err.endswith(f"holds 0.25 of the compute and 512M of GPU 0 {words}")
    told = "import os; print(os.environ['GPUQUEUE_COMPUTE'], os.environ.get('GPUQUEUE_LATE'))"
    assert cells.run(told) == ("0.25 None\n", "")
    assert "holds 0.25" in cells.run("%gpu share")[0]
    assert (job.hold.memory, job.process.pid) == ("capped", kernel.provisioner.process.pid)
    assert "memory cap" in job.hold.by
    until(lambda: (client.home.attempt(job.id, 1) / "busy").exists())


def test_a_child_gets_it_for_the_notebook(late: Start, talk: Any, client: LocalClient) -> None:
    """Of a kernel in another environment nothing else would be noticed."""
    cells = talk(late("python3"))
    program = f"from cudalike import *; use(); {ALLOC.replace('cuda.', '')}"
    words = f"[sys.executable, '-c', {program!r}]"
    source = f"import subprocess, sys; print(subprocess.check_output({words}, text=True))"
    assert cells.run(source)[0].split() == ["-2", "True"]
    job = running(client)
    assert cells.run(USE + ALLOC)[0] == "-2 True\n"
    assert cells.run(source)[0].split() == ["-2", "False"]  # one sum for both
    assert [each.id for each in held(client)] == [job]


def test_python_s_hook_and_the_library_end_in_one_admission(
    late: Start, talk: Any, client: LocalClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "cupy.py").write_text(USE)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'modules'}:{os.environ['PYTHONPATH']}")
    cells = talk(late("python3"))
    out, err = cells.run("import cupy; from cupy import cuda; " + ALLOC)
    assert (out, "holds 0.25 of the compute" in err) == ("-2 True\n", True)
    running(client)
    assert len(client.store.jobs()) == 1


def test_a_refusal_is_told_in_the_cell_and_the_next_use_asks_again(
    late: Start, talk: Any, client: LocalClient
) -> None:
    other = acquire(client, Wish(900), path="/books/big.ipynb")
    cells = talk(late("python3"))
    ask = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"
    out, err = cells.run(ask)
    assert out == "100\n"
    until(lambda: "There is no room" in err or "There is no room" in cells.run("pass")[1])
    other.release()
    until(lambda: not held(client))
    assert cells.run(ask)[0] == "0\n"
    running(client)


def test_what_was_chosen_meanwhile_counts(
    late: Start, talk: Any, client: LocalClient, tmp_path: Path
) -> None:
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"metadata": {}, "cells": []}))
    kernel = late("python3", path)
    remember(client, str(path), Wish(500))
    talk(kernel).run("import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)")
    assert client.job(running(client)).placement.grants[0].compute == 500


def test_release_and_attach(late: Start, talk: Any, client: LocalClient) -> None:
    kernel = late("python3")
    cells = talk(kernel)
    assert "holds 0.5 of the compute" in cells.run("%gpu attach 0.5")[0]
    first = running(client)
    assert "is given back" in cells.run("%gpu release")[0]
    until(lambda: not held(client))
    assert cells.run("import os; print(repr(os.environ['CUDA_VISIBLE_DEVICES']))")[0] == "''\n"
    assert "holds 0.25 of the compute" in cells.run("%gpu attach")[0]
    second = running(client)
    assert second != first
    assert not is_held(client.home.attempt(first, 1))
    assert cells.run(USE + ALLOC)[0] == "-2 True\n"


def test_a_restart_and_a_death_keep_it_and_an_end_gives_it_back(
    late: Start, talk: Any, manager: Any, client: LocalClient,
    jp_asyncio_loop: asyncio.AbstractEventLoop,
) -> None:  # fmt: skip
    kernel = late("python3")
    talk(kernel).run(USE)
    job = running(client)

    def restarted() -> None:
        before = kernel.provisioner.process.pid
        jp_asyncio_loop.run_until_complete(manager.restart_kernel(kernel.kernel_id, now=True))
        until(lambda: client.job(job).process.pid == kernel.provisioner.process.pid != before)
        assert running(client) == job

    restarted()
    assert of(kernel)["GPUQUEUE_COMPUTE"] == "0.25"
    assert "late" not in own_share(of(kernel))
    assert talk(kernel).run(USE + ALLOC)[0] == "-2 True\n"
    kernel.provisioner.process.send_signal(signal.SIGKILL)
    kernel.provisioner.process.wait()
    restarted()
    jp_asyncio_loop.run_until_complete(manager.shutdown_kernel(kernel.kernel_id, now=True))
    until(lambda: not held(client), what="its share is free")
    until(lambda: not is_held(client.home.attempt(job, 1)))


def test_after_a_release_a_restart_is_late_again(
    late: Start, talk: Any, manager: Any, client: LocalClient,
    jp_asyncio_loop: asyncio.AbstractEventLoop,
) -> None:  # fmt: skip
    kernel = late("python3")
    cells = talk(kernel)
    cells.run("%gpu attach")
    running(client)
    cells.run("%gpu release")
    until(lambda: not held(client))
    jp_asyncio_loop.run_until_complete(manager.restart_kernel(kernel.kernel_id, now=True))
    assert own_share(of(kernel))["late"] is True
    assert held(client) == []


def test_a_kernel_that_ends_while_its_share_comes_gives_it_back(  # noqa: PLR0917
    late: Start, talk: Any, manager: Any, client: LocalClient, monkeypatch: pytest.MonkeyPatch,
    jp_asyncio_loop: asyncio.AbstractEventLoop,
) -> None:  # fmt: skip
    reached, gate = threading.Event(), threading.Event()
    get = admission.acquire

    def slowly(*args: Any, **words: Any) -> Any:
        lease = get(*args, **words)
        reached.set()
        gate.wait(60)
        return lease

    monkeypatch.setattr(admission, "acquire", slowly)
    kernel = late("python3")
    cells = talk(kernel)
    begin = "threading.Thread(target=ctypes.CDLL('libcuda.so.1').cuInit, args=(0,)).start()"
    cells.run(f"import ctypes, threading; {begin}")
    until(reached.is_set)
    jp_asyncio_loop.run_until_complete(manager.shutdown_kernel(kernel.kernel_id, now=True))
    gate.set()
    until(lambda: not client.store.live(), what="the share is free")


def test_what_the_user_has_set_stays(
    late: Start, specs: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "other.c"
    source.write_text("int gpuqueue_test_other;\n")
    other = tmp_path / "libother.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", other, source], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(other))
    env = of(late(specs("one")))
    first, _, rest = env["LD_PRELOAD"].partition(":")
    assert ("memcap" in first, rest) == (True, str(other))
    for name, chosen, admitted in (
        ("none", "", False),
        ("hidden", "-1", False),
        ("another", "3", False),
        ("index", "0,3", True),
        ("uuid", ONE, True),
    ):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
        env = of(late(specs(name)))
        assert (env["CUDA_VISIBLE_DEVICES"], SHARE in env) == (chosen, admitted)


def test_a_kernel_that_a_program_of_its_own_starts_is_left_alone(
    late: Start, specs: Callable[..., str]
) -> None:
    """It may be in a container, which has other libraries."""
    wrapped = specs("wrapped", argv=["/bin/sh", "-c", "sleep 600"])
    assert not {LATE, SHARE, "LD_PRELOAD"} & set(of(late(wrapped)))


def test_a_job_of_a_late_kernel_is_as_of_any(late: Start, talk: Any, client: LocalClient) -> None:
    cells = talk(late("python3"))
    names = ("GPUQUEUE_LATE", "GPUQUEUE_SHARE", "LD_PRELOAD", "GPUQUEUE_MEMCAP")
    cell = f"%%gpu\nimport os\ntold = [os.environ.get(name) for name in {names}]"
    cells.run(cell)
    assert cells.run("print(told)")[0] == "[None, None, None, None]\n"
    assert held(client) == []


@pytest.mark.parametrize(("error", "holds"), [(OSError(24, "full"), True), (LookupError(), False)])
def test_a_share_that_cannot_be_looked_at_is_not_given_back(
    home: Home, error: Exception, holds: bool
) -> None:
    class Share:
        def is_over(self, _: LocalClient) -> bool:
            raise error

    assert admission._still_holds(Share()) is holds


def test_a_share_is_kept_where_no_file_can_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Home) -> LocalClient:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(admission, "LocalClient", full)
    assert admission._still_holds(object())
