"""Every address of the REST interface, as a client uses it."""

import json
import os
import signal
import sys
import urllib.parse
from pathlib import Path

import nbformat
import pytest
from conftest import until
from gpuqueue_jupyter.handlers import API
from IPython.core.interactiveshell import InteractiveShell
from server_fixtures import *  # noqa: F403
from server_fixtures import SPEC_FILE, Rest
from typer.testing import CliRunner

import gpuqueue
from gpuqueue.cli.app import app
from gpuqueue.client import LocalClient
from gpuqueue.model import JobKind
from gpuqueue.paths import Home
from gpuqueue.run.files import OUTPUTS


def test_status_shows_gpus_queue_and_who_leads(rest: Rest) -> None:
    rest.spin(lambda: rest.get("/status").json["server"]["leading"])
    status = rest.get("/status").json
    assert [gpu["index"] for gpu in status["gpus"]] == [0, 1]
    assert status["lead"]["pid"] == os.getpid()
    assert status["lead"]["kind"] == "jupyter"
    assert status["counts"] == {"running": 0, "waiting": 0, "notebooks": 0}


def test_a_job_gets_another_size_as_it_runs(rest: Rest) -> None:
    job = rest.submit("sleep 60", options={"share": 0.25, "mem": "6G"})["id"]
    rest.until_state(job, "running")
    answer = rest.post(f"/jobs/{job}/resize", {"share": "0.5", "mem": "20G"})
    assert answer.status == 200
    assert answer.json["applied"] == {"share": "admitted only", "mem": "admitted only"}
    assert answer.json["job"]["resized"] == {"share": 500, "memory": 20 * 2**30}
    assert answer.json["job"]["placement"]["grants"][0]["compute"] == 500
    beside = rest.submit("sleep 60", options={"share": 0.5, "mem": "1G"})["id"]
    rest.until_state(beside, "running")
    refused = rest.post(f"/jobs/{job}/resize", {"share": 0.75})
    assert refused.status == 409
    assert "0.5 that it holds included" in refused.json["message"]
    assert rest.job(job)["placement"]["grants"][0]["compute"] == 500
    for body, field in (({}, "share"), ({"mem": "much"}, "mem"), ({"size": 1}, "size")):
        refused = rest.post(f"/jobs/{job}/resize", body)
        assert (refused.status, refused.json["field"]) == (400, field)
    assert rest.post(f"/jobs/{job}/resize", {"mem": "99G"}).status == 400
    assert rest.post("/jobs/99/resize", {"share": 1}).status == 404


def test_usage_by_owner_and_other_keys(rest: Rest) -> None:
    job = rest.submit("sleep 60", options={"share": 0.5, "tag": "mine"})["id"]
    rest.until_state(job, "running")
    answer = rest.get("/usage", since="1h", by="tag")
    assert answer.status == 200
    (row,) = answer.json["rows"]
    assert (row["tag"], row["jobs"]) == ("mine", 1)
    assert row["gpu_hours"] == pytest.approx(row["held_hours"] / 2)
    assert answer.json["total"] == {name: row[name] for name in answer.json["total"]}
    assert rest.get("/usage").json["by"] == "owner"
    assert rest.get("/usage", by="colour").json["field"] == "by"
    assert rest.get("/usage", since="soon").json["field"] == "since"
    assert rest.get("/usage", of="me").status == 400


def test_status_lists_no_more_than_asked_but_counts_all(rest: Rest) -> None:
    jobs = [rest.submit("sleep 60", options={"preset": "exclusive"}) for _ in range(5)]
    rest.until_state(jobs[0]["id"], "running")
    status = rest.get("/status", limit=2).json
    assert status["counts"] == {"running": 1, "waiting": 4, "notebooks": 0}
    assert len(status["waiting"]) == 2
    assert status["waiting"][0]["wait"]["sentence"]


def test_a_command_runs_and_tells_its_end(rest: Rest) -> None:
    job = rest.submit([sys.executable, "-c", "print('hé')\nraise SystemExit(3)"])
    ended = rest.ended(job["id"])
    assert (ended["state"], ended["returncode"]) == ("failed", 3)
    assert ended["origin"]["kind"] == "rest"
    assert rest.get(f"/jobs/{job['id']}/log").json["text"] == "hé\n"


def test_a_new_job_has_an_address(rest: Rest) -> None:
    answer = rest.post("/jobs", {"command": "true"})
    address = urllib.parse.urljoin(f"{rest.base}{API}/jobs", answer.headers["Location"])
    headers = {"Authorization": f"token {rest.token}"}
    found = rest.fetch("GET", address, headers=headers)
    assert json.loads(found.body)["id"] == answer.json["id"]


def test_what_to_know_of_a_job_is_told_with_it(rest: Rest, home: Home) -> None:
    home.config.write_text("grace = 30\n")
    asked = {"command": 'echo 40 > "$GPUQUEUE_ATTEMPT_DIR/saved"'}
    first = rest.post("/jobs", asked)
    assert first.json["warnings"] == []
    rest.ended(first.json["id"])
    (said,) = rest.post("/jobs", asked).json["warnings"]
    assert "took 40s (job 1), and a cancel leaves it 30s (grace)" in said


def test_the_same_key_gives_the_same_job(rest: Rest) -> None:
    asked = {"command": "sleep 60", "options": {"key": "nightly"}}
    first, second = rest.post("/jobs", asked), rest.post("/jobs", asked)
    assert (first.status, second.status) == (201, 200)
    assert first.json["id"] == second.json["id"]


def test_a_relative_directory_is_below_the_servers(rest: Rest, jp_root_dir) -> None:
    (jp_root_dir / "a b").mkdir()
    job = rest.submit("pwd", cwd="a b")
    assert job["cwd"] == str(jp_root_dir / "a b")
    rest.ended(job["id"])
    assert rest.get(f"/jobs/{job['id']}/log").json["text"] == f"{jp_root_dir}/a b\n"


def test_the_path_of_a_script_runs_it(rest: Rest, jp_root_dir) -> None:
    (jp_root_dir / "say.py").write_text("print('said')")
    job = rest.submit("say.py")
    assert rest.ended(job["id"])["state"] == "succeeded"
    assert rest.get(f"/jobs/{job['id']}/log").json["text"] == "said\n"


def test_a_notebook_takes_parameters(rest: Rest, jp_root_dir) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("x = 1")])
    nbformat.write(notebook, jp_root_dir / "run.ipynb")
    job = rest.submit("run.ipynb", parameters={"x": 2})
    assert job["kind"] == "notebook"


def test_variables_reach_the_job_and_no_answer(rest: Rest) -> None:
    job = rest.submit('test "$SECRET" = hunter2', env={"SECRET": "hunter2"})
    assert rest.ended(job["id"])["state"] == "succeeded"
    told = [
        rest.get("/status"), rest.get("/jobs"), rest.get(f"/jobs/{job['id']}/events"),
        rest.get("/settings"), rest.get(f"/jobs/{job['id']}"),
    ]  # fmt: skip
    # the command itself is the user's own text and is shown
    assert all(b'"SECRET"' not in answer.content for answer in told)
    assert all(answer.content.count(b"hunter2") <= 1 for answer in told)
    assert all(rest.token.encode() not in answer.content for answer in told)


def test_jobs_come_in_pages_and_by_state(rest: Rest) -> None:
    ids = [rest.submit("true", options={"preset": "cpu"})["id"] for _ in range(5)]
    for job_id in ids:
        rest.ended(job_id)
    page = rest.get("/jobs", limit=2).json
    assert [job["id"] for job in page["jobs"]] == ids[:-3:-1]
    page = rest.get("/jobs", limit=3, before=page["next"]).json
    assert [job["id"] for job in page["jobs"]] == ids[2::-1]
    rest_of = rest.get("/jobs", before=ids[0]).json
    assert rest_of == {"jobs": [], "next": None}
    assert rest.get("/jobs", state="queued,running").json["jobs"] == []
    assert len(rest.get("/jobs", state="succeeded").json["jobs"]) == 5
    assert rest.get("/jobs", owner="nobody at all").json["jobs"] == []


def test_a_log_is_read_in_parts_between_characters(rest: Rest) -> None:
    job = rest.submit([sys.executable, "-c", "print('ä€😀' * 50, end='')"])
    rest.ended(job["id"])
    text, offset, ended = "", 0, False
    while not ended:
        part = rest.get(f"/jobs/{job['id']}/log", offset=offset, limit=7).json
        assert part["next"] > offset or part["ended"]
        text, offset, ended = text + part["text"], part["next"], part["ended"]
    assert text == "ä€😀" * 50


def test_a_log_that_is_not_text_still_ends(rest: Rest) -> None:
    job = rest.submit(["printf", r"a\377b\360\237"])
    rest.ended(job["id"])
    part = rest.get(f"/jobs/{job['id']}/log").json
    assert part["text"] == "a\ufffdb\ufffd"
    assert part["ended"]
    plain = rest.get(f"/jobs/{job['id']}/log", format="text")
    assert plain.content == b"a\xffb\xf0\x9f"
    assert plain.headers["X-Gpuqueue-Next"] == "5"


def test_the_last_lines_of_a_log(rest: Rest) -> None:
    job = rest.submit("seq 1000")
    rest.ended(job["id"])
    part = rest.get(f"/jobs/{job['id']}/log", lines=2).json
    assert part["text"] == "999\n1000\n"
    assert part["next"] == part["size"]
    assert part["offset"] == part["size"] - len("999\n1000\n")
    assert rest.get(f"/jobs/{job['id']}/log", lines=0).json["text"] == ""
    plain = rest.get(f"/jobs/{job['id']}/log", lines=1, format="text")
    assert plain.content == b"1000\n"


def test_a_log_goes_on_while_the_job_runs(rest: Rest, tmp_path) -> None:
    gate = tmp_path / "gate"
    job = rest.submit(f"echo one; while ! test -e '{gate}'; do sleep 0.05; done; echo two")
    address = f"/jobs/{job['id']}/log"
    rest.spin(lambda: rest.get(address).json["text"] == "one\n")
    part = rest.get(address).json
    assert not part["ended"]
    gate.touch()
    rest.ended(job["id"])
    assert rest.get(address, offset=part["next"]).json["text"] == "two\n"


def test_the_outputs_of_a_cell(rest: Rest, home: Home, client: LocalClient) -> None:
    job = rest.submit("true")
    rest.ended(job["id"])
    with client.store.transaction() as db:
        db.execute("UPDATE jobs SET kind = ? WHERE id = ?", (str(JobKind.CELL), job["id"]))
    address = f"/jobs/{job['id']}/outputs"
    assert rest.get(address).json["outputs"] == []
    outputs = [{"output_type": "stream", "name": "stdout", "text": f"{n}\n"} for n in range(3)]
    lines = [json.dumps(output) + "\n" for output in outputs]
    file = home.attempt(job["id"], 1) / OUTPUTS
    file.write_text("".join(lines) + '{"cut')
    answer = rest.get(address).json
    assert answer["outputs"] == outputs
    assert rest.get(address, offset=len(lines[0])).json["outputs"] == outputs[1:]
    large = {"output_type": "stream", "name": "stdout", "text": "x" * (3 << 20)}
    file.write_text(json.dumps(large) + "\n" + lines[0])
    answer = rest.get(address).json
    assert answer["outputs"][0] == large
    assert rest.get(address, offset=len(json.dumps(large)) + 1).json["ended"]


def test_only_a_cell_has_outputs(rest: Rest) -> None:
    job = rest.submit("true")
    answer = rest.get(f"/jobs/{job['id']}/outputs")
    assert answer.status == 409
    assert "log" in answer.json["message"]


def test_the_events_of_a_job(rest: Rest) -> None:
    job = rest.submit("true")
    rest.ended(job["id"])
    events = rest.get(f"/jobs/{job['id']}/events").json
    assert next(event["kind"] for event in events["events"]) == "submitted"
    assert events["events"][-1]["data"]["state"] == "succeeded"
    later = rest.get(f"/jobs/{job['id']}/events", since=events["next"]).json
    assert later == {"events": [], "next": events["next"]}
    assert len(rest.get(f"/jobs/{job['id']}/events", limit=1).json["events"]) == 1


def test_cancel_ends_a_waiting_and_a_running_job(rest: Rest) -> None:
    running = rest.submit("sleep 600", options={"preset": "exclusive"})["id"]
    waiting = rest.submit("sleep 600", options={"preset": "exclusive"})["id"]
    rest.until_state(running, "running")
    assert rest.post(f"/jobs/{waiting}/cancel").json["state"] == "cancelled"
    assert rest.post(f"/jobs/{running}/cancel", {}).status == 200
    assert rest.ended(running)["state"] == "cancelled"
    assert rest.post(f"/jobs/{running}/cancel").status == 409


def test_interrupt_is_as_control_c(rest: Rest) -> None:
    code = "print('up', flush=True)\ntry:\n import time; time.sleep(600)\n"
    job = rest.submit(
        [sys.executable, "-c", code + "except KeyboardInterrupt:\n raise SystemExit(5)"]
    )["id"]
    rest.spin(lambda: rest.get(f"/jobs/{job}/log").json["text"])
    assert rest.post(f"/jobs/{job}/interrupt").status == 200
    assert rest.ended(job)["returncode"] == 5


def test_retry_queues_a_copy(rest: Rest) -> None:
    first = rest.submit("exit 2", options={"tag": "again"})["id"]
    assert rest.post(f"/jobs/{first}/retry").status in (201, 409)
    rest.ended(first)
    second = rest.post(f"/jobs/{first}/retry", {"priority": True})
    assert second.status == 201
    assert (second.json["retry_of"], second.json["tag"]) == (first, "again")
    assert rest.ended(second.json["id"])["returncode"] == 2


def test_retry_of_a_job_that_runs_is_refused(rest: Rest) -> None:
    job = rest.submit("sleep 600")["id"]
    assert rest.post(f"/jobs/{job}/retry").status == 409


@pytest.fixture
def waiting(rest: Rest) -> list[int]:
    """Three jobs that wait behind one that runs."""
    first = rest.submit("sleep 600", options={"preset": "exclusive"})["id"]
    rest.until_state(first, "running")
    return [rest.submit("true", options={"preset": "exclusive"})["id"] for _ in range(3)]


def _order(rest: Rest) -> list[int]:
    return [job["id"] for job in rest.get("/status").json["waiting"]]


def test_priority_moves_a_job(rest: Rest, waiting: list[int]) -> None:
    one, two, three = waiting
    assert rest.post(f"/jobs/{three}/priority").status == 200
    assert _order(rest) == [three, one, two]
    assert rest.post(f"/jobs/{three}/priority", {"value": -1}).status == 200
    assert _order(rest) == [one, two, three]


def test_swap_exchanges_two(rest: Rest, waiting: list[int]) -> None:
    one, two, three = waiting
    answer = rest.post("/swap", {"jobs": [one, three]})
    assert [job["id"] for job in answer.json["jobs"]] == [one, three]
    assert _order(rest) == [three, two, one]


def test_swap_with_a_job_that_runs_is_refused(rest: Rest, waiting: list[int]) -> None:
    assert rest.post("/swap", {"jobs": [waiting[0], waiting[0] - 1]}).status == 409


def test_gpus_show_what_is_promised(rest: Rest) -> None:
    job = rest.submit("sleep 600", options={"gpus": 1})["id"]
    rest.until_state(job, "running")
    gpus = rest.get("/gpus").json["gpus"]
    assert [grant["job"] for gpu in gpus for grant in gpu["grants"]] == [job]
    assert sorted(gpu["compute_promised"] for gpu in gpus) == [0, 1000]


def test_settings_explain_themselves(rest: Rest, home: Home) -> None:
    home.config.write_text("slots = 3\n")
    told = rest.get("/settings").json
    assert told["settings"]["slots"] == 3
    assert all(told["help"].values())
    home.config.write_text("slots = 'many'\n")
    until(lambda: rest.get("/settings").json["warning"])
    assert rest.get("/settings").json["settings"]["slots"] == 3


def test_the_doctor_answers(rest: Rest) -> None:
    found = rest.get("/doctor").json
    assert {"python", "database"} <= {check["name"] for check in found["checks"]}


def test_the_description_is_served(rest: Rest) -> None:
    assert rest.get("/openapi.yaml").content == SPEC_FILE.read_bytes()


def test_what_is_polled_is_no_activity(rest: Rest, jp_web_app) -> None:
    jp_web_app.settings.pop("api_last_activity", None)
    job = rest.submit("sleep 600")["id"]
    before = jp_web_app.settings.pop("api_last_activity")
    assert before
    for path in ("/status", "/jobs", f"/jobs/{job}", f"/jobs/{job}/log", "/gpus"):
        rest.get(path)
    assert "api_last_activity" not in jp_web_app.settings


def test_kernels_of_this_server_find_the_same_state(
    monkeypatch, home: Home, jp_asyncio_loop
) -> None:
    import logging

    from gpuqueue_jupyter.host import Host

    monkeypatch.setenv("XDG_STATE_HOME", str(home.root.parent / "xdg"))
    monkeypatch.delenv("GPUQUEUE_HOME")
    host = Host(logging.getLogger(), lambda _notices: None)
    jp_asyncio_loop.run_until_complete(host.open())
    assert os.environ["GPUQUEUE_HOME"] == str(host.client.home.root)
    jp_asyncio_loop.run_until_complete(host.close())
    assert "GPUQUEUE_HOME" not in os.environ


def test_a_hang_up_stops_the_server(extension, monkeypatch) -> None:
    stopped = []
    monkeypatch.setattr(extension.serverapp, "stop", lambda **how: stopped.append(how))
    os.kill(os.getpid(), signal.SIGHUP)
    until(lambda: stopped)
    assert stopped == [{"from_signal": True}]


def test_a_job_is_the_same_however_it_is_submitted(
    rest: Rest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By REST, Python, the command line and a magic: all but where it came from."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    options = {"gpus": 1, "mem": "2G", "eta": "40m", "tag": "a", "priority": 3, "restartable": True}
    command = ["python3", "train.py", "--lr", "0.1"]
    by_rest = rest.submit(command, options=options, cwd=str(tmp_path))
    by_python = gpuqueue.submit(command, **options)
    words = ["--gpus", "1", "--mem", "2G", "--eta", "40m", "--tag", "a", "--priority", "3"]
    done = CliRunner().invoke(app, ["submit", "--json", *words, "--restartable", "--", *command])
    assert done.exit_code == 0, done.output
    own = ["id", "origin", "submitted", "position", "started", "ended", "pid"]
    own += ["placement", "expected", "latest"]
    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "gpuqueue")
    line = " ".join(["submit", *words, "--restartable", *command])
    by_magic = shell.run_line_magic("gpu", line)
    numbers = [by_rest["id"], by_python.id, json.loads(done.stdout)["id"], by_magic.id]
    jobs = [rest.ended(number) for number in numbers]
    told = [{name: job[name] for name in job if name not in own} for job in jobs]
    assert all(each == told[0] for each in told)
    assert told[0]["request"]["memory"] == 2 * 2**30
