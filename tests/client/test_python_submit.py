import asyncio
import linecache
import os
import pickle
import stat
import sys
import threading
from pathlib import Path

import pytest
from conftest import until

import gpuqueue
from gpuqueue.errors import (
    DoesNotFit,
    InvalidRequest,
    JobCancelled,
    JobFailed,
    NotAllowedNow,
    PayloadError,
    UnknownJob,
)
from gpuqueue.model import TERMINAL, JobKind, JobState

pytestmark = pytest.mark.usefixtures("home")


def add(x, y=1):
    print("adding", x, y)
    return x + y


def test_a_program_with_its_arguments():
    job = gpuqueue.submit(["sh", "-c", "echo out; echo err >&2; exit 7"])
    assert job.wait(60) == 7
    assert job.state is JobState.FAILED
    assert sorted(job.logs().split()) == ["err", "out"]
    assert job.reason == "exit code 7"
    with pytest.raises(JobFailed, match="exit code 7"):
        job.result()


@pytest.mark.parametrize("name", ["gone.py", "runs/gone.ipynb", "./gone.py"])
def test_a_script_that_is_not_there_is_no_line_for_the_shell(name):
    with pytest.raises(PayloadError, match=f"there is no file {name}"):
        gpuqueue.submit(name)
    assert gpuqueue.jobs() == []


def test_what_is_no_number_of_a_job_is_refused_in_words():
    with pytest.raises(InvalidRequest, match="'x' is not the number of a job"):
        gpuqueue.job("x")


def test_an_empty_sweep_says_so():
    assert repr(gpuqueue.map(add, [])) == "<no jobs>"


def test_words_are_not_expanded_and_a_line_is(monkeypatch):
    monkeypatch.setenv("X", "seen")
    words = gpuqueue.submit(["echo", "$X"])
    line = gpuqueue.submit("echo $X && echo 2")
    words.wait(60)
    line.wait(60)
    assert words.logs() == "$X\n"
    assert line.logs() == "seen\n2\n"


def test_a_function_gives_its_value_back():
    factor = 10
    assert gpuqueue.submit(lambda v: v * factor, 4).result(60) == 40
    job = gpuqueue.submit(add, 40, y=2)
    assert job.result(60) == 42
    assert job.logs() == "adding 40 2\n"
    assert job.record.command == "add(40, y=2)"


def test_a_function_s_own_exception_is_raised_with_its_traceback():
    class Odd(Exception):
        pass

    def fail():
        raise Odd("here")

    job = gpuqueue.submit(fail)
    with pytest.raises(Exception, match="here") as caught:
        job.result(60)
    assert type(caught.value).__name__ == "Odd"
    assert "in fail" in str(caught.value.__cause__)
    assert 'raise Odd("here")' in str(caught.value.__cause__)
    assert job.reason == "Odd: here"
    assert job.returncode == 1


def test_an_exception_that_cannot_be_unpickled_is_told_in_words():
    class Stubborn(Exception):
        def __init__(self, one, two):
            super().__init__(f"{one}-{two}")

    def fail():
        raise Stubborn(1, 2)

    with pytest.raises(JobFailed, match="Stubborn: 1-2"):
        gpuqueue.submit(fail).result(60)


def test_a_result_that_cannot_be_pickled_says_so():
    with pytest.raises(Exception, match=r"lock"):
        gpuqueue.submit(threading.Lock).result(60)


def test_await_gives_the_result():
    async def main():
        return await gpuqueue.submit(add, 1)

    assert asyncio.run(main()) == 2


def test_surroundings_are_those_of_the_submit(tmp_path, monkeypatch):
    folder = tmp_path / "run (v2) – ü" / "-dash"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MY_TOK", 'a b=c"d\n2')

    def look():
        return os.getcwd(), os.environ["MY_TOK"], sys.executable, sys.prefix, list(sys.path)

    cwd, token, executable, prefix, path = gpuqueue.submit(look).result(60)
    assert cwd == str(folder)
    assert token == 'a b=c"d\n2'
    assert (executable, prefix) == (sys.executable, sys.prefix)
    assert set(map(os.path.abspath, sys.path)) <= {*path}


def test_python_means_this_interpreter(tmp_path):
    (tmp_path / "w.py").write_text("import sys; print(sys.executable, sys.argv[1:])")
    job = gpuqueue.submit(["python", "w.py", "a b"], cwd=tmp_path)
    job.wait(60)
    assert job.logs() == f"{sys.executable} ['a b']\n"
    job = gpuqueue.submit(tmp_path / "w.py", "--lr", 0.1)
    job.wait(60)
    assert job.logs() == f"{sys.executable} ['--lr', '0.1']\n"


def test_what_the_job_sees_of_its_gpus(client):
    def look():
        return {
            name: os.environ.get(name)
            for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PYTHONUNBUFFERED")
        }

    seen = gpuqueue.submit(look, preset="two").result(60)
    assert seen == {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "PYTHONUNBUFFERED": "1",
    }
    assert gpuqueue.submit(look, preset="cpu").result(60)["CUDA_VISIBLE_DEVICES"] == ""


def test_stdin_is_closed():
    with pytest.raises(EOFError):
        gpuqueue.submit(input).result(60)


def test_the_environment_is_private(monkeypatch, home):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    job = gpuqueue.submit(["true"])
    job.wait(60)
    assert "hunter2" not in str(job.to_dict()) + repr(job) + str(gpuqueue.status().to_dict())
    for path in job.directory.rglob("*"):
        if not path.is_symlink():
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    for path in home.root.glob("state.db*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert stat.S_IMODE(job.directory.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("work", "field", "words"),
    [
        (["no-such-program-here"], "command", "PATH"),
        (["python", "nope.py"], "command", "nope.py"),
        ([], "command", "empty"),
        ("   ", "command", "empty"),
        (["echo", 3], "command", "3"),
        (["echo", "a\0b"], "command", "NUL"),
        (b"bytes", "work", "bytes"),
        (42, "work", "int"),
    ],
)
def test_what_cannot_run_is_refused_at_submit(work, field, words, client):
    with pytest.raises(PayloadError, match=words) as caught:
        gpuqueue.submit(work)
    assert caught.value.field == field
    assert client.store.jobs() == []


def test_what_cannot_be_pickled_is_named(client):
    def use(model, lock):
        return lock

    with pytest.raises(PayloadError, match="argument 2, a lock"):
        gpuqueue.submit(use, 1, threading.Lock())
    with pytest.raises(PayloadError, match=r"missing a required argument"):
        gpuqueue.submit(use, 1)
    with pytest.raises(PayloadError, match=r"unexpected keyword argument 'prioritty'"):
        gpuqueue.submit(add, 1, prioritty=3)
    assert client.store.jobs() == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gpus": 3}, "2"),
        ({"mem": "100G"}, "24G"),
        ({"gpus": -1}, "gpus"),
        ({"share": 1.5}, "share"),
        ({"share": "a"}, "share"),
        ({"mem": "much"}, "mem"),
        ({"eta": "soon"}, "eta"),
        ({"preset": "huge"}, "preset"),
        ({"priority": "high"}, "priority"),
        ({"slots": 99}, "99"),
        ({"preset": "exclusive", "share": 0.5}, "whole machine"),
        ({"preset": "cpu", "mem": "1G"}, "asks for none"),
        ({"preset": "cpu", "gpus": 1}, "no GPU"),
        ({"tag": ""}, "tag"),
        ({"restartable": "yes"}, "restartable"),
    ],
)
def test_impossible_requests_are_refused_with_the_numbers(options, words, client):
    with pytest.raises(InvalidRequest, match=words):
        gpuqueue.submit(["true"], **options)
    assert client.store.jobs() == []


def test_an_unknown_option_names_the_one_that_was_meant():
    with pytest.raises(InvalidRequest, match="did you mean share"):
        gpuqueue.submit(["true"], shar=0.5)


def test_refuse_rather_than_queue():
    first = gpuqueue.submit(["sleep", "60"], preset="exclusive")
    until(lambda: first.state is JobState.RUNNING)
    with pytest.raises(DoesNotFit, match="cannot start now"):
        gpuqueue.submit(["true"], wait=False)
    first.cancel()
    first.wait(60)
    assert gpuqueue.submit(["true"], wait=False).wait(60) == 0


def test_after():
    first = gpuqueue.submit(["sh", "-c", "exit 3"])
    second = gpuqueue.submit(["true"], after=first)
    third = gpuqueue.submit(["true"], after=[second])
    third.wait(60)
    assert [job.state for job in (first, second, third)] == [
        JobState.FAILED,
        JobState.CANCELLED,
        JobState.CANCELLED,
    ]
    assert str(first.id) in second.reason
    with pytest.raises(JobCancelled):
        third.result()
    good = gpuqueue.submit(["sh", "-c", "date +%s.%N"])
    child = gpuqueue.submit(["sh", "-c", "date +%s.%N"], after=[good])
    child.wait(60)
    assert float(good.logs()) < float(child.logs())
    with pytest.raises(UnknownJob, match="99"):
        gpuqueue.submit(["true"], after=99)


def test_keys_make_a_submit_idempotent():
    first = gpuqueue.submit(["true"], key="baseline-s0")
    first.wait(60)
    assert gpuqueue.submit(["true"], key="baseline-s0") == first
    failed = gpuqueue.submit(["false"], key="other")
    failed.wait(60)
    assert gpuqueue.submit(["true"], key="other") != failed


def test_map_and_its_table():
    runs = gpuqueue.map(add, [{"x": 1, "y": 1}, {"x": 2, "y": 5}], mem="2G")
    assert runs.results(60) == [2, 7]
    table = runs.table()
    assert [row["result"] for row in table] == [2, 7]
    assert [row["x"] for row in table] == [1, 2]
    assert "<td>7</td>" in runs._repr_html_()
    assert gpuqueue.map(add, [1, 2], [3, 4]).results(60) == [4, 6]
    assert len(gpuqueue.map(add, [])) == 0


def test_the_executor_is_one_of_concurrent_futures():
    with gpuqueue.GpuExecutor(mem="1G") as pool:
        futures = [pool.submit(add, i) for i in range(3)]
        assert [future.result(60) for future in futures] == [1, 2, 3]
        assert list(pool.map(add, [10, 20])) == [11, 21]
        with pytest.raises(ZeroDivisionError):
            pool.submit(lambda: 1 / 0).result(60)
    with pytest.raises(RuntimeError):
        pool.submit(add, 1)


def test_a_waiting_future_can_be_cancelled():
    blocker = gpuqueue.submit(["sleep", "60"], preset="exclusive")
    pool = gpuqueue.GpuExecutor()
    future = pool.submit(add, 1)
    assert future.cancel()
    assert future.cancelled()
    assert future.job.state is JobState.CANCELLED
    blocker.cancel()
    pool.shutdown()


def test_a_future_that_nobody_will_cancel_says_so(monkeypatch):
    monkeypatch.setenv("GPUQUEUE_AUTOSTART", "0")
    monkeypatch.setattr("gpuqueue.client.executor._ANSWER", 1e6)
    future = gpuqueue.GpuExecutor().submit(add, 1)
    assert not future.cancel()
    assert future.job.state is JobState.QUEUED


def test_logs_follow_to_the_end():
    job = gpuqueue.submit(["sh", "-c", "for i in 1 2 3; do echo $i; sleep 0.1; done"])
    assert "".join(job.logs(follow=True)) == "1\n2\n3\n"
    assert job.logs(2) == "2\n3\n"
    assert "".join(job.logs(1, follow=True)) == "3\n"
    assert job.done()


def test_bytes_that_are_no_text_do_not_break_the_log():
    job = gpuqueue.submit(["sh", "-c", r"printf 'a\377b\n'"])
    job.wait(60)
    assert job.logs() == "a\N{REPLACEMENT CHARACTER}b\n"


def test_retry_is_a_copy(tmp_path, monkeypatch):
    monkeypatch.setenv("FOO", "1")
    job = gpuqueue.submit(["sh", "-c", "echo $FOO; exit 1"], cwd=tmp_path, tag="mine")
    job.wait(60)
    monkeypatch.setenv("FOO", "2")
    again = job.retry()
    again.wait(60)
    assert again.logs() == "1\n"
    assert (again.record.retry_of, again.tag, again.record.cwd) == (job.id, "mine", str(tmp_path))
    assert gpuqueue.submit(add, 1).result(60) == 2


def test_every_run_has_a_directory_of_its_own():
    line = 'ls -A "$GPUQUEUE_RUN_DIR"; touch "$GPUQUEUE_RUN_DIR/mine"; echo "$GPUQUEUE_RUN_DIR"'
    first = gpuqueue.submit(line, preset="cpu")
    assert first.wait(60) == 0
    again = first.retry()
    assert again.wait(60) == 0
    one, other = (Path(job.logs().rstrip("\n")) for job in (first, again))  # each was empty
    assert one != other
    assert (one / "mine").exists()
    assert (other / "mine").exists()
    assert again.record.retry_of == first.id


def test_only_what_has_ended_can_be_retried():
    job = gpuqueue.submit(["sleep", "60"])
    with pytest.raises(NotAllowedNow):
        job.retry()
    job.cancel()
    job.wait(60)
    with pytest.raises(NotAllowedNow, match="cancelled"):
        job.cancel()


def test_order_can_be_changed():
    blocker = gpuqueue.submit(["sleep", "60"], preset="exclusive")
    until(lambda: blocker.state is JobState.RUNNING)
    a, b, c = (gpuqueue.submit(["true"]) for _ in range(3))
    order = lambda: [job.id for job in gpuqueue.status().waiting]  # noqa: E731
    assert order() == [a.id, b.id, c.id]
    c.to_front()
    assert order() == [c.id, a.id, b.id]
    a.swap(b)
    assert order() == [c.id, b.id, a.id]
    a.set_priority(-1)
    b.swap(a)
    b.set_priority(-2)
    assert order() == [c.id, a.id, b.id]
    child = gpuqueue.submit(["true"], after=a)
    with pytest.raises(NotAllowedNow, match="comes after"):
        child.to_front()
    assert "GPU" in a.why() or "alone" in a.why() or "runs" in a.why()
    blocker.cancel()
    for job in (a, b, c, child):
        job.wait(60)


def test_what_the_commands_show_is_there_in_python(home):
    from gpuqueue.client import default_client

    job = gpuqueue.submit(["true"], preset="cpu")
    assert job.wait(60) == 0
    assert job.why() == "it has succeeded"
    assert [gpu["uuid"] for gpu in gpuqueue.devices()] == ["FAKE-0", "FAKE-1"]
    assert gpuqueue.config() == default_client().settings.as_dict()
    assert {check["name"] for check in gpuqueue.doctor() if check["ok"]} >= {"runner", "database"}


def test_no_such_job():
    with pytest.raises(UnknownJob, match="99"):
        gpuqueue.job(99)


def test_a_timeout_leaves_the_job_alone():
    job = gpuqueue.submit(["sleep", "60"])
    with pytest.raises(TimeoutError, match="goes on"):
        job.wait(0.05)
    assert job.state not in TERMINAL
    job.cancel()


def test_errors_survive_pickling():
    for error in (
        InvalidRequest("f", "p"),
        PayloadError("f", "p"),
        JobFailed("m", 3, -9),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert (str(copy), vars(copy)) == (str(error), vars(error))


def test_a_notebook_runs_as_a_batch(tmp_path):
    import nbformat

    notebook = nbformat.v4.new_notebook()
    notebook.cells = [
        nbformat.v4.new_code_cell("n = 1", metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell("print('n is', n)"),
    ]
    path = tmp_path / "Word2Vec-Skipgram(Softmax).ipynb"
    nbformat.write(notebook, path)
    job = gpuqueue.submit(path, n=5)
    assert job.record.kind is JobKind.NOTEBOOK
    done = nbformat.read(job.result(120), 4)
    assert "n is 5" in str(done.cells)
    with pytest.raises(PayloadError, match="no notebook"):
        gpuqueue.submit(tmp_path / "none.ipynb")


def test_lines_that_are_on_no_disk_travel_along():
    source = "def fail(x):\n    return 1 / x  # the very line\n"
    namespace = {"__name__": "__main__"}
    linecache.cache["<cell 7>"] = (len(source), None, source.splitlines(keepends=True), "<cell 7>")
    exec(compile(source, "<cell 7>", "exec"), namespace)
    job = gpuqueue.submit(namespace["fail"], 0)
    with pytest.raises(ZeroDivisionError):
        job.result(60)
    assert 'File "<cell 7>", line 2, in fail' in job.logs()
    assert "# the very line" in job.logs()
