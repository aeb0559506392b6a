"""``gpuqueue submit`` as a program."""

import json
import os
import signal
import subprocess
import sys

import pytest
from cli_program import PROGRAM, gq, ok, queued, refused
from conftest import until

from gpuqueue.model import JobState

pytestmark = pytest.mark.usefixtures("home")


def log_of(client, number):
    client.wait(number, 60)
    return client.log_path(client.job(number)).read_text(encoding="utf-8")


def test_submit_says_what_it_means_where_it_starts_and_how_to_look(client):
    first, second, third = ok("submit", "--tag", "mine", "--", "echo", "hi").splitlines()
    assert first == "job 1  mine  1 whole GPU, 2 slots"
    assert second in ("starts now on GPU 0", "succeeded")
    assert third in ("log: gpuqueue logs -f 1", "log: gpuqueue logs 1")
    assert log_of(client, 1) == "hi\n"
    job = client.job(1)
    assert job.origin.kind == "terminal"
    assert job.origin.session
    assert job.command == "echo hi"


def test_words_are_not_expanded_and_a_quoted_line_is(client):
    one = queued("--cpu", "echo", "$X", env=os.environ | {"X": "42"})
    two = queued("--cpu", "echo $X && echo 2", env=os.environ | {"X": "42"})
    assert log_of(client, one) == "$X\n"
    assert log_of(client, two) == "42\n2\n"


def test_options_after_the_command_are_its_own(client):
    show = "import sys; print(sys.argv[1:])"
    words = ["--cpu", "--json", "--help", "--", "-f", "--priority", "x"]
    number = queued("--cpu", sys.executable, "-c", show, *words)
    assert log_of(client, number) == f"{words}\n"
    number = queued("--cpu", "--", sys.executable, "-c", show, *words)
    assert log_of(client, number) == f"{words}\n"


def test_python_is_the_one_on_the_path(client, tmp_path):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\necho "another python: $@"\n')
    python.chmod(0o755)
    (tmp_path / "a.py").write_text("")
    env = os.environ | {"PATH": f"{python.parent}:{os.environ['PATH']}"}
    by_word = queued("--cpu", "python", "a.py", cwd=tmp_path, env=env)
    by_file = queued("--cpu", "a.py", "-x", cwd=tmp_path, env=env)
    assert log_of(client, by_word) == "another python: a.py\n"
    assert log_of(client, by_file) == "another python: a.py -x\n"


def test_every_option_reaches_the_request(client):
    parent = queued("--cpu", "true")
    number = queued(
        "--preset", "two", "--gpus", "1", "--share", "1/4", "--mem", "6G", "--slots", "1",
        "--eta", "40m", "--priority", "7", "--after", f"{parent}", "--tag", "T", "--key", "K",
        "--preemptible", "--resumable", "--burst", "true",
    )  # fmt: skip
    job = client.job(number)
    assert client.store._rows("SELECT count(*) FROM jobs")[0][0] == 2
    request = json.loads(ok("show", "--json", str(number)))["request"]
    assert request == {
        "preset": "two", "gpus": 1, "share": 250, "memory": 6 * 1024**3, "slots": 1,
        "eta": 2400.0, "priority": 7, "after": [parent], "restartable": True,
        "preemptible": True, "resumable": True, "require": [], "burst": True,
    }  # fmt: skip
    assert (job.tag, job.key) == ("T", "K")


def test_what_is_to_be_hard_is_refused_where_nothing_caps(client):
    words = refused("submit", "--mem", "6G", "--require", "memory=hard", "true")
    assert "It requires memory=hard, and memory would be admitted only here." in words
    assert "compute=hard or memory=hard" in refused("submit", "--require", "all", "true")
    whole = queued("--require", "compute=hard,memory=hard", "true")
    assert client.wait(whole, 60).returncode == 0
    assert "require compute=hard, require memory=hard" in ok("show", str(whole))
    share = queued("--share", "0.25", "true")
    client.wait(share, 60)
    assert "held to it   compute admitted only, memory admitted only" in ok("show", str(share))


def test_priority_alone_is_the_front(client):
    queued("--exclusive", "sleep", "60")
    low, high = queued("true"), queued("--priority", "-3", "true")
    front = queued("--priority", "--cpu", "true")
    last = queued("--tag", "--priority", "true")  # a value that looks like the option
    assert client.job(front).request.priority > client.job(low).request.priority == 0
    assert client.job(high).request.priority == -3
    assert client.job(last).tag == "--priority"
    assert client.plan().waits[front].position == 1
    text = ok("submit", "--priority", "sleep 1")
    assert "position 1 of 5" in text
    assert "why: waits for job 1 (sleep" in text


def test_directory_and_environment_are_as_asked(client, tmp_path):
    secret = "s3cr3t-value"
    words = ["--cpu", "--cwd", str(tmp_path), "--env", f"TOKEN={secret}", "--env", "B=x=y"]
    done = gq("submit", *words, "--", "sh", "-c", "pwd; echo $TOKEN $B")
    assert done.returncode == 0
    assert log_of(client, 1) == f"{tmp_path}\n{secret} x=y\n"
    said = [done.stdout, done.stderr]
    for command in ("show 1", "show --json 1", "jobs", "jobs --json", "status", "status --json"):
        said += [ok(*command.split())]
    assert all(secret not in text for text in said)
    assert "TOKEN" in said[2]
    # with --json too, and where it is written wrongly
    assert secret not in refused("submit", "--env", secret, "true")
    assert secret not in refused("submit", "--env", f"={secret}", "true")


@pytest.mark.parametrize(
    ("words", "culprit"),
    [
        (["nope"], "'nope'"),
        (["python", "nope.py"], "nope.py"),
        (["nope.py"], "there is no file nope.py"),
        (["nope.ipynb"], "there is no file nope.ipynb"),
        (["./nope", "-x"], "./nope"),
        (["--cwd", "/nowhere", "true"], "/nowhere"),
        (["--mem", "lots", "true"], "mem: 'lots'"),
        (["--mem", "100G", "true"], "100G"),
        (["--gpus", "3", "true"], "asks for 3 GPUs, this machine has 2"),
        (["--gpus", "x", "true"], "gpus: 'x'"),
        (["--share", "1.5", "true"], "share"),
        (["--preset", "huge", "true"], "huge"),
        (["--light", "--two", "true"], "light and two"),
        (["--priority=x", "true"], "priority"),
        (["-f", "--json", "true"], "--json"),
        ([b"\xff\xfe.py"], "not UTF-8"),
        (["  "], "empty"),
    ],
)
def test_what_cannot_be_is_refused_at_once(client, words, culprit):
    assert culprit in refused("submit", *words)
    assert client.store.jobs() == []


def test_after_an_unknown_job():
    assert "no job 99" in refused("submit", "--after", "99", "true", code=1)


def test_wrong_usage_is_2():
    for words in (["submit"], ["submit", "--nonsense", "true"], ["nonsense"], ["show", "x"]):
        done = gq(*words)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def test_no_wait_refuses_what_cannot_start_now(client):
    queued("--exclusive", "sleep", "60")
    assert "cannot start now" in refused("submit", "--no-wait", "true")
    assert len(client.store.jobs()) == 1


def test_the_same_key_again(client):
    queued("--cpu", "--key", "k", "true")
    client.wait(1, 60)
    text = ok("submit", "--cpu", "--key", "k", "true")
    assert "job 1 " in text
    assert "the same key was given to this job before" in text
    assert len(client.store.jobs()) == 1


def test_each_job_has_a_gpu_of_its_own(client, tmp_path, monkeypatch):
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", "4x8G")
    wrapper = tmp_path / "wrap.sh"
    wait = "while [ ! -e go ]; do sleep 0.05; done"
    wrapper.write_text(f"#!/bin/sh\nsh -c 'echo \"dev=$CUDA_VISIBLE_DEVICES\"; {wait}'\n")
    wrapper.chmod(0o755)
    numbers = [queued("--gpus", "1", "./wrap.sh", cwd=tmp_path) for _ in range(4)]
    until(lambda: all(client.job(number).state is JobState.RUNNING for number in numbers))
    (tmp_path / "go").touch()
    assert {log_of(client, number) for number in numbers} == {f"dev={i}\n" for i in range(4)}


def test_odd_names_work_everywhere(client, tmp_path):
    folder = tmp_path / "run (v2) – ü" / "-dash"
    folder.mkdir(parents=True)
    names = ["train [1] 'q'.py", "-dash.py", 'a "b" $HOME;x.py', "größe.py"]
    for name in names:
        (folder / name).write_text("import os, sys; print(os.getcwd()); print(sys.argv)\n")
    for name in names:
        number = queued("--cpu", "--", name, "an arg", cwd=folder)
        text = log_of(client, number)
        assert text.splitlines()[0] == str(folder)
        assert name in text.replace("\\'", "'")
        assert "'an arg'" in text
        assert client.job(number).state is JobState.SUCCEEDED
    number = queued("--cpu", "python", names[0], cwd=folder)
    assert str(folder) in log_of(client, number)
    program = folder / "my prog"
    program.write_text("#!/bin/sh\necho it ran\n")
    program.chmod(0o755)
    assert log_of(client, queued("--cpu", "./my prog", cwd=folder)) == "it ran\n"
    assert str(folder) in ok("show", str(number))
    assert names[0].split()[0] in ok("jobs")
    assert ok("logs", str(number)) == log_of(client, number)


def test_a_notebook_with_an_odd_name(client, tmp_path):
    import nbformat

    path = tmp_path / "Word2Vec [x] (Soft max).ipynb"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1/0")])
    nbformat.write(notebook, path)
    number = queued("--cpu", path.name, cwd=tmp_path)
    job = client.job(number)
    assert (str(job.kind), job.command, job.cwd) == ("notebook", path.name, str(tmp_path))
    assert "no arguments" in refused("submit", path.name, "x", cwd=tmp_path)


def test_no_home_is_needed_but_the_state_directory(client, home):
    env = {"GPUQUEUE_HOME": str(home.root), "GPUQUEUE_FAKE_GPUS": "8G", "HOME": "/proc/nowhere"}
    number = queued("--one", "/bin/sh", "-c", "echo $HOME", env=env)
    assert log_of(client, number) == "/proc/nowhere\n"
    assert "FAILED" not in ok("doctor", env=env)


def test_follow_is_as_if_it_ran_here(client):
    done = gq("submit", "-f", "--cpu", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert done.returncode == 7
    assert done.stdout == "out\nerr\n"
    assert done.stderr.endswith("gpuqueue: job 1 failed: exit code 7\n")
    assert gq("submit", "-f", "--cpu", "true").returncode == 0


def follow(client, code):
    """A program that follows a job which has begun."""
    program = subprocess.Popen(
        [PROGRAM, "submit", "--follow", "--cpu", sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout
    assert program.stdout.readline() == "ready\n"
    return program


def test_ctrl_c_reaches_the_job_as_it_would_plain_code(client):
    code = (
        "import time\nprint('ready')\n"
        "try:\n    time.sleep(600)\nexcept KeyboardInterrupt:\n    print('stopped well')"
    )
    program = follow(client, code)
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=60)
    assert program.returncode == 130
    assert out == "stopped well\n"
    assert "Traceback" not in err
    assert client.job(1).state in (JobState.SUCCEEDED, JobState.CANCELLED)


def test_ctrl_c_again_ends_the_job(client):
    code = (
        "import signal, time\nsignal.signal(signal.SIGINT, lambda *_: print('no', flush=True))\n"
        "print('ready')\nwhile True: time.sleep(1)"
    )
    program = follow(client, code)
    program.send_signal(signal.SIGINT)
    assert program.stdout.readline() == "no\n"
    program.send_signal(signal.SIGINT)
    program.communicate(timeout=60)
    assert program.returncode == 130
    assert client.job(1).state is JobState.CANCELLED


def test_a_job_outlives_who_follows_it(client):
    program = follow(client, "import time\nprint('ready')\ntime.sleep(2)\nprint('done')")
    program.kill()
    program.communicate()
    assert log_of(client, 1).endswith("done\n")
    assert client.job(1).state is JobState.SUCCEEDED


def test_submit_works_with_no_controller(client, monkeypatch):
    monkeypatch.setenv("GPUQUEUE_AUTOSTART", "0")
    assert "no controller runs; it starts once one does" in ok("submit", "true")
    assert "will be cancelled as soon as a controller runs" in ok("cancel", "1")
    monkeypatch.delenv("GPUQUEUE_AUTOSTART")
    ok("submit", "--cpu", "true")
    until(lambda: client.job(1).state is JobState.CANCELLED)


def test_submit_imports_little():
    code = (
        "import sys\nfrom gpuqueue.cli import main\nsys.argv = ['gpuqueue', 'submit', 'true']\n"
        "try:\n    main()\nexcept SystemExit:\n    print(*sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert "gpuqueue.client.local" in loaded
    assert not loaded & {"rich", "IPython", "cloudpickle", "nbformat", "psutil", "jupyter_core"}


def test_saves_that_took_too_long_are_told_at_the_next_submit(client, home):
    home.config.write_text("grace = 7\nevict_timeout = 30\nsave_time = 20\n")
    words = ("--cpu", "sh", "-c", 'echo 40.04 > "$GPUQUEUE_ATTEMPT_DIR/saved"')
    first = queued(*words)
    client.wait(first, 60)
    assert gq("submit", "--cpu", "true").stderr == ""
    told = gq("submit", *words).stderr
    assert told == (
        "gpuqueue: the last save of this command took 40s (job 1), and a cancel leaves it 7s "
        "(grace) and free mode leaves it 30s (evict_timeout); give it more time, or save less\n"
    )
    client.wait(3, 60)
    told = gq("submit", "--preemptible", *words).stderr
    assert "(job 3), and a cancel" in told
    assert "one that needs its room leaves it 20s (save_time)" in told
    client.wait(4, 60)
    home.config.write_text("grace = 41\nsave_time = 41\n")
    assert gq("submit", *words).stderr == ""
