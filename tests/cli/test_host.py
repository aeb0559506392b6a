"""The commands about the place itself, as a program; and ``doctor`` on what is broken."""

import json
import os
import re
import shutil
import tomllib

import pytest
from cli_program import gq, ok, queued, refused
from conftest import lead_process, until

import gpuqueue
from gpuqueue.client.doctor import checks
from gpuqueue.model import JobState
from gpuqueue.settings import load_settings


def test_version():
    assert ok("--version") == f"gpuqueue {gpuqueue.__version__}\n"


def test_config_with_no_file_shows_every_default(home):
    lines = ok("config").splitlines()
    assert lines[0] == f"# {home.config} (not there; all defaults)"
    shown = dict(line.split("  #")[0].split(" = ") for line in lines[1:])
    assert shown["packing"] == "true"
    assert shown["gpu_free_perc"] == "75"
    assert set(shown) == set(load_settings(home.config).as_dict())


def test_config_marks_what_comes_from_the_file(home):
    home.config.write_text('slots = 3\nlog_limit = "5M"\n')
    text = ok("config")
    assert "slots = 3  # from the file\n" in text
    assert "packing = true\n" in text
    shown = json.loads(ok("config", "--json"))
    assert shown["from_file"] == ["log_limit", "slots"]
    assert shown["settings"]["slots"] == 3
    assert shown["path"] == str(home.config)


def editor(tmp_path, line):
    path = tmp_path / "my editor"
    path.write_text(f"#!/bin/sh\necho '{line}' >> \"$1\"\n")
    path.chmod(0o755)
    return os.environ | {"VISUAL": f"'{path}'"}


def test_config_edit_is_seen_by_the_controller(home, client, tmp_path):
    queued("--cpu", "sleep", "60")
    ok("config", "--edit", env=editor(tmp_path, "slots = 3"))
    assert "slots = 3  # from the file" in ok("config")
    assert "# packing = true" in home.config.read_text()  # it was explained first
    until(lambda: json.loads(ok("status", "--json"))["slots"]["total"] == 3)


def test_config_edit_says_what_is_wrong(home, tmp_path):
    assert "no such setting" in refused("config", "--edit", env=editor(tmp_path, "slotz = 3"))
    assert "slotz" in refused("config")
    env = os.environ | {"VISUAL": "no-such-editor-here"}
    assert "cannot be started" in refused("config", "--edit", env=env)


def test_init_writes_once(home):
    text = ok("init")
    assert f"wrote {home.config}" in text
    assert "GPU 1: Pretend GPU, 24G, FAKE-1" in text
    written = home.config.read_text()
    assert tomllib.loads(written) == {}
    for line in ("GPU 0: Pretend GPU, 24G", "GPU 1: Pretend GPU, 24G", "# slots = 4"):
        assert line in written
    assert "# gpus = [0, 1]" in written
    # what it says of this machine can be used as it stands
    home.config.write_text(written.replace("# slots", "slots").replace("# gpus =", "gpus ="))
    assert load_settings(home.config).gpus == [0, 1]
    before = home.config.read_bytes()
    assert "was not changed" in ok("init")
    assert home.config.read_bytes() == before


def test_stop_ends_the_controller_and_no_job(home, client):
    number = queued("sleep", "60")
    queued("--exclusive", "true")
    until(lambda: client.job(number).state is JobState.RUNNING)
    process = lead_process(home)
    text = ok("stop")
    assert f"the controller (pid {process.pid}) has ended" in text
    assert "1 running job goes on" in text
    assert "1 job waits until a controller runs again" in text
    assert lead_process(home) is None
    assert ok("stop") == "no controller runs\n"
    assert os.kill(client.job(number).process.pid, 0) is None
    assert "controller: none running" in ok("status")


def test_stop_with_numbers_is_cancel(home, client):
    one, other = queued("sleep", "600"), queued("sleep", "600")
    until(lambda: all(client.job(n).state is JobState.RUNNING for n in (one, other)))
    # how far it has got by then is the machine's affair
    told = re.compile(r"job \d+ (is cancelled|was asked to end; what is left of it .*)\n")
    assert told.fullmatch(ok("stop", str(one)))
    assert told.fullmatch(ok("cancel", str(other)))
    kinds = []
    for number in (one, other):
        ended = client.wait(number, 60)
        events = client.store.events(job_id=number)
        kinds.append([event.kind for event in events if event.kind != "code"])
        assert (ended.state, ended.returncode) == (JobState.CANCELLED, -15)
    assert kinds[0] == kinds[1]
    assert lead_process(home)  # the controller goes on


def test_stop_leaves_a_jupyter_server_alone(home, client):
    fact = {"pid": os.getpid(), "kind": "jupyter", "leading": True, "version": "x", "since": 0}
    from gpuqueue.run.process import identify

    me = identify(os.getpid())
    client.store.set_fact("lead", fact | {"start": me.start, "boot": me.boot, "url": ""})
    assert f"Jupyter server with pid {os.getpid()}" in refused("stop", code=1)
    client.store.set_fact("lead", None)


def test_doctor_on_a_sound_place(home):
    queued("--cpu", "true")
    until(lambda: lead_process(home))
    shown = json.loads(ok("doctor", "--json"))
    assert shown["ok"] is True
    by_name = {check["name"]: check for check in shown["checks"]}
    assert all(check["ok"] is not False for check in shown["checks"])
    for name in (
        "python", "settings", "state directory", "disk space", "database", "job directories",
        "controller", "doorbell", "gpus", "slots", "runner", "ipykernel", "privileges",
    ):  # fmt: skip
        assert by_name[name]["ok"] is True, by_name[name]
    assert "2 in use" in by_name["gpus"]["sentence"]
    assert ok("doctor").count("\n") >= len(shown["checks"])
    # it leaves nothing behind
    assert [path.name for path in home.root.iterdir() if path.name.startswith(".")] == []


def failed(home):
    return {check.name: check for check in checks(home) if check.ok is False}


def warned(home):
    return {check.name: check for check in checks(home) if check.ok is None}


def test_doctor_names_what_is_broken_and_the_remedy(home, client, monkeypatch):
    assert failed(home) == {}
    client.close()
    home.config.write_text("slots = many\n")
    assert "not valid TOML" in failed(home)["settings"].sentence
    done = gq("doctor")
    assert done.returncode == 1
    assert "FAILED   settings" in done.stdout
    assert "ok       runner" in done.stdout  # one that fails does not hide the others
    home.config.write_text("gpus = [7]\n")
    assert "leaves none" in failed(home)["gpus"].sentence
    home.config.unlink()

    old = home.jobs / ".new-1-2-3"
    old.mkdir()
    os.utime(old, (1, 1))
    assert warned(home)["job directories"].fix.startswith("rm -r ")
    number = queued("--cpu", "true")
    assert number == 1
    shutil.rmtree(home.jobs)
    assert failed(home)["job directories"].fix.startswith("mkdir ")


def test_doctor_with_no_gpu_warns(home, monkeypatch):
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", "none")
    assert "turned off" in warned(home)["gpus"].sentence
    assert failed(home) == {}


def test_doctor_where_no_state_can_be(tmp_path, monkeypatch):
    from gpuqueue import paths

    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("GPUQUEUE_HOME", str(blocked / "home"))
    paths._checked.clear()
    found = {check.name: check for check in checks()}
    assert found["state directory"].ok is False
    assert found["ipykernel"].ok is True
    assert "cannot be created" in refused("status", code=1)


def test_doctor_where_no_runner_can_start(home, monkeypatch):
    from gpuqueue.control import launch

    monkeypatch.setattr(launch, "python_command", lambda _: ["false"])
    monkeypatch.setattr("gpuqueue.client.doctor.machine._PATIENCE", 0.3)
    assert "runner" in failed(home)


@pytest.mark.parametrize(("value", "word"), [("0", "turned off"), ("1", "next submit starts one")])
def test_doctor_tells_whether_a_controller_will_come(home, monkeypatch, value, word):
    monkeypatch.setenv("GPUQUEUE_AUTOSTART", value)
    assert word in next(c.sentence for c in checks(home) if c.name == "controller")
