"""A notebook's spare kernel: the same results as without one, and nothing left of it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import lead_process, until
from notebook_kernel import Notebook, notebook

from gpuqueue.client import LocalClient
from gpuqueue.model import Job, JobState
from gpuqueue.paths import Home
from gpuqueue.run.process import children_map, descendants, marked

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")

WHENCE = "open('/proc/self/cmdline').read()"


def forked_kernels(home: Home) -> set[int]:
    """All processes of spare kernels, those of jobs too."""
    return {pid for pid in marked("GPUQUEUE_HOME", str(home.root)) if _is_spare(pid)}


def spares(home: Home) -> list[int]:
    """The spare kernels themselves."""
    found = forked_kernels(home)
    children = children_map() or {}
    return sorted(found - {child for pid in found for child in children.get(pid, ())})


def _is_spare(pid: int) -> bool:
    try:
        return b"gpuqueue.run.spare " in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def ready(home: Home) -> list[int]:
    """Pids of the spare kernel whose next job's processes wait: itself, runner, payload, kernel."""
    for pid in spares(home):
        tree = descendants(pid)
        if len(tree) >= 3:
            return [pid, *tree]
    return []


def configure(home: Home, **settings: object) -> None:
    home.root.mkdir(mode=0o700, exist_ok=True)
    home.config.write_text("".join(f"{name} = {value!r}\n" for name, value in settings.items()))


@pytest.fixture
def book(home: Home, tmp_path: Path) -> Iterator[Notebook]:
    configure(home, spare_memory="256M", spare_idle=600)
    with notebook(tmp_path / "work dir é") as made:
        yield made
    until(lambda: not forked_kernels(home), what="nothing of the spare kernel is left")


def newest(client: LocalClient) -> Job:
    return client.store.jobs(limit=1)[0]


def by_spare(book: Notebook, home: Home) -> None:
    """Have a spare kernel that fits the notebook as it is now."""

    def served() -> bool:
        until(lambda: ready(home), what="a spare kernel is ready")
        return book.gpu(f"print({WHENCE})").stream().find("gpuqueue.run.spare ") > 0

    book.ok("%%gpu\npass")
    until(served, what="a cell came to the spare kernel")
    until(lambda: ready(home), what="it is ready again")


def test_the_next_cell_comes_to_it_and_gives_the_same(book: Notebook, home: Home) -> None:
    book.ok("import json, decimal\nx, seen = 1, []")
    by_spare(book, home)
    ran = book.gpu(
        "import os, sys\n"
        "print('to stdout'); print('to stderr', file=sys.stderr); os.system('echo child')\n"
        "seen.append(x); y = x + 1\n"
        "told = os.environ['GPUQUEUE_JOB_ID'], os.getcwd(), os.umask(0o22), os.getppid()\n"
        f"whence, argv, name = {WHENCE}, list(sys.argv), __name__\n"
        "y"
    )
    assert ran.error is None, ran.traceback
    assert ran.result == "2"
    assert ran.stream("stderr") == "to stderr\n"
    assert sorted(ran.stream("stdout").split()) == ["child", "stdout", "to"]
    assert book.ok("seen, y, 'gpuqueue.run.spare ' in whence").result == "([1], 2, True)"
    assert book.ok("told[1] == os.getcwd(), argv == sys.argv, name").result == (
        "(True, True, '__main__')"
    )
    until(lambda: ready(home), what="it is ready again")
    failed = book.gpu("x = 5\n1 / 0")
    assert failed.error == ("ZeroDivisionError", "division by zero")
    assert "ZeroDivisionError" in failed.traceback
    assert book.ok("x").result == "5"


def test_each_cell_has_a_process_of_its_own(
    book: Notebook, home: Home, client: LocalClient
) -> None:
    by_spare(book, home)
    book.ok("%%gpu\nimport os, sys\nsys.modules['left_behind'] = os; one = os.getpid()")
    until(lambda: ready(home), what="it is ready again")
    ran = book.gpu("import os, sys\ntwo = os.getpid()\n'left_behind' in sys.modules")
    assert ran.result == "False"
    assert book.ok("one != two").result == "True"
    job = newest(client)
    assert job.attempt == 1
    assert job.state is JobState.SUCCEEDED


def test_the_environment_of_a_cell_is_that_of_the_notebook_now(book: Notebook, home: Home) -> None:
    by_spare(book, home)
    book.ok("import os\nos.environ['TOLD'] = 'once'; os.environ.pop('HOME', None)")
    ran = book.gpu(f"import os\nprint(os.environ['TOLD'], 'HOME' in os.environ)\n{WHENCE}")
    assert ran.stream() == "once False\n"
    assert "gpuqueue.run.spare " not in (ran.result or "")  # libraries may read any variable
    by_spare(book, home)
    ran = book.gpu("import os, subprocess\nsubprocess.run('echo $TOLD', shell=True)")
    assert "once" in ran.stream()


def test_a_library_path_that_has_changed_is_used(book: Notebook, home: Home) -> None:
    by_spare(book, home)
    book.ok("import os\nos.environ['LD_LIBRARY_PATH'] = '/nonexistent'")
    started = "print(b'LD_LIBRARY_PATH=/nonexistent' in open('/proc/self/environ', 'rb').read())"
    assert book.gpu(started).stream() == "True\n"


def test_the_working_directory_and_what_lies_there(
    book: Notebook, home: Home, tmp_path: Path
) -> None:
    by_spare(book, home)
    there = tmp_path / "there"
    there.mkdir()
    (there / "helper.py").write_text("K = 3")
    book.ok(f"import os\nos.chdir({str(there)!r})")
    ran = book.gpu("import helper, os\nprint(helper.K, os.getcwd())")
    assert ran.stream() == f"3 {there}\n"
    # as it is saved then
    (there / "helper.py").write_text("K = 44")
    until(lambda: ready(home), what="it is ready again")
    assert book.gpu("import helper\nprint(helper.K)").stream() == "44\n"


def test_an_interrupt(book: Notebook, home: Home, tmp_path: Path) -> None:
    by_spare(book, home)
    mark = tmp_path / "it runs"
    ran = book.run_interrupted(
        f"%%gpu\nimport pathlib, time\nstep = 1\npathlib.Path({str(mark)!r}).touch()\n"
        "time.sleep(600)",
        mark.exists,
    )
    assert ran.error is not None
    assert ran.error[0] == "KeyboardInterrupt"
    assert book.ok("step").result == "1"


def test_a_cancelled_job_leaves_nothing(
    book: Notebook, home: Home, client: LocalClient, tmp_path: Path
) -> None:
    by_spare(book, home)
    mark = tmp_path / "it runs"
    book.ok(
        f"%%gpu --bg\nimport pathlib, subprocess, time\nsubprocess.Popen(['sleep', '600'])\n"
        f"pathlib.Path({str(mark)!r}).touch()\ntime.sleep(600)"
    )
    until(mark.exists, what="it runs")
    until(lambda: newest(client).process, what="its runner is known")
    job = newest(client)
    folder = str(home.attempt(job.id, job.attempt))
    assert job.process is not None
    inside = marked("GPUQUEUE_ATTEMPT_DIR", folder)
    assert len(inside) >= 3  # payload, kernel, and what the cell has started
    book.ok(f"%gpu cancel {job.id}")
    until(lambda: client.job(job.id).state is JobState.CANCELLED, what="it is cancelled")
    until(lambda: not marked("GPUQUEUE_ATTEMPT_DIR", folder), what="nothing is left")


def test_a_runner_that_is_killed_leaves_nothing(
    book: Notebook, home: Home, client: LocalClient, tmp_path: Path
) -> None:
    by_spare(book, home)
    mark = tmp_path / "it runs"
    book.ok(
        f"%%gpu --bg\nimport pathlib, time\npathlib.Path({str(mark)!r}).touch()\ntime.sleep(600)"
    )
    until(mark.exists, what="it runs")
    until(lambda: newest(client).process, what="its runner is known")
    job = newest(client)
    folder = str(home.attempt(job.id, job.attempt))
    members = marked("GPUQUEUE_ATTEMPT_DIR", folder)
    assert job.process is not None
    # the payload too, so that nothing but the mark tells whose the kernel is
    for pid in (job.process.pid, min(members)):
        os.kill(pid, signal.SIGKILL)
    until(lambda: client.job(job.id).state is JobState.FAILED, what="it is lost")
    assert "lost" in client.job(job.id).reason
    until(lambda: not marked("GPUQUEUE_ATTEMPT_DIR", folder), what="nothing is left")


@pytest.mark.parametrize("which", range(4), ids=["spare", "runner", "payload", "kernel"])
def test_one_that_is_killed_costs_no_job(
    book: Notebook, home: Home, client: LocalClient, which: int
) -> None:
    by_spare(book, home)
    os.kill(ready(home)[which], signal.SIGKILL)
    ran = book.gpu("import os\nprint('ran', os.environ['GPUQUEUE_JOB_ID'])")
    assert ran.error is None
    job = newest(client)
    assert ran.stream() == f"ran {job.id}\n"
    assert (job.attempt, job.state) == (1, JobState.SUCCEEDED)


def test_a_job_outlives_the_spare_kernel(
    book: Notebook, home: Home, client: LocalClient, tmp_path: Path
) -> None:
    by_spare(book, home)
    mark, enough = tmp_path / "it runs", tmp_path / "enough"
    book.ok(
        f"%%gpu --bg\nimport pathlib, time\npathlib.Path({str(mark)!r}).touch()\n"
        f"while not pathlib.Path({str(enough)!r}).exists(): time.sleep(0.01)\nwhence = {WHENCE}"
    )
    until(mark.exists, what="it runs")
    for pid in spares(home):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not ready(home), what="the spare kernel is gone")
    enough.touch()
    job = newest(client)
    until(lambda: client.job(job.id).state is JobState.SUCCEEDED, what="it ends well")
    book.ok(f"%gpu pull {job.id}")
    assert book.ok("'gpuqueue.run.spare ' in whence").result == "True"


def test_one_that_does_not_answer_costs_no_job(
    book: Notebook, home: Home, client: LocalClient
) -> None:
    by_spare(book, home)
    spare, runner, *_ = ready(home)
    for stopped in (spare, runner):
        os.kill(stopped, signal.SIGSTOP)
    try:
        ran = book.gpu("import os\nprint('ran', os.environ['GPUQUEUE_JOB_ID'])")
        job = newest(client)
        assert ran.stream() == f"ran {job.id}\n"
    finally:
        # when it goes on it finds the attempt taken
        for stopped in (runner, spare):
            os.kill(stopped, signal.SIGCONT)
    by_spare(book, home)
    assert "ran" not in newest(client).reason
    assert client.job(job.id).attempt == 1


def test_it_ends_with_the_notebook(home: Home, tmp_path: Path) -> None:
    configure(home, spare_memory="256M", spare_idle=600)
    with notebook(tmp_path / "work") as book:
        by_spare(book, home)
    until(lambda: not forked_kernels(home), what="it is gone")


def test_it_ends_when_it_is_not_used(home: Home, tmp_path: Path) -> None:
    configure(home, spare_memory="256M", spare_idle=600)
    with notebook(tmp_path / "work") as book:
        by_spare(book, home)
        configure(home, spare_memory="256M", spare_idle=0.5)
        until(lambda: not forked_kernels(home), what="it is gone")


@pytest.mark.parametrize("whom", ["launcher", "controller"])
def test_it_ends_with_who_is_killed(home: Home, tmp_path: Path, whom: str) -> None:
    configure(home, spare_memory="256M", spare_idle=600, autostart=True)
    with notebook(tmp_path / "work") as book:
        by_spare(book, home)
        old = set(ready(home))
        lead = lead_process(home)
        assert lead is not None
        launcher = next(pid for pid in descendants(lead.pid) if old & set(descendants(pid)))
        os.kill(launcher if whom == "launcher" else lead.pid, signal.SIGKILL)
        until(lambda: not old & forked_kernels(home), what="it is gone")
        assert book.gpu("print('goes on')").stream() == "goes on\n"


def test_there_is_none_where_the_setting_says_so(home: Home, tmp_path: Path) -> None:
    configure(home, spare_kernels=0, spare_memory="256M")
    with notebook(tmp_path / "work") as book:
        for _ in range(3):
            assert "gpuqueue.run.spare " not in book.gpu(f"print({WHENCE})").stream()
            assert not forked_kernels(home)
        configure(home, spare_kernels=1, spare_memory="256M")
        until(lambda: book.ok("%%gpu\npass") and spares(home), what="one is started")
        by_spare(book, home)
        configure(home, spare_kernels=0, spare_memory="256M")
        until(lambda: not forked_kernels(home), what="it is gone")


def test_no_more_than_the_setting_says(home: Home, tmp_path: Path) -> None:
    configure(home, spare_kernels=1, spare_memory="256M", spare_idle=600)
    with notebook(tmp_path / "one") as one, notebook(tmp_path / "two") as two:
        by_spare(one, home)
        first = spares(home)
        by_spare(two, home)
        assert len(spares(home)) == 1
        assert spares(home) != first


def test_one_that_takes_too_much_memory_is_ended(home: Home, tmp_path: Path) -> None:
    configure(home, spare_memory="1M", spare_idle=600)
    with notebook(tmp_path / "work") as book:
        book.ok("%%gpu\npass")
        log = home.log
        until(lambda: "it takes" in log.read_text(), what="it is found too large")
        until(lambda: not forked_kernels(home), what="it is gone")
        assert book.gpu("print('goes on')").stream() == "goes on\n"


def test_torch_is_there_and_cuda_is_not_touched(home: Home, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    configure(home, spare_memory="1G", spare_idle=600)
    with notebook(tmp_path / "work") as book:
        book.ok("import torch")
        by_spare(book, home)
        loaded = until(
            lambda: [p for p in ready(home) if "libtorch" in Path(f"/proc/{p}/maps").read_text()],
            what="it has imported torch",
        )
        for pid in loaded:
            held = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
            assert not [name for name in held if name.startswith("/dev/nvidia")]
        ran = book.gpu(
            "import sys\nprint('torch' in sys.modules, sys.modules['torch'].cuda.is_initialized())"
        )
        assert ran.stream() == "True False\n"


def test_figures(home: Home, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    configure(home, spare_memory="1G", spare_idle=600)
    with notebook(tmp_path / "work") as book:
        book.ok("import matplotlib.pyplot as plt")
        fresh = book.gpu("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.title('two');")
        by_spare(book, home)
        ran = book.gpu("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.title('two');")
        assert ran.kinds == fresh.kinds == ["display_data"]
        assert ran.outputs[0].data == fresh.outputs[0].data
        failed = book.gpu("import matplotlib.pyplot as plt\nplt.plot([1, 2])\n1 / 0")
        assert failed.kinds == ["error", "display_data"], "a figure is shown when the cell is over"
