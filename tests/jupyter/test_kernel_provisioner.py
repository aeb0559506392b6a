"""Which kernels our provisioner starts, and where it looks for the share that they ask for."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import until
from gpuqueue_jupyter import admission
from gpuqueue_jupyter.extension import GpuqueueExtension
from gpuqueue_jupyter.provisioner import GpuqueueProvisioner
from gpuqueue_jupyter.provisioning import NAME, offer_provisioner
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.provisioning.factory import KernelProvisionerFactory
from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from mps_control import put_under_mps
from server_fixtures import *  # noqa: F403
from started_kernels import Start, Talk, book, held, manager, of, specs, start

from gpuqueue.client import LocalClient
from gpuqueue.client.shares import acquire
from gpuqueue.client.wishes import Wish, remember
from gpuqueue.errors import InvalidRequest, NoShare
from gpuqueue.model import Grant, Job, JobState
from gpuqueue.paths import Home
from gpuqueue.run.files import is_held
from gpuqueue.run.kernelshare import own_share, release

__all__ = ["manager", "specs", "start"]


@pytest.fixture(autouse=True)
def one_gpu(home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", "80G")
    KernelProvisionerFactory.clear_instance()
    yield
    KernelProvisionerFactory.clear_instance()


# -- which kernels ---------------------------------------------------------------------------------


def test_ours_starts_what_names_no_other(start: Start, specs: Callable[..., str]) -> None:
    own = specs("own", kernel_provisioner={"provisioner_name": "local-provisioner"})
    assert type(start(own).provisioner) is LocalProvisioner
    assert type(start(specs("plain")).provisioner) is GpuqueueProvisioner


def test_a_default_that_somebody_has_chosen_stays(
    extension: GpuqueueExtension, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory = KernelProvisionerFactory.instance()
    assert factory.default_provisioner_name == NAME
    KernelProvisionerFactory.clear_instance()
    monkeypatch.setenv("JUPYTER_DEFAULT_PROVISIONER_NAME", "theirs")
    assert offer_provisioner(extension.serverapp) is None
    KernelProvisionerFactory.clear_instance()
    monkeypatch.delenv("JUPYTER_DEFAULT_PROVISIONER_NAME")
    extension.serverapp.config.KernelProvisionerFactory.default_provisioner_name = (
        "local-provisioner"
    )
    assert offer_provisioner(extension.serverapp) is None


def test_what_asks_for_nothing_is_left_alone(
    start: Start, specs: Callable[..., str], client: LocalClient, tmp_path: Path
) -> None:
    path = tmp_path / "plain.ipynb"
    path.write_text('{"metadata": {}, "cells": []}')
    kernel = start(specs("plain"), path)
    assert client.store.jobs() == []
    assert not {"GPUQUEUE_SHARE", "CUDA_VISIBLE_DEVICES"} & set(of(kernel))


def test_a_state_directory_that_cannot_be_used_keeps_no_plain_kernel_from_starting(
    start: Start, specs: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain, asking = specs("plain"), specs("asking", gpuqueue={"share": 0.25})
    (tmp_path / "file").touch()
    monkeypatch.setenv("GPUQUEUE_HOME", str(tmp_path / "file"))
    assert start(plain).has_kernel
    with pytest.raises(NoShare, match="cannot be looked after"):
        start(asking)


def test_in_a_job_a_kernel_has_the_job_s_gpus(
    start: Start, specs: Callable[..., str], client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUQUEUE_ATTEMPT_DIR", "/somewhere")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    kernel = start(specs("asking", gpuqueue={"share": 0.25}))
    assert of(kernel)["CUDA_VISIBLE_DEVICES"] == "5"
    assert held(client) == []


# -- how much --------------------------------------------------------------------------------------


def test_the_first_that_says_how_much(
    start: Start, specs: Callable[..., str], client: LocalClient, home: Home, tmp_path: Path
) -> None:
    """The notebook's own choice, its metadata, the kernelspec, the settings."""
    home.config.write_text('kernel_shares = "all"\nkernel_share = 0.05\nkernel_memory = "1G"\n')
    in_spec = specs(
        "spec",
        kernel_provisioner={"provisioner_name": NAME, "config": {"share": "0.1", "mem": "2G"}},
    )
    path = book(tmp_path, share=0.2, mem="3G")
    elsewhere = tmp_path / "b.ipynb"

    def gets(name: str, notebook: Path) -> tuple[int, int]:
        kernel = start(name, notebook)
        told = own_share(of(kernel))["job"]
        (grant,) = client.job(told).placement.grants
        return grant.compute, grant.memory >> 30

    assert gets(specs("plain"), elsewhere) == (50, 1)
    assert gets(in_spec, elsewhere) == (100, 2)
    assert gets(in_spec, path) == (200, 3)
    remember(client, str(path), Wish(300, 4 << 30))
    assert gets(in_spec, path) == (300, 4)


def test_other_languages_get_one_only_where_they_ask(
    start: Start, specs: Callable[..., str], client: LocalClient, home: Home
) -> None:
    home.config.write_text('kernel_shares = "all"\n')
    start(specs("r", language="R"))
    assert held(client) == []
    start(specs("julia", language="julia", gpuqueue={"share": 0.5}))
    assert [job.placement.grants[0].compute for job in held(client)] == [500]


@pytest.mark.parametrize("rule", ["late", "all"])
def test_without_a_gpu_a_rule_for_all_is_about_none(
    start: Start, specs: Callable[..., str], client: LocalClient, home: Home, rule: str
) -> None:
    home.config.write_text(f'kernel_shares = "{rule}"\ngpus = [7]\n')
    kernel = start(specs("plain"))
    assert client.store.jobs() == []
    assert not {"GPUQUEUE_SHARE", "CUDA_VISIBLE_DEVICES"} & set(of(kernel))


def test_late_is_for_kernels_that_have_our_hook(
    start: Start, specs: Callable[..., str], home: Home, jp_asyncio_loop: asyncio.AbstractEventLoop
) -> None:
    assert not home.config.exists()  # by default
    assert "GPUQUEUE_SHARE" not in of(start(specs("other")))
    kernel = start("python3")
    env = of(kernel)
    assert "CUDA_VISIBLE_DEVICES" not in env  # programs that it starts have no hook
    assert own_share(env)["late"] is True
    talk = Talk(kernel)
    hooked = "import sys; print('gpuqueue.magics.late' in sys.modules)"
    assert talk.run(hooked) == ("True\n", "")
    talk.close()


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"gpuqueue": {"share": "much"}}, "gpuqueue.share: 'much' is not a share"),
        ({"gpuqueue": {"share": 0.5, "gpus": "two"}}, "gpuqueue.gpus: 'two' is not a number"),
        ({"gpuqueue": 7}, "kernelspec metadata gpuqueue: write for example"),
        (
            {"kernel_provisioner": {"provisioner_name": NAME, "config": {"shares": 1}}},
            "kernel_provisioner.config.shares: there is no such entry",
        ),
    ],
)
def test_a_typing_error_is_told_with_its_place(
    start: Start, specs: Callable[..., str], metadata: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        start(specs("wrong", **metadata))


# -- the life of a share ---------------------------------------------------------------------------


def test_a_restart_takes_what_was_chosen_since(  # noqa: PLR0917
    start: Start, manager: Any, specs: Callable[..., str], client: LocalClient, tmp_path: Path,
    jp_asyncio_loop: asyncio.AbstractEventLoop,
) -> None:  # fmt: skip
    path = book(tmp_path, share=0.25)
    kernel = start(specs("plain"), path)

    def own() -> Job:
        (found,) = [job for job in held(client) if job.tag == path.name]
        return found

    def restart() -> Job:
        jp_asyncio_loop.run_until_complete(manager.restart_kernel(kernel.kernel_id, now=True))
        until(lambda: own().state is JobState.RUNNING)
        return own()

    first = own()
    assert restart().id == first.id
    remember(client, str(path), Wish(500, 10 << 30))
    second = restart()
    assert second.id == first.id
    assert second.placement.grants[0] == Grant("FAKE-0", 500, 10 << 30)
    env = of(kernel)
    assert (env["GPUQUEUE_COMPUTE"], env["GPUQUEUE_MEMORY"]) == ("0.5", str(10 << 30))
    # what does not fit leaves it what it has
    other = acquire(client, Wish(500))
    remember(client, str(path), Wish(750))
    assert restart().placement == second.placement
    other.release()
    until(lambda: len(held(client)) == 1)
    assert restart().placement.grants[0] == Grant("FAKE-0", 750, 60 << 30)
    assert own().id == first.id


def test_mps_lets_go_of_a_kernel_before_it_is_killed(  # noqa: PLR0917
    start: Start, manager: Any, specs: Callable[..., str], client: LocalClient, tmp_path: Path,
    jp_asyncio_loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    up = tmp_path / "up"
    words = "import signal, sys, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)"
    program = f"{words}\nopen(sys.argv[1], 'w').close()\ntime.sleep(600)"
    argv = [sys.executable, "-c", program, str(up)]
    kernel = start(specs("asking", argv=argv, gpuqueue={"share": 0.25}))
    until(up.exists)  # as a real one, it does not end when it is interrupted
    (job,) = held(client)
    process = kernel.provisioner.process
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    folder = client.home.attempt(job.id, job.attempt)
    was_let_go = put_under_mps(folder, process.pid, tmp_path)
    jp_asyncio_loop.run_until_complete(manager.restart_kernel(kernel.kernel_id, now=True))
    assert process.poll() == -signal.SIGKILL
    assert was_let_go()
    assert kernel.provisioner.process.pid != process.pid
    assert [each.id for each in held(client)] == [job.id]


def test_a_restart_after_the_share_has_ended_lets_go_of_it(  # noqa: PLR0917
    start: Start, manager: Any, specs: Callable[..., str], client: LocalClient, tmp_path: Path,
    jp_asyncio_loop: asyncio.AbstractEventLoop,
) -> None:  # fmt: skip
    kernel = start(specs("plain"), book(tmp_path, share=0.25))
    (first,) = held(client)
    lease = kernel.provisioner._lease
    release(lease.folder, detached=True)
    until(lambda: held(client) == [], what="its share has ended")
    assert is_held(lease.folder)
    jp_asyncio_loop.run_until_complete(manager.restart_kernel(kernel.kernel_id, now=True))
    (again,) = held(client)
    assert again.id != first.id
    assert not is_held(lease.folder)
    assert is_held(kernel.provisioner._lease.folder)


def test_a_notebook_that_is_nested_too_deeply_asks_for_nothing(
    start: Start, specs: Callable[..., str], client: LocalClient, tmp_path: Path
) -> None:
    path = tmp_path / "deep.ipynb"
    path.write_text('{"metadata": ' + "[" * 200_000 + "]" * 200_000 + "}")
    start(specs("plain"), path)
    assert held(client) == []


def test_a_restart_on_two_gpus_is_another_share(  # noqa: PLR0917
    start: Start, manager: Any, specs: Callable[..., str], client: LocalClient, tmp_path: Path,
    jp_asyncio_loop: asyncio.AbstractEventLoop,
) -> None:  # fmt: skip
    path = book(tmp_path, share=0.75)
    kernel = start(specs("plain"), path)
    (first,) = held(client)
    remember(client, str(path), Wish(750, gpus=2))  # the machine has one: it keeps what it had
    jp_asyncio_loop.run_until_complete(manager.restart_kernel(kernel.kernel_id, now=True))
    (again,) = held(client)
    assert again.id != first.id
    assert [grant.compute for grant in again.placement.grants] == [750]


def test_a_kernel_that_cannot_begin_is_nobody_s(
    start: Start, manager: Any, specs: Callable[..., str], client: LocalClient
) -> None:
    absent = specs("absent", argv=["/no/such/program"], gpuqueue={"share": 0.25})
    with pytest.raises(OSError, match="no/such/program"):
        start(absent)
    until(lambda: held(client) == [], what="its share is free")
    assert not manager._pending_kernels


def test_a_refusal_leaves_no_trace_in_the_server(
    start: Start, manager: Any, specs: Callable[..., str], client: LocalClient
) -> None:
    start(specs("most", gpuqueue={"share": 0.9}))
    with pytest.raises(NoShare, match=r"There is no room now for a share of 0\.25"):
        start(specs("more", gpuqueue={"share": 0.25}))
    assert not manager._pending_kernels
    assert len(held(client)) == 1


def test_cleanup_may_come_at_any_time(
    start: Start, specs: Callable[..., str], jp_asyncio_loop: asyncio.AbstractEventLoop,
    client: LocalClient,
) -> None:  # fmt: skip
    """voila calls it before anything was started."""
    kernel = start(specs("asking", gpuqueue={"share": 0.25}))
    provisioner = GpuqueueProvisioner(
        kernel_id="x", kernel_spec=KernelSpec(metadata={}), parent=kernel
    )
    jp_asyncio_loop.run_until_complete(provisioner.cleanup())
    jp_asyncio_loop.run_until_complete(provisioner.cleanup(restart=True))
    assert len(held(client)) == 1


def test_a_start_that_nobody_waits_for_gives_back_what_it_gets(
    manager: Any, specs: Callable[..., str], client: LocalClient,
    jp_asyncio_loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip

    reached, gate = threading.Event(), threading.Event()
    get = admission.acquire

    def slowly(*args: Any, **words: Any) -> Any:
        lease = get(*args, **words)
        reached.set()
        gate.wait(60)
        return lease

    monkeypatch.setattr(admission, "acquire", slowly)
    asking = specs("asking", gpuqueue={"share": 0.25})

    async def begin_and_leave() -> None:
        task = asyncio.ensure_future(manager.start_kernel(kernel_name=asking))
        while not reached.is_set():
            await asyncio.sleep(0.01)
        (starting,) = manager._pending_kernels.values()
        starting.cancel()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    jp_asyncio_loop.run_until_complete(begin_and_leave())

    def over() -> bool:
        jp_asyncio_loop.run_until_complete(asyncio.sleep(0.01))
        return not client.store.live()

    until(over, what="the share is free")
