"""What the command line says, from frozen facts and at a frozen time."""

import subprocess
import sys
import time
from dataclasses import replace

import pytest
from typer.testing import CliRunner

import gpuqueue
from gpuqueue.cli.app import app
from gpuqueue.cli.text import (
    ended_text,
    gpu_table,
    job_table,
    meaning,
    one_line,
    show_text,
    submission_text,
)
from gpuqueue.cli.words import exit_code
from gpuqueue.client.status import Status, render
from gpuqueue.control.machine import Machine
from gpuqueue.model import (
    WHOLE,
    Gpu,
    Grant,
    Job,
    JobKind,
    JobState,
    Origin,
    Placement,
    Preset,
    Reading,
    Request,
)
from gpuqueue.plan import Policy, Wait, WaitReason, need_of
from gpuqueue.store import job_to_dict
from gpuqueue.units import format_duration

NOW = 1_700_000_000.0  # 22:13:20 in UTC
GIB = 1024**3
GPUS = tuple(Gpu(f"FAKE-{i}", i, "A100", 80 * GIB, fake=True) for i in range(2))
POLICY = Policy(4, "FAKE-1")
JOB = Job(
    id=12,
    kind=JobKind.SCRIPT,
    state=JobState.QUEUED,
    request=Request(),
    tag="train",
    owner="alice",
    command="python train.py",
    cwd="/data",
    origin=Origin("terminal", "", "pts/3"),
    submitted=NOW - 60,
    position=12,
)
RAN = replace(JOB, started=NOW - 50, ended=NOW - 10, attempt=1)


@pytest.fixture(autouse=True)
def _utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def said(job=JOB, **facts):
    need = need_of(job.request, GPUS, POLICY)
    return submission_text(job, need, now=NOW, program="gpuqueue", **facts).split("\n")


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request(), "1 whole GPU, 2 slots"),
        (Request(preset=Preset.TWO), "2 whole GPUs, 2 slots"),
        (Request(preset=Preset.CPU), "no GPU, 1 slot"),
        (Request(preset=Preset.LIGHT), "light work on the shared GPU, 1 slot"),
        (Request(preset=Preset.EXCLUSIVE), "the whole machine, alone: 2 GPUs, 4 slots"),
        (Request(share=250), "0.25 of the compute of 1 GPU, 1 slot"),
        (Request(memory=6 * GIB), "6G of the memory of 1 GPU, 1 slot"),
        (
            Request(gpus=2, share=250, memory=6 * GIB),
            "0.25 of the compute and 6G of the memory of each of 2 GPUs, 1 slot",
        ),
    ],
)
def test_what_a_request_means_here(request_, words):
    assert meaning(request_, need_of(request_, GPUS, POLICY)) == words


def test_a_submit_that_starts():
    assert said(replace(JOB, state=JobState.STARTING), gpus="GPU 0") == [
        "job 12  train  1 whole GPU, 2 slots",
        "starts now on GPU 0",
        "log: gpuqueue logs -f 12",
    ]
    wait = Wait(1, NOW, WaitReason.STARTING, "starts now on GPU 0")
    assert said(wait=wait, waiting=1)[1] == "starts now on GPU 0"


def test_a_submit_that_waits():
    sentence = "waits for a free GPU: GPU 0 is held by job 3 (eval, bob)"
    wait = Wait(2, NOW + 2400, WaitReason.GPU, sentence, "with --mem, up to 40G, it could share")
    assert said(wait=wait, waiting=3) == [
        "job 12  train  1 whole GPU, 2 slots",
        "position 2 of 3, expected to start in 40m (22:53)",
        f"why: {sentence}",
        "hint: with --mem, up to 40G, it could share",
        "log: gpuqueue logs -f 12",
    ]
    tomorrow = replace(wait, expected=NOW + 86400 * 1.5, hint="")
    assert said(wait=tomorrow, waiting=3)[1].endswith("in 1d 12h (Thu 16 Nov 10:13)")
    unknown = replace(wait, expected=None)
    assert said(wait=unknown, waiting=3)[1] == (
        "position 2 of 3, nobody can tell yet when it starts"
    )


def test_a_submit_with_no_controller_or_no_future():
    assert said(absent="no controller runs")[1] == "no controller runs"
    assert said(dropped="job 3 failed")[1] == "will be cancelled: job 3 failed"


def test_a_submit_with_a_key_that_is_known():
    done = replace(RAN, state=JobState.SUCCEEDED, returncode=0)
    assert said(done, seen_before=True)[1:] == [
        "the same key was given to this job before; it is succeeded",
        "log: gpuqueue logs 12",
    ]


@pytest.mark.parametrize(
    ("state", "returncode", "code"),
    [
        (JobState.SUCCEEDED, 0, 0),
        (JobState.FAILED, 7, 7),
        (JobState.FAILED, -15, 143),
        (JobState.FAILED, -9, 137),
        (JobState.FAILED, None, 125),  # lost: nobody knows
        (JobState.CANCELLED, None, 130),  # never ran
        (JobState.CANCELLED, -15, 143),
        (JobState.CANCELLED, 0, 130),  # a cancelled job is no success, whatever it says
        (JobState.CANCELLED, 3, 3),
    ],
)
def test_exit_codes_mirror_the_job(state, returncode, code):
    assert exit_code(replace(RAN, state=state, returncode=returncode)) == code


def test_how_a_job_ended():
    assert ended_text(replace(RAN, state=JobState.FAILED, reason="exit code 7")) == (
        "failed: exit code 7"
    )
    waited = replace(JOB, state=JobState.CANCELLED, reason="cancelled while it waited")
    assert ended_text(waited) == "was cancelled while it waited"
    assert ended_text(replace(RAN, state=JobState.SUCCEEDED)) == "succeeded"


def test_nothing_in_a_line_acts_on_the_terminal():
    assert one_line("a\tb\n\x1b[2Jc\x07") == "a b \\x1b[2Jc\\x07"
    assert one_line("Ü – ü") == "Ü – ü"
    assert one_line("x" * 30, 10) == "x" * 9 + "…"


def test_the_list_of_jobs():
    jobs = [JOB, replace(RAN, id=3, state=JobState.FAILED, returncode=-9, command="sh\n-c x")]
    assert ["  ".join(row) for row in job_table(jobs, NOW)] == [
        "ID  STATE   TAG    KIND    OWNER  SUBMITTED  TOOK  CODE  COMMAND",
        "12  queued  train  script  alice  22:12      -     -     python train.py",
        "3   failed  train  script  alice  22:12      40s   -9    sh -c x",
    ]


def test_all_about_a_job():
    view = {
        "id": 12, "kind": "script", "state": "failed", "tag": "train", "owner": "alice",
        "command": "python train.py", "cwd": "/data",
        "origin": {"kind": "terminal", "path": "", "session": "pts/3"},
        "request": {
            "preset": "one", "gpus": None, "share": 250, "memory": 6 * GIB, "slots": None,
            "eta": 2400.0, "priority": 3, "after": [4, 5], "restartable": True,
        },
        "submitted": NOW - 60, "started": NOW - 50, "ended": NOW - 10, "returncode": 7,
        "reason": "exit code 7", "attempt": 1, "pid": None, "key": None, "retry_of": 9,
        "peak": 7 * GIB, "learned": None, "learned_memory": None, "lacked": None, "excess": GIB,
        "frozen": 0.0, "frozen_at": None,
        "placement": {
            "grants": [{"gpu": "FAKE-0", "compute": 250, "memory": 6 * GIB, "whole": False}],
            "slots": 1,
        },
        "gpus": [{"index": 0, "name": "A100", "uuid": "FAKE-0"}],
        "wait": None,
        "environment": {"changed": ["PATH"], "added": ["LR", "SEED"], "removed": []},
        "directory": "/home/a/12", "log": "/home/a/12/1/log",
        "events": [{"seq": 1, "at": NOW - 60, "kind": "submitted", "data": {}}],
    }  # fmt: skip
    assert show_text(view, NOW).split("\n") == [
        "job 12  train  script  failed",
        "  command      python train.py",
        "  runs in      /data",
        "  asked for    one, share 0.25, mem 6G, eta 40m, priority 3, after 4,5, restartable",
        "  from         alice, terminal pts/3",
        "  retry of     job 9",
        "  submitted    2023-11-14 22:12:20",
        "  started      2023-11-14 22:12:30",
        "  ended        2023-11-14 22:13:10",
        "  took         40s",
        "  exit code    7",
        "  reason       exit code 7",
        "  GPU memory   at most 7G on one GPU, 1G over its --mem",
        "  GPUs         GPU 0 (A100), 0.25 of its compute, 6G; 1 slot",
        "  environment  other values than here for PATH; not set here: LR, SEED",
        "  files        /home/a/12",
        "  log          /home/a/12/1/log",
        "  events",
        "    2023-11-14 22:12:20  submitted",
    ]


@pytest.mark.parametrize(
    "times",
    [
        {"ended": NOW - 10},
        {"ended": NOW, "frozen": 10.0},
        {"frozen": 8.0, "frozen_at": NOW - 2},
        {"ended": NOW - 1, "frozen_at": NOW - 10},
    ],
)
def test_time_frozen_is_no_time_taken(times):
    job = replace(RAN, started=NOW - 50, ended=None)
    job = replace(job, **times)
    view = job_to_dict(job) | {
        "wait": None, "gpus": [], "environment": None, "directory": "/d", "log": "/l", "events": [],
    }  # fmt: skip
    took = f"  took         {format_duration(job.ran(NOW))}"
    assert took in show_text(view, NOW).split("\n")
    assert job.ran(NOW) == 40


@pytest.mark.parametrize(
    ("known", "rows"),
    [
        ({"peak": None}, []),
        ({"peak": 7 * GIB, "excess": 0}, ["  GPU memory   at most 7G on one GPU"]),
        (
            {"peak": None, "learned_memory": 6 * GIB},
            ["  may need     6G, by earlier runs of this command"],
        ),
        (
            {"peak": 7 * GIB, "learned_memory": 24 * GIB, "lacked": 6 * GIB},
            ["  GPU memory   at most 7G on one GPU", "  ran out of   6G; ran once more with all"],
        ),
    ],
)
def test_what_is_known_of_its_memory(known, rows):
    view = job_to_dict(JOB) | {
        "wait": None, "gpus": [], "environment": None, "directory": "/d", "log": "/l", "events": [],
    } | known  # fmt: skip
    lines = show_text(view, NOW).split("\n")
    words = ("  GPU memory", "  may need", "  ran out of")
    assert [line for line in lines if line.startswith(words)] == rows


def test_status_marks_the_shared_gpu_and_says_why_jobs_wait():
    def running(number, tag, *grants):
        return replace(
            JOB, id=number, tag=tag, state=JobState.RUNNING, started=NOW - 60,
            request=Request(eta=600.0), placement=Placement(grants, 1),
        )  # fmt: skip

    part = Grant("FAKE-1", 250, 6 * GIB)
    status = Status(
        at=NOW,
        lead={"pid": 77, "kind": "headless"},
        home="/h",
        machine=Machine(GPUS, tuple(Reading(gpu.uuid, 2 * GIB) for gpu in GPUS), {}),
        managed=GPUS,
        slots=4,
        shared_gpu="FAKE-1",
        running=(
            running(1, "one", Grant("FAKE-0", WHOLE, 80 * GIB, whole=True)),
            running(2, "a", part),
            running(3, "b", part),
        ),
        waiting=(JOB,),
        recent=(replace(RAN, id=9, state=JobState.FAILED, reason="exit code 7"),),
        waits={12: Wait(1, NOW + 540, WaitReason.GPU, "waits for a free GPU")},
        settings={},
    )
    lines = render(status).split("\n")
    assert [line for line in lines if "(shared)" in line] == [lines[2]]
    assert lines[0] == "controller: headless, pid 77    slots: 3/4 used"
    assert "job 2 (a: 0.25 of its compute, 6G); job 3 (b: 0.25 of its compute, 6G)" in lines[2]
    assert any("in 9m (22:22): waits for a free GPU" in line for line in lines)
    assert any("failed 40s: exit code 7" in line for line in lines)


COMMANDS = [
    "submit", "status", "jobs", "show", "logs", "wait", "gpus", "cards", "usage", "ps", "top",
    "cancel", "retry", "priority", "swap", "resize", "release", "free", "resume", "drill",
    "verify", "drain", "undrain", "stop", "autostart", "doctor", "config", "init", "simulate",
    "kernelspec",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command):
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage:")
    assert "\x1b" not in result.stdout


def test_the_help_names_every_command_and_option():
    text = CliRunner().invoke(app, ["--help"]).stdout
    assert [line.split()[0] for line in text.split("Commands:")[1].strip().split("\n")] == [
        *COMMANDS[:23], "serve", "ui", *COMMANDS[23:],
    ]  # fmt: skip
    assert "..." not in text.split("Commands:")[1]  # each fits into its line
    text = CliRunner().invoke(app, ["submit", "--help"]).stdout
    names = "light one two exclusive cpu preset gpus share mem slots eta priority after tag key"
    for option in [*names.split(), "restartable", "no-wait", "cwd", "env", "follow", "json"]:
        assert f"--{option}" in text


def test_gpus_tell_what_is_left():
    def gpu(index, **more):
        return {
            "index": index, "name": "A", "uuid": f"G{index}", "memory": 24 * GIB, "reading": None,
            "grants": [], "compute_promised": 0, "memory_promised": 0, "outside": 0,
            "outside_holders": [], "drained": False, **more,
        }  # fmt: skip

    part = {"job": 1, "tag": "a", "whole": False}
    rows = gpu_table(
        [
            gpu(0),
            gpu(1, grants=[{**part, "whole": True}], compute_promised=1000),
            gpu(2, grants=[part], compute_promised=333, memory_promised=8 * GIB, outside=GIB),
            gpu(3, memory=None),
        ]
    )
    assert [row[3].strip() for row in rows] == ["LEFT", "100%, 24G", "nothing", "66%, 15G", "100%"]


def test_it_is_a_module_that_can_be_run():
    done = subprocess.run(
        [sys.executable, "-m", "gpuqueue", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().endswith(gpuqueue.__version__)
