"""Looking at jobs and changing them, as a program."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from cli_program import PROGRAM, gq, ok, queued, refused
from conftest import until
from referencing import Registry, Resource

import gpuqueue.client
from gpuqueue.model import JobState
from gpuqueue.run.process import marked
from gpuqueue.store import job_to_dict

pytestmark = pytest.mark.usefixtures("home")

SCHEMAS = {
    name: json.loads(
        (Path(gpuqueue.client.__file__).parent / "schemas" / f"{name}.json").read_text()
    )
    for name in ("job", "status")
}
REGISTRY = Registry().with_resources(
    [(schema["$id"], Resource.from_contents(schema)) for schema in SCHEMAS.values()]
)


def check(name, value):
    jsonschema.Draft202012Validator(SCHEMAS[name], registry=REGISTRY).validate(value)


def data(*words):
    return json.loads(ok(*words, "--json"))


def test_data_matches_the_published_schemas(client):
    done = json.loads(ok("submit", "--json", "--cpu", "false"))
    check("job", done)
    client.wait(done["id"], 60)
    queued("--exclusive", "sleep", "60")
    waiting = json.loads(ok("submit", "--json", "--share", "0.5", "true"))
    check("job", waiting)
    assert waiting["wait"]["position"] >= 1
    until(lambda: client.job(2).state is JobState.RUNNING)
    status = data("status")
    check("status", status)
    lists = [status[key] for key in ("gpus", "running", "waiting", "recent")]
    assert [len(found) for found in lists] == [2, 1, 1, 1]
    assert status["settings"]["packing"] is True
    for number in (1, 2, 3):
        shown = data("show", str(number))
        check("job", shown)
        assert {"events", "environment", "directory", "log", "gpus", "wait"} <= shown.keys()
    listed = data("jobs")
    assert [job["id"] for job in listed["jobs"]] == [3, 2, 1]
    for job in listed["jobs"]:
        check("job", job)
    assert data("gpus")["gpus"] == data("status")["gpus"]


def test_no_key_can_go_without_the_schema_being_told(client):
    queued("--cpu", "true")
    client.wait(1, 60)
    assert set(job_to_dict(client.job(1))) == set(SCHEMAS["job"]["required"])
    status = data("status")
    assert set(status) == set(SCHEMAS["status"]["required"])
    for key in status:
        with pytest.raises(jsonschema.ValidationError):
            check("status", {name: value for name, value in status.items() if name != key})


@pytest.mark.parametrize(
    ("line", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -9 $$", 137)]
)
def test_wait_gives_the_exit_code_of_the_job(line, code):
    queued("--cpu", f"{line};")
    assert gq("wait", "1").returncode == code


def test_wait_that_cannot_tell():
    number = str(queued("--cpu", "sleep", "60"))
    done = gq("wait", number, "--timeout", "0.2s")
    assert done.returncode == 124
    assert "it goes on" in done.stderr
    assert gq("wait", "99").returncode == 125
    assert "timeout: '5x'" in refused("wait", number, "--timeout", "5x")
    waiting = str(queued("--exclusive", "true"))
    ok("cancel", waiting)
    assert gq("wait", waiting).returncode == 130
    ok("cancel", number)
    assert gq("wait", number).returncode == 143


def test_ctrl_c_in_wait_leaves_the_job_alone(client):
    number = queued("--cpu", "sleep", "60")
    program = subprocess.Popen([PROGRAM, "wait", str(number)], stderr=subprocess.PIPE)
    # its doorbell says that it waits
    until(lambda: list(client.home.watchers.glob(f"{program.pid}-*")))
    program.send_signal(signal.SIGINT)
    _, err = program.communicate(timeout=90)
    assert program.returncode == 130
    assert err == b""
    until(lambda: client.job(number).state is JobState.RUNNING)
    assert not client.job(number).asked


def test_logs_are_byte_for_byte(client):
    number = str(queued("--cpu", r"printf 'a\nb\n\377\nd\n'"))
    client.wait(int(number), 60)
    run = [PROGRAM, "logs", number]
    whole = b"a\nb\n\xff\nd\n"
    for options, text in (
        ([], whole),
        (["-n", "2"], b"\xff\nd\n"),
        (["-n", "0"], b""),
        (["-n", "99"], whole),
        (["-f"], whole),
        (["-f", "-n", "1"], b"d\n"),
    ):
        assert subprocess.run([*run, *options], capture_output=True, check=True).stdout == text
    assert "no job 9" in refused("logs", "9", code=1)


def test_logs_follow_until_the_job_ends(client, tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    number = str(queued("--cpu", f"echo one; read x < '{gate}'; echo $x"))
    program = subprocess.Popen([PROGRAM, "logs", "-f", number], stdout=subprocess.PIPE, text=True)
    assert program.stdout.readline() == "one\n"
    gate.write_text("two\n")
    assert program.communicate(timeout=30)[0] == "two\n"
    assert program.returncode == 0


def test_logs_of_a_job_that_waits_say_why():
    queued("--exclusive", "sleep", "60")
    number = str(queued("true"))
    done = gq("logs", number)
    assert (done.returncode, done.stdout) == (0, "")
    assert re.match(rf"gpuqueue: job {number} waits: waits for job 1 ", done.stderr)


def test_show_names_what_differs_in_the_environment_and_no_values(client, monkeypatch):
    monkeypatch.setenv("GONE", "secret-1")
    monkeypatch.setenv("OTHER", "secret-2")
    number = str(queued("--cpu", "true"))
    monkeypatch.delenv("GONE")
    monkeypatch.setenv("OTHER", "secret-3")
    monkeypatch.setenv("NEW", "secret-4")
    client.wait(int(number), 60)
    text = ok("show", number)
    assert "other values than here for OTHER; not set here: GONE; set only here: NEW" in text
    assert str(client.home.job(int(number))) in text
    assert "exit code    0" in text
    shown = ok("show", "--json", number)
    assert "secret" not in text + shown
    assert json.loads(shown)["environment"] == {
        "changed": ["OTHER"], "added": ["GONE"], "removed": ["NEW"],
    }  # fmt: skip


def test_jobs_can_be_filtered(client):
    one, two = queued("--cpu", "true"), queued("--cpu", "false")
    client.wait(one, 60)
    client.wait(two, 60)
    assert [job["id"] for job in data("jobs", "--state", "failed")["jobs"]] == [two]
    assert len(data("jobs", "--state", "failed,succeeded")["jobs"]) == 2
    assert [job["id"] for job in data("jobs", "--limit", "1")["jobs"]] == [two]
    assert data("jobs", "--owner", "nobody-here")["jobs"] == []
    assert "'done' is not one of" in refused("jobs", "--state", "done")
    lines = ok("jobs").splitlines()
    assert lines[0].split()[:3] == ["ID", "STATE", "TAG"]
    assert lines[1].split()[:2] == [str(two), "failed"]


def test_cancel_tells_of_each(client):
    running, waiting = queued("sleep", "60"), queued("--exclusive", "true")
    until(lambda: client.job(running).state is JobState.RUNNING)
    done = gq("cancel", str(waiting), "99", str(running), str(waiting))
    assert done.returncode == 1
    assert "there is no job 99" in done.stderr
    assert f"job {waiting} is cancelled\n" in done.stdout
    assert f"job {running} " in done.stdout
    assert client.wait(running, 60).state is JobState.CANCELLED
    assert "already been cancelled" in refused("cancel", str(waiting), code=1)
    assert "no job 77" in refused("cancel", "77", code=1)


def test_nothing_is_left_of_a_cancelled_family(client, tmp_path, monkeypatch):
    (client.home.config).write_text("grace = 0.5\n")
    family = (
        "import os, signal, subprocess, sys, time\n"
        "subprocess.Popen(['setsid', 'sleep', '600'])\n"
        "subprocess.Popen([sys.executable, '-c', 'import signal, time;"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)'])\n"
        "if os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\n"
        "print('ready', flush=True)\ntime.sleep(600)\n"
    )
    number = queued(sys.executable, "-c", family)
    until(lambda: ok("logs", str(number)) == "ready\n")
    folder = str(client.home.attempt(number, 1))
    assert len(marked("GPUQUEUE_ATTEMPT_DIR", folder)) >= 4
    ok("cancel", str(number))
    client.wait(number, 60)
    assert marked("GPUQUEUE_ATTEMPT_DIR", folder) == []


def test_the_reason_names_who_holds_the_gpu_outside_the_queue(client, tmp_path, monkeypatch):
    holder = subprocess.Popen(["sleep", "600"])
    try:
        table = tmp_path / "processes"
        table.write_text(f"{holder.pid}:0:8000\n")
        monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", "8G")
        monkeypatch.setenv("GPUQUEUE_FAKE_PROCS", str(table))
        number = str(queued("--gpus", "1", "sleep", "5"))
        until(lambda: f"pid {holder.pid}" in ok("status"))
        assert "7.8G" in ok("status")
        assert f"pid {holder.pid}" in ok("gpus")
        assert ok("cancel", number) == f"job {number} is cancelled\n"
        assert data("status")["waiting"] == []
        assert "already" in refused("cancel", number, code=1)
    finally:
        holder.kill()
        holder.wait()


def test_retry_queues_a_copy(client, tmp_path):
    number = queued("--cpu", "--tag", "t", "--cwd", str(tmp_path), "--env", "A=1", "echo $A; pwd")
    assert "is" in refused("retry", "99", code=1)
    client.wait(number, 60)
    text = ok("retry", str(number), "--priority")
    assert text.startswith(f"job {number + 1}  t  no GPU")
    again = client.wait(number + 1, 60)
    assert (again.retry_of, again.command) == (number, "echo $A; pwd")
    assert ok("logs", str(number + 1)) == f"1\n{tmp_path}\n"
    check("job", json.loads(ok("retry", "--json", str(number))))


def test_a_job_is_given_another_size(client):
    number = queued("--share", "0.25", "--mem", "6G", "sleep", "60")
    until(lambda: client.job(number).state is JobState.RUNNING)
    words = ok("resize", str(number), "--share", "0.5", "--mem", "20G")
    assert words == f"job {number} has share 0.5 (admitted only), mem 20G (admitted only)\n"
    told = json.loads(ok("resize", str(number), "--mem", "10G", "--json"))
    assert (told["share"], told["memory"], told["settled"]) == (500, 10 * 2**30, True)
    assert told["applied"] == {"mem": "admitted only"}
    beside = queued("--share", "0.5", "--mem", "6G", "sleep", "60")
    until(lambda: client.job(beside).state is JobState.RUNNING)
    words = refused("resize", str(number), "--share", "75%", code=1)
    assert "0.5 that it holds included" in words
    assert "share" in refused("resize", str(number))
    assert "no job 99" in refused("resize", "99", "--share", "0.5", code=1)
    text = ok("show", str(number))
    assert "share 0.25, mem 6G" in text
    assert "0.5 of its compute, 10G" in text


def test_the_order_can_be_changed_but_not_across_after(client):
    queued("--exclusive", "sleep", "60")
    one, two = queued("true"), queued("true")
    child = queued("--after", str(one), "true")
    assert ok("priority", str(two)) == f"job {two} is at position 1 of 3\n"
    assert ok("swap", str(two), str(one)).splitlines() == [
        f"job {two} is at position 2 of 3",
        f"job {one} is at position 1 of 3",
    ]
    assert ok("priority", str(two), "-5") == f"job {two} is at position 3 of 3\n"
    assert f"comes after job {one}" in refused("priority", str(child), code=1)
    assert f"comes after job {one}" in refused("swap", str(child), str(one), code=1)
    assert "running" in refused("swap", "1", str(one), code=1)
    assert "no job 99" in refused("priority", "99", code=1)


def test_a_reader_that_leaves_is_no_error():
    queued("--cpu", "true")
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [PROGRAM, "status", "--json"], stdout=write, stderr=subprocess.PIPE, check=False
    )
    os.close(write)
    assert done.stderr == b""
    assert done.returncode == 141


def test_debug_shows_where_an_error_comes_from():
    assert "Traceback" in gq("--debug", "show", "99").stderr


def test_tab_knows_the_jobs():
    queued("--cpu", "--tag", "mine", "sleep", "60")
    env = os.environ | {
        "_GPUQUEUE_COMPLETE": "complete_bash", "COMP_WORDS": "gpuqueue wait ", "COMP_CWORD": "2",
    }  # fmt: skip
    assert gq(env=env).stdout.split() == ["1"]


def test_terminals_that_know_no_unicode_are_no_error():
    queued("--cpu", "--tag", "größe – ü", "true")
    env = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    with contextlib.suppress(UnicodeDecodeError):
        assert "gr" in ok("jobs", env=env)
    assert data("jobs")["jobs"][0]["tag"] == "größe – ü"


def test_usage_is_told_by_whatever_is_asked(client):
    number = queued("--share", "0.25", "--mem", "6G", "--tag", "mine", "sleep", "60")
    until(lambda: client.job(number).state is JobState.RUNNING)
    head, row = ok("usage", "--by", "tag").splitlines()
    assert head.split() == ["TAG", "GPU-H", "GIB-H", "HELD-H", "JOBS"]
    assert row.split()[0] == "mine"
    told = json.loads(ok("usage", "--since", "all", "--by", "job", "--json"))
    assert [(row["job"], row["name"], row["jobs"]) for row in told["rows"]] == [(number, "mine", 1)]
    assert 0 < told["rows"][0]["gpu_hours"] < told["rows"][0]["held_hours"]
    assert "owner, notebook, tag, agent, gpu, vendor, job" in refused("usage", "--by", "colour")
    assert "since" in refused("usage", "--since", "yesterday")
