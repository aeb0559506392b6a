"""A notebook's own share: ``%gpu share``, ``attach``, ``release``, and its first use of a GPU."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from conftest import until
from notebook_kernel import Notebook, notebook

from gpuqueue.client import LocalClient
from gpuqueue.client.releasing import release
from gpuqueue.client.shares import acquire
from gpuqueue.client.wishes import Wish, remembered
from gpuqueue.model import ACTIVE, Grant, Job, JobKind, JobState
from gpuqueue.paths import Home
from gpuqueue.run.kernelshare import is_busy, with_share

TORCH = """
    import os
    import sys
    import types

    class _C(types.ModuleType):
        begun = None

        def _cuda_getDeviceCount(self):
            self._see()
            return len([name for name in self.begun.split(",") if name])

        def _cuda_init(self):
            self._see()

        def _see(self):
            if self.begun is None:  # as CUDA: once in a process
                self.begun = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1,2,3")

    _C = _C("torch._C")
    from torch import cuda
    """
CUDA = """
    import torch
    _initialized = False

    def is_initialized():
        return _initialized

    def device_count():
        return torch._C._cuda_getDeviceCount()

    def is_available():
        return device_count() > 0

    def _lazy_init():
        global _initialized
        torch._C._cuda_init()
        if not torch._C._cuda_getDeviceCount():
            raise RuntimeError("No CUDA GPUs are available")
        _initialized = True

    def empty_cache():
        pass
    """
OTHER = """
    import os
    saw = os.environ.get("CUDA_VISIBLE_DEVICES")
    """


@pytest.fixture(autouse=True)
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Home) -> None:
    """Stand-ins with the shape of the real ones, and one GPU."""
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", "80G")
    folder = tmp_path / "libraries"
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text(dedent(TORCH))
    (folder / "torch" / "cuda.py").write_text(dedent(CUDA))
    (folder / "cupy.py").write_text(dedent(OTHER))
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


@pytest.fixture
def book(home: Home, tmp_path: Path) -> Iterator[Notebook]:
    """A notebook of which no server knows: VS Code's, or a terminal's."""
    with notebook(tmp_path / "work") as made:
        yield made


@pytest.fixture
def late(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    """One that a server has started without a share, and with its GPUs hidden."""
    hidden = with_share(dict(os.environ), {"CUDA_VISIBLE_DEVICES": ""}, {"late": True})
    for name in ("CUDA_VISIBLE_DEVICES", "GPUQUEUE_SHARE"):
        monkeypatch.setenv(name, hidden[name])
    with notebook(tmp_path / "work") as made:
        yield made


def held(client: LocalClient) -> list[Job]:
    return [j for j in client.store.live() if j.kind is JobKind.KERNEL and j.state in ACTIVE]


def fill(client: LocalClient) -> None:
    """Take the GPU, as a server that starts a kernel does."""
    acquire(client, Wish(900), path="/books/big.ipynb")


def error(made: Notebook, source: str) -> str:
    """What the error of a cell says."""
    found = made.run(source).error
    assert found is not None, f"no error in {source}"
    return found[1]


# -- by hand ---------------------------------------------------------------------------------------


def test_attach_and_release(book: Notebook, client: LocalClient) -> None:
    assert "no share" in book.ok("%gpu share").stream()
    told = book.ok("%gpu attach 0.5 20G").stream()
    assert told.endswith(
        "holds 0.5 of the compute and 20G of GPU 0 for this notebook: admitted only\n"
    )
    (job,) = held(client)
    until(lambda: client.job(job.id).state is JobState.RUNNING)
    assert "holds 0.5" in book.ok("%gpu").stream()
    assert "0.5 of its compute, 20G" in str(book.ok("%gpu status").result)
    script = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['GPUQUEUE_COMPUTE'])"
    assert book.ok(script).stream() == "0 0.5\n"
    assert "has a share already" in error(book, "%gpu attach 0.25")
    assert "is given back" in book.ok("%gpu release").stream()
    until(lambda: not held(client), what="the share is free")
    assert book.ok("import os; print(repr(os.environ['CUDA_VISIBLE_DEVICES']))").stream() == "''\n"
    assert "holds no share" in error(book, "%gpu release")
    book.ok("import gpuqueue; mine = gpuqueue.attach(0.25)")
    assert [job.placement.grants[0].memory >> 30 for job in held(client)] == [20]
    book.ok("gpuqueue.release()")
    until(lambda: not held(client))


def test_a_share_that_is_given_back_from_outside(book: Notebook, client: LocalClient) -> None:
    book.ok("%gpu attach 0.25")
    (job,) = held(client)
    until(lambda: client.job(job.id).state is JobState.RUNNING)
    assert release(client, job.id).settled
    look = "import os; print(repr(os.environ['CUDA_VISIBLE_DEVICES']))"
    told = book.ok(look)
    words = f"the share of job {job.id} was given back from outside this notebook"
    assert words in told.stream("stderr")
    assert told.stream("stdout") == "''\n"
    assert book.ok(look).stream("stderr") == ""
    assert "holds 0.5" in book.ok("%gpu attach 0.5").stream()
    assert len(held(client)) == 1


def test_a_share_that_is_given_back_after_cuda_has_begun(
    book: Notebook, client: LocalClient
) -> None:
    book.ok("%gpu attach 0.25\nimport torch; torch.cuda._lazy_init()")
    (job,) = held(client)
    until(lambda: client.job(job.id).state is JobState.RUNNING)
    release(client, job.id)
    told = book.ok("1")
    assert "CUDA has begun here (torch): restart the kernel" in told.stream("stderr")


def test_attach_is_refused_in_a_sentence(book: Notebook, client: LocalClient) -> None:
    fill(client)
    words = error(book, "%gpu attach 0.25")
    assert words.startswith("There is no room now for a share of 0.25 of a GPU.")
    assert "notebook big.ipynb" in words
    assert "is not a share" in error(book, "%gpu attach 4")


def test_attach_comes_too_late_where_cuda_has_begun(book: Notebook) -> None:
    book.ok("import torch; torch.cuda._lazy_init()")
    assert "CUDA has begun in this process already (torch)" in error(book, "%gpu attach")


def test_a_kernel_that_ends_gives_its_share_back(
    home: Home, client: LocalClient, tmp_path: Path
) -> None:
    with notebook(tmp_path / "work") as made:
        made.ok("%gpu attach")
        (job,) = held(client)
    until(lambda: not held(client), what="the share is free")
    assert client.job(job.id).state in (JobState.SUCCEEDED, JobState.FAILED)


def test_busy_or_idle(book: Notebook, client: LocalClient) -> None:
    book.ok("%gpu attach")
    (job,) = held(client)
    folder = client.home.attempt(job.id, 1)
    assert not is_busy(folder)
    look = f"from gpuqueue.run.kernelshare import is_busy; print(is_busy({str(folder)!r}))"
    assert book.ok(look).stream() == "True\n"
    assert not is_busy(folder)
    # the cell that loads the extension may work on after that
    assert book.ok(f"%reload_ext gpuqueue\n{look}").stream() == "True\n"
    assert not is_busy(folder)


def test_another_share_at_once(book: Notebook, client: LocalClient) -> None:
    book.ok("%gpu attach 0.25")
    (job,) = held(client)
    until(lambda: client.job(job.id).state is JobState.RUNNING)
    told = book.ok("%gpu share 0.5 30G").stream()
    assert told == f"job {job.id} has share 0.5 (admitted only), mem 30G (admitted only)\n"
    assert client.job(job.id).placement.grants == (Grant("FAKE-0", 500, 30 << 30),)
    book.ok("%gpu share 0.25")
    assert client.job(job.id).placement.grants == (Grant("FAKE-0", 250, 20 << 30),)
    assert "holds 0.25 of the compute and 20G" in book.ok("%gpu share").stream()
    other = acquire(client, Wish(500), path="/books/b.ipynb")
    told = book.ok("%gpu share 0.75").stream()
    assert told.startswith(f"not now: job {job.id} cannot grow: GPU 0 has 0.5 of its compute")
    other.release()


def test_another_share_from_the_next_start_on(
    home: Home, client: LocalClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", "/books/a.ipynb")
    with notebook(tmp_path / "work") as made:
        assert "at its next start" in made.ok("%gpu share 0.5 20G").stream()
        assert remembered(client, "/books/a.ipynb") == Wish(500, 20 << 30)
        assert "asks for a share of 0.5 and 20G of a GPU" in made.ok("%gpu share").stream()
        assert "the largest GPU has 80G" in error(made, "%gpu share 0.5 90G")
        made.ok("%gpu share none")
        assert remembered(client, "/books/a.ipynb") is None


def test_a_cell_as_a_job_is_no_part_of_the_share(book: Notebook) -> None:
    book.ok("%gpu attach 0.25")
    source = "%%gpu --share 0.5\nimport os\ntold = {n: os.environ.get(n) for n in NAMES}"
    book.ok("NAMES = ['GPUQUEUE_SHARE', 'GPUQUEUE_COMPUTE']")
    book.ok(source)
    told = json.loads(book.ok("import json; print(json.dumps(told))").stream())
    assert told == {"GPUQUEUE_SHARE": None, "GPUQUEUE_COMPUTE": "0.5"}
    assert "0.25" in book.ok("%gpu share").stream()


# -- at the first use ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        "torch.cuda._lazy_init()",
        "from torch.cuda import _lazy_init; _lazy_init()",
        "torch._C._cuda_init()",
    ],
)
def test_pytorch_gets_the_share_when_it_comes_to_cuda(
    late: Notebook, client: LocalClient, use: str
) -> None:
    late.ok("import torch")
    assert held(client) == []
    assert "at its first use" in late.ok("%gpu").stream()
    late.ok(use)
    (job,) = held(client)
    assert job.placement.grants[0].compute == 250
    assert late.ok("print(torch._C._cuda_getDeviceCount(), torch._C.begun)").stream() == "1 0\n"
    assert len(held(client)) == 1


@pytest.mark.parametrize(
    "question",
    ["torch.cuda.is_available()", "torch.cuda.device_count()", "torch._C._cuda_getDeviceCount()"],
)
def test_who_only_asks_takes_nothing(late: Notebook, client: LocalClient, question: str) -> None:
    """Libraries ask as they are imported."""
    assert late.ok(f"import torch; print(int({question}), torch._C.begun)").stream() == "1 None\n"
    assert client.store.jobs() == []


def test_a_cell_without_a_size_asks_for_what_its_own_notebook_leaves(
    late: Notebook, client: LocalClient
) -> None:
    late.ok("import torch; torch.cuda._lazy_init()")
    told = late.ok("%%gpu --eta 5m\nimport os; size = os.environ['GPUQUEUE_COMPUTE']")
    assert "this cell asks for the rest, share 0.75 and 60G" in told.stream()
    assert late.ok("print(size)").stream() == "0.75\n"
    late.ok("%gpu release")
    until(lambda: not held(client))
    assert "the rest" not in late.ok("%%gpu\nwhole = 1").stream()


def test_another_library_gets_it_at_its_import(late: Notebook, client: LocalClient) -> None:
    assert late.ok("import cupy; print(cupy.saw)").stream("stdout") == "0\n"
    assert len(held(client)) == 1


def test_a_refusal_is_a_plain_error_and_cuda_has_not_begun(
    late: Notebook, client: LocalClient
) -> None:
    other = acquire(client, Wish(900), path="/books/big.ipynb")
    late.ok("import torch")
    words = error(late, "torch.cuda._lazy_init()")
    assert words.startswith("There is no room now for a share of 0.25 of a GPU.")
    # who only asks is told that there is none, and why
    asked = late.ok("print(torch.cuda.is_available(), torch.cuda.device_count())")
    assert asked.stream("stdout") == "False 0\n"
    assert "no GPU for this notebook: There is no room now" in asked.stream("stderr")
    assert late.ok("print(torch._C.begun)").stream() == "None\n"
    assert "There is no room" in error(late, "import cupy")
    other.release()
    until(lambda: not held(client))
    assert late.ok("print(torch.cuda.is_available())").stream("stdout") == "True\n"
    late.ok("import cupy")


def test_attaching_by_hand_comes_before_the_first_use(late: Notebook, client: LocalClient) -> None:
    late.ok("import torch")
    late.ok("%gpu attach 0.5")
    late.ok("torch.cuda._lazy_init()")
    assert [job.placement.grants[0].compute for job in held(client)] == [500]


def test_a_child_by_fork_gets_no_share_of_its_own(late: Notebook, client: LocalClient) -> None:
    late.ok("import os, torch")
    late.ok(
        "pid = os.fork()\n"
        "if not pid:\n"
        "    os._exit(torch.cuda.device_count())\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0"
    )
    assert held(client) == []
