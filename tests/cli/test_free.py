"""``free`` and ``resume``, as a program."""

import json
import os

import pytest
from cli_program import gq, ok, queued, refused
from conftest import until

from gpuqueue.model import JobState

pytestmark = pytest.mark.usefixtures("home")


def test_an_agent_is_refused_and_a_person_is_not(client):
    agent = {**os.environ, "CLAUDECODE": "1"}
    for verb in ("free", "resume"):
        assert "for the person at this machine" in refused(verb, code=3, env=agent)
    assert client.store.mode().normal
    job = queued("--tag", "long", "sleep", "600")
    until(lambda: client.job(job).state is JobState.RUNNING)
    told = ok("free", "--wait")
    assert told == (
        f"The GPUs are yours: job {job} is frozen where it is.\n"
        f"Job {job} (long) still holds memory of GPU 0; `jupyter gpuqueue cancel {job}` releases "
        "it.\n`jupyter gpuqueue resume` gives them back to the queue.\n"
    )
    assert ok("status").startswith("free mode since ")
    assert "free mode" in ok("show", str(queued("true")))
    told = json.loads(ok("resume", "--wait", "--json"))
    assert told["schema"] == 1
    assert told["mode"]["name"] == "normal"
    assert told["jobs"] == [{"id": job, "tag": "long", "does": "continue", "memory": None}]
    assert "free mode" not in ok("status")


def test_softly_and_with_an_end_to_the_waiting(client, home):
    home.config.write_text("grace = 600\n")
    stubborn = "trap '' TERM; echo up; while true; do sleep 0.1; done"
    job = queued("--restartable", "sh", "-c", stubborn)
    until(lambda: "up" in ok("logs", str(job)))
    done = gq("free", "--wait", "--timeout", "0.2s")
    assert done.returncode == 124
    assert "still stepping aside" in done.stderr
    until(lambda: "is stopped for free mode" in ok("status"))
    told = json.loads(ok("resume", "--wait", "--json"))
    assert told["mode"]["name"] == "normal"
    other = queued("sleep", "600")
    until(lambda: client.job(other).state is JobState.RUNNING)
    told = json.loads(ok("free", "--soft", "--wait", "--json"))
    assert (told["mode"]["soft"], client.job(other).state) == (True, JobState.FROZEN)
