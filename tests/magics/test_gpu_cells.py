"""Cells with ``%%gpu`` on top, in a real kernel, on pretend GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import until
from notebook_kernel import Notebook, notebook

from gpuqueue.client import LocalClient
from gpuqueue.model import JobState
from gpuqueue.paths import Home


@pytest.fixture
def book(home: Home, tmp_path: Path) -> Iterator[Notebook]:
    with notebook(tmp_path / "work dir é") as made:
        yield made


def test_variables_go_there_and_come_back(book: Notebook) -> None:
    book.ok("x = 41; never_read = open")
    ran = book.gpu("import os\nr = x + 1\nwhere = os.getcwd(), os.getpid()\nr")
    assert ran.error is None
    assert ran.result == "42"
    assert book.ok("r, where[0] == os.getcwd(), where[1] != os.getpid()").result == (
        "(42, True, True)"
    )
    # the cell's last value is kept as a plain cell's would be
    assert book.ok("_, list(Out.values())[0]").result == "((42, True, True), 42)"


def test_what_it_binds_anyhow_comes_back_and_what_it_deletes_goes(book: Notebook) -> None:
    book.ok("gone, kept = 1, 'old'")
    book.ok(
        "%%gpu\n"
        "import math as m\n"
        "def set_it():\n    global made_inside\n    made_inside = 8\n"
        "set_it()\n"
        "exec('made_by_exec = 3')\n"
        "for i in range(3): pass\n"
        "words = !echo one two\n"
        "if i < 0:\n    kept = 'new'\n"
        "del gone\n"
        "try:\n    1 / 0\nexcept ZeroDivisionError as error: pass\n"
    )
    told = "made_inside, made_by_exec, i, m.pi > 3, words, kept, 'gone' in globals()"
    assert book.ok(told).result == "(8, 3, 2, True, ['one two'], 'old', False)"
    assert book.ok("'error' in globals()").result == "False"


def test_functions_and_classes_stay_the_notebooks_own(book: Notebook) -> None:
    book.ok(
        "base = 10\n"
        "class Net:\n    made = 0\n    def go(self): return helper(self)\n"
        "def helper(net): return base + net.k\n"
        "before = Net.go"
    )
    ran = book.gpu(
        "net = Net(); net.k = 1\ndef later(): return base * 2\nfirst = net.go(), later()"
    )
    assert ran.error is None
    assert book.ok("first, type(net) is Net, Net.go is before").result == "((11, 20), True, True)"
    # what came back is part of the notebook: it sees its globals
    assert book.ok("base = 20; later(), net.go()").result == "(40, 21)"


def test_changes_in_place_come_back_into_the_same_object(book: Notebook) -> None:
    book.ok("import numpy as np\nseen, conf, arr = [], {}, np.zeros(3)\nalias = seen, conf, arr")
    book.ok("%%gpu\nseen.append(1); conf['k'] = 2; arr[1] = 5\ndouble = arr * 2")
    assert (
        book.ok("alias[0], alias[1], alias[2].tolist()").result
        == "([1], {'k': 2}, [0.0, 5.0, 0.0])"
    )
    assert book.ok("seen is alias[0], arr is alias[2], double.flags.writeable").result == (
        "(True, True, True)"
    )


def test_outputs_come_in_order_and_keep_their_kind(book: Notebook) -> None:
    ran = book.gpu(
        "import sys\n"
        "from IPython.display import HTML, clear_output\n"
        "print('wiped'); clear_output(wait=True)\n"
        "print('\\x1b[31mred\\x1b[0m')\n"
        "print('err', file=sys.stderr)\n"
        "handle = display(HTML('<b>0</b>'), display_id=True)\n"
        "for i in range(1, 4): handle.update(HTML(f'<b>{i}</b>'))\n"
        "print('last')\n"
        "{'a': 1}"
    )
    assert ran.error is None
    assert ran.kinds == ["stream", "stream", "display_data", "stream", "execute_result"]
    assert ran.outputs[0].text == "\x1b[31mred\x1b[0m\n"
    assert ran.outputs[2].data["text/html"] == "<b>3</b>"
    assert ran.outputs[3].text == "last\n"


def test_what_child_processes_write_is_not_lost(book: Notebook) -> None:
    ran = book.ok("%%gpu\nimport os\nos.system('echo one; echo two >&2')\nprint('three')")
    assert sorted(ran.stream().split()) == ["one", "three", "two"]


def test_capture_above_it_captures(book: Notebook) -> None:
    book.ok("%%capture kept\n%%gpu\nprint('hi'); display(3)\n4")
    assert book.ok("kept.stdout, len(kept.outputs)").result == r"('hi\n', 2)"


def test_other_magics_below_it_work(book: Notebook) -> None:
    book.ok("n = 4")
    ran = book.gpu("%%time\ntotal = sum(range(n))")
    assert ran.error is None
    assert "Wall time" in ran.stream()
    assert book.ok("total").result == "6"
    assert "n is 4 and 4" in book.ok("%%gpu\n!echo n is {n} and $n").stream()
    assert "from bash" in book.ok("%%gpu\n%%bash\necho from bash").stream()


def test_await_at_the_top(book: Notebook) -> None:
    book.ok("import asyncio\nasync def plus(v):\n    await asyncio.sleep(0)\n    return v + 1")
    book.ok(
        "%%gpu\nasync def agen():\n    yield 7\n"
        "a = await plus(1)\nb = [i async for i in agen()]\nasync for c in agen(): pass"
    )
    assert book.ok("a, b, c").result == "(2, [7], 7)"


def test_an_exception_is_the_users_own(book: Notebook) -> None:
    book.ok(
        "class Quota(Exception):\n"
        "    def __init__(self, who, much):\n        super().__init__(f'{who}: {much}')"
    )
    ran = book.gpu(
        "import sys\nsys.stdout.write('half a line')\nreached = 1\n"
        "def inner():\n    raise Quota('sam', 3)\ninner()"
    )
    assert ran.error == ("Quota", "sam: 3")
    assert ran.kinds == ["stream", "error"]
    assert "inner" in ran.traceback
    assert "gpuqueue" not in ran.traceback
    assert book.ok("reached").result == "1"
    # it can be caught as what it is
    assert (
        book.ok(
            "try:\n    get_ipython().run_cell_magic('gpu', '', '{}[\"k\"]')\n"
            "except KeyError as error:\n    print('caught', error)"
        ).stream()
        == "caught 'k'\n"
    )


def test_figures_of_a_failed_cell_come_after_its_error(book: Notebook) -> None:
    pytest.importorskip("matplotlib")
    ran = book.gpu("import matplotlib.pyplot as plt\nplt.plot([1])\nprint('x')\n1 / 0")
    assert ran.kinds == ["stream", "error", "display_data"]
    assert ran.error == ("ZeroDivisionError", "division by zero")
    # an error that the cell survives stays where it was, and what follows is not kept back
    ran = book.gpu("plt.plot([1])\nget_ipython().run_cell('1 / 0')\nprint('on')")
    assert ran.kinds == ["error", "display_data", "stream"]
    ran = book.gpu("get_ipython().run_cell('1 / 0')\nplt.plot([1]); raise KeyError('k')")
    assert ran.kinds == ["error", "error", "display_data"]
    assert [o.ename for o in ran.outputs[:2]] == ["ZeroDivisionError", "KeyError"]


def test_errors_that_ipython_shows_as_text(book: Notebook) -> None:
    for source, words in (
        ("raise ExceptionGroup('many', [ValueError(1)])", "many (1 sub-exception)"),
        ("%no_such_magic", "UsageError"),
    ):
        plain, ran = book.run(source), book.gpu(source)
        assert plain.kinds == ran.kinds == ["stream"]
        assert words in ran.stream("stderr")
    # others are shown as ever afterwards
    assert book.run("1 / 0").kinds == ["error"]
    assert book.gpu("1 / 0").kinds == ["error"]


def test_an_error_that_is_raised_again_shows_where(book: Notebook) -> None:
    book.gpu("e = ValueError('mine')\nraise e  # first")
    assert "# again" in book.run("raise e  # again").traceback
    assert book.ok("vars(e)").result == "{}"


def test_tracebacks_have_the_lines_of_other_cells(book: Notebook) -> None:
    book.ok("def outer(v):\n    return inner(v)  # from a plain cell")
    book.gpu("def inner(v):\n    return 1 / v  # from a job")
    for ran in (book.gpu("outer(0)"), book.run("outer(0)")):
        assert ran.error == ("ZeroDivisionError", "division by zero")
        assert "# from a plain cell" in ran.traceback
        assert "# from a job" in ran.traceback
        assert "In[2]" in ran.traceback
    shown = book.ok("import inspect\nprint(inspect.getsource(inner))")
    assert "# from a job" in shown.stream()
    assert "plain" in book.gpu("import inspect\nprint(inspect.getsource(outer))").stream()


def test_line_numbers_are_those_of_the_notebook(book: Notebook) -> None:
    ran = book.gpu("a = 1\nb = a / 0")
    assert "line 3" in ran.traceback


@pytest.mark.parametrize(
    ("cell", "name", "words"),
    [
        ("%%gpu\ndef f(:\n    pass", "SyntaxError", ["line 2"]),
        ("%%gpu\nreturn 3", "SyntaxError", ["outside function"]),
        ("%%gpu --lihgt\n1", "InvalidRequest", ["--lihgt", "--light"]),
        ("%%gpu --mem\n1", "InvalidRequest", ["--mem", "value"]),
        ("%%gpu --one --cpu\n1", "InvalidRequest", ["--cpu", "--one"]),
        ("%%gpu --mem 900G\n1", "DoesNotFit", ["900G"]),
        ("%%gpu --in nowhere\n1", "InvalidRequest", ["nowhere"]),
        ("%%gpu\nkeeper.best", "PayloadError", ["keeper._guard", "RLock", "--in"]),
        ("%%gpu\nuses()", "PayloadError", ["uses lock", "lock"]),
        ("%%gpu\nlines.readline()", "PayloadError", ["lines", "TextIOWrapper", "inside the cell"]),
        ("%gpu statsu", "InvalidRequest", ["statsu", "%gpu status"]),
        ("%gpu show 99", "UnknownJob", ["99"]),
        ("%gpu priority", "InvalidRequest", ["priority ID"]),
    ],
)
def test_refusals_name_the_culprit_and_queue_nothing(
    book: Notebook, client: LocalClient, cell: str, name: str, words: list[str]
) -> None:
    book.ok(
        "import threading\nlock = threading.Lock()\n"
        "class Keeper:\n    def __init__(self): self.best = 1; self._guard = threading.RLock()\n"
        "keeper = Keeper()\ndef uses(): return lock\nlines = open('/etc/passwd')"
    )
    ran = book.run(cell)
    assert ran.error is not None
    assert ran.error[0] == name
    for word in words:
        assert word in ran.error[1] + ran.traceback, (word, ran.error)
    assert "magics" not in ran.traceback
    assert client.store.jobs() == []


def test_one_result_that_cannot_come_back_costs_only_itself(book: Notebook) -> None:
    book.ok(
        "import os\n"
        "def revive(pid):\n"
        "    if os.getpid() != pid: raise RuntimeError('no such device here')\n"
        "class OnDevice:\n    def __reduce__(self): return revive, (os.getpid(),)\n"
    )
    ran = book.gpu("big = OnDevice()\nfh = open('there.txt', 'w')\nacc = 0.9\ndef f(): return acc")
    assert ran.error is None
    assert book.ok("acc, f()").result == "(0.9, 0.9)"
    lines = ran.stream("stderr").splitlines()
    assert any("big" in line and "no such device here" in line for line in lines)
    assert any("fh" in line and "TextIOWrapper" in line for line in lines)
    assert len(lines) == 2


def test_what_a_failed_cell_made_does_not_fill_the_memory(book: Notebook) -> None:
    ran = book.gpu("small = 1\nblob = bytearray(64 << 20)\nraise MemoryError('pretend')")
    assert ran.error == ("MemoryError", "pretend")
    assert book.ok("small, 'blob' in globals()").result == "(1, False)"
    assert "%gpu pull" in ran.stream()
    assert "blob" in ran.stream()
    book.ok("%gpu pull 1 blob")
    assert book.ok("len(blob) >> 20").result == "64"


def test_no_keyboard(book: Notebook) -> None:
    for source in ("input('go on? ')", "import getpass; getpass.getpass()", "breakpoint()"):
        ran = book.gpu(source)
        assert ran.error is not None
        assert ran.error[0] == "StdinNotImplementedError"
        assert "no keyboard" in ran.error[1]


def test_a_job_that_is_killed_says_so(book: Notebook) -> None:
    book.ok("precious = [1]")
    ran = book.gpu("import os\nprint('about to die', flush=True)\nos.kill(os.getpid(), 9)")
    assert ran.error is not None
    assert "SIGKILL" in ran.error[1]
    assert "memory" in ran.error[1]
    assert "about to die" in ran.stream()
    assert book.ok("precious").result == "[1]"
    ran = book.gpu("import os; os._exit(0)")
    assert ran.error is not None
    assert "before the cell was over" in ran.error[1]


def test_a_job_whose_process_ends_says_how(book: Notebook) -> None:
    ends = {
        "import os; os._exit(3)": "exit code 3 before the cell was over",
        "import os; os.abort()": "SIGABRT",
        "import ctypes; ctypes.string_at(0)": "SIGSEGV",
    }
    book.ok("precious = [1]")
    for end, words in ends.items():
        ran = book.gpu(f"print('up to here', flush=True)\n{end}")
        assert ran.error is not None
        assert words in ran.error[1]
        assert "up to here" in ran.stream()
    assert book.ok("precious").result == "[1]"
    assert book.gpu("precious[0]").result == "1"


def test_a_cell_inside_a_job_is_refused(book: Notebook) -> None:
    ran = book.gpu("get_ipython().run_cell_magic('gpu', '', 'x = 1')")
    assert ran.error is not None
    assert ran.error[0] == "NotAllowedNow"
    assert "inside job 1" in ran.error[1]


def test_progress_bars_do_not_pile_up(book: Notebook) -> None:
    ran = book.gpu("import sys\nfor i in range(20000): sys.stderr.write(f'\\r{i}/20000 [#####]')")
    assert ran.stream().split("\r")[-1] == "19999/20000 [#####]"
    assert len(ran.stream()) < 20000


def test_a_flood_is_bounded_here_and_whole_in_the_log(book: Notebook, client: LocalClient) -> None:
    ran = book.gpu("for i in range(100_000): print(i, 'x' * 60)\nprint('the end')")
    assert ran.error is None
    assert "are not shown here" in ran.stream()
    assert ran.stream().rstrip().endswith("the end")
    assert len(ran.stream()) < 5 << 20
    log = client.log_path(client.job(1)).read_text()
    assert "the end" in log
    assert f"99999 {'x' * 60}" in log
    assert len(log) > 6_000_000


def test_what_is_shown_and_what_comes_by_itself_are_settings(book: Notebook, home: Home) -> None:
    home.config.parent.mkdir(parents=True, exist_ok=True)
    home.config.write_text("cell_text_limit = '2k'\ncell_result_limit = '16M'\n")
    ran = book.gpu(
        "for i in range(1000): print(i, 'x' * 10)\nlarge, small = bytearray(17 << 20), 1"
    )
    assert "characters of text are not shown here" in ran.stream("stdout")
    assert ran.stream("stdout").rstrip().endswith("999 xxxxxxxxxx")
    assert len(ran.stream("stdout")) < 6000
    assert "large stays in job 1: it is large" in ran.stream("stderr")
    assert book.ok("small, 'large' in globals()").result == "(1, False)"
    home.config.write_text("cell_failed_result_limit = '16M'\n")
    ran = book.gpu("large, small = bytearray(17 << 20), 2\n1 / 0")
    assert ran.error == ("ZeroDivisionError", "division by zero")
    assert book.ok("small, 'large' in globals()").result == "(2, False)"


def test_a_cell_that_begins_again_shows_only_its_new_attempt(
    book: Notebook, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    publish = book._client.process_message

    def look(msg: dict[str, Any], *rest: Any) -> Any:
        if msg["msg_type"] == "stream" and "old" in msg["content"]["text"]:
            seen.touch()
        return publish(msg, *rest)

    book._client.process_message = look
    ran = book.gpu(
        "import os, pathlib, time\n"
        "first = not pathlib.Path('begun').exists()\n"
        "print('old' if first else 'new', 'attempt')\n"
        "display('same')\n"
        "if first:\n"
        "    pathlib.Path('begun').touch()\n"
        f"    while not os.path.exists({str(seen)!r}): time.sleep(0.01)\n"
        "    runner = open(f'/proc/{os.getppid()}/stat').read().rpartition(')')[2].split()[1]\n"
        "    os.kill(int(runner), 9)\n"
        "    time.sleep(600)\n"
        "made = 'by the new one'",
        "--restartable",
    )
    assert ran.error is None
    assert ran.stream("stdout") == "new attempt\n"
    assert [o.data["text/plain"] for o in ran.outputs if "data" in o] == ["'same'"]
    assert "begun again" in ran.stream("stderr")
    assert book.ok("made").result == "'by the new one'"


def test_interrupt_ends_the_job_as_it_would_plain_code(
    book: Notebook, client: LocalClient, tmp_path: Path
) -> None:
    mark = tmp_path / "running"
    ran = book.run_interrupted(
        f"%%gpu\nimport time, pathlib\ngot = 3\npathlib.Path({str(mark)!r}).touch()\n"
        "try:\n    time.sleep(600)\nexcept KeyboardInterrupt:\n    print('tidying up')\n    raise",
        mark.exists,
    )
    assert ran.error is not None
    assert ran.error[0] == "KeyboardInterrupt"
    assert "tidying up" in ran.stream()
    assert "In[" in ran.traceback
    assert "tidying up" in ran.traceback
    assert client.job(1).state is JobState.CANCELLED
    assert book.ok("got").result == "3"
    assert book.gpu("after = 1").error is None


def test_interrupt_ends_a_job_that_will_not_listen(
    book: Notebook, client: LocalClient, tmp_path: Path
) -> None:
    mark = tmp_path / "running"
    ran = book.run_interrupted(
        f"%%gpu\nimport time, pathlib\npathlib.Path({str(mark)!r}).touch()\n"
        "while True:\n    try:\n        time.sleep(600)\n    except KeyboardInterrupt: pass",
        mark.exists,
    )
    assert ran.error is not None
    assert ran.error[0] == "KeyboardInterrupt"
    until(lambda: client.job(1).state is JobState.CANCELLED)


def test_a_waiting_cell_says_why_and_an_interrupt_takes_it_out_of_the_queue(
    book: Notebook, client: LocalClient, tmp_path: Path
) -> None:
    book.ok("%gpu submit --exclusive -- sleep 600")
    until(lambda: client.job(1).state is JobState.RUNNING)
    refused = book.gpu("1", "--no-wait")
    assert refused.error is not None
    assert refused.error[0] == "DoesNotFit"

    seen: list[str] = []
    publish = book._client.process_message

    def look(msg: dict[str, object], *rest: object) -> object:
        if msg["msg_type"] == "display_data":
            seen.append(str(msg["content"]))
        return publish(msg, *rest)

    book._client.process_message = look
    ran = book.run_interrupted("%%gpu\nprint('never')", lambda: bool(seen))
    assert "queued, position 1" in seen[0]
    assert "job 1" in seen[0]
    assert ran.error is not None
    assert ran.error[0] == "KeyboardInterrupt"
    assert ran.kinds == ["error"]  # the line about waiting is gone
    assert client.job(2).state is JobState.CANCELLED
    assert client.job(1).state is JobState.RUNNING


def test_in_and_out_narrow(book: Notebook) -> None:
    book.ok("a, b, c = 1, 2, 3")
    ran = book.gpu("'b' in globals()", "--in a")
    assert ran.result == "False"
    ran = book.gpu("p, q = a, b", "--out p,nope")
    assert "nope" in ran.stream("stderr")
    assert book.ok("p, 'q' in globals()").result == "(1, False)"


def test_widgets_do_not_hang_the_job(book: Notebook) -> None:
    pytest.importorskip("ipywidgets")
    ran = book.gpu(
        "import ipywidgets as w\ns = w.IntSlider(value=3)\nout = w.Output()\ndisplay(s, out)\n"
        "with out:\n    print('inside')\nv = s.value"
    )
    assert ran.error is None
    assert book.ok("v").result == "3"


def test_figures_show_once_and_under_their_own_cell(book: Notebook) -> None:
    pytest.importorskip("matplotlib")
    ran = book.gpu("import matplotlib.pyplot as plt\nplt.plot([1, 2]);")
    images = [o for o in ran.outputs if "image/png" in o.get("data", {})]
    assert len(images) == 1
    assert all("image/png" not in o.get("data", {}) for o in book.gpu("q = 1").outputs)
