"""``autostart``: the files that it writes, as those who read them understand them."""

from __future__ import annotations

import json
import os
import plistlib
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from cli_program import gq, ok
from conftest import lead_process, until

from gpuqueue.cli.autostart import launch_agent, login_item, systemd_unit
from gpuqueue.errors import NotSupportedHere
from gpuqueue.paths import Home

AWKWARD = [
    "/plain/python3",
    "/with space/ü/百分比 50%/py",
    '/quo"te/back\\slash/$HOME/%h/py',
]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "con fig – 5%"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    return folder / "systemd" / "user"


def words_of(text: str) -> list[str]:
    """A line's words as systemd.syntax(7) has them: quotes, escapes, then specifiers."""
    found = re.findall(r'"((?:[^"\\]|\\.)*)"', text)
    plain = [re.sub(r"\\(.)", r"\1", word) for word in found]
    assert not [word for word in plain if re.search(r"(?<!%)(?:%%)*%(?!%)", word)], plain
    return [word.replace("%%", "%") for word in plain]


def read_unit(text: str) -> tuple[list[str], dict[str, str]]:
    """The command and the environment of a unit, as systemd would use them."""
    values: dict[str, list[str]] = {}
    for line in text.splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            values.setdefault(name, []).append(value)
    (command,) = values["ExecStart"]
    program, *arguments = words_of(command)
    env = dict(words_of(line)[0].split("=", 1) for line in values.get("Environment", []))
    return [program, *(word.replace("$$", "$") for word in arguments)], env


@pytest.mark.parametrize("path", AWKWARD)
def test_a_unit_says_what_was_meant(path: str, tmp_path: Path) -> None:
    command, env = [path, "-c", "$x %n 'it'"], {"GPUQUEUE_HOME": path, "OTHER": "a=b"}
    text = systemd_unit(command, env, "lab1")
    assert read_unit(text) == (command, env)
    assert "\nConditionHost=lab1\n" in text
    assert "\nKillMode=process\n" in text  # jobs outlive the controller


def test_a_unit_is_one_that_systemd_accepts(tmp_path: Path) -> None:
    folder = tmp_path / "ünit 5% $HOME"
    folder.mkdir()
    program = folder / "python"
    program.symlink_to(sys.executable)
    unit = tmp_path / "gpuqueue-lab1.service"
    unit.write_text(systemd_unit([str(program), "-P"], {"GPUQUEUE_HOME": str(folder)}, "lab1"))
    assert read_unit(unit.read_text())[0][0] == str(program)
    if shutil.which("systemd-analyze") is None:
        return  # what it would read has been read by our own rules
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", str(unit)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "gpuqueue" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr


def test_on_and_off(home: Home, config: Path) -> None:
    assert ok("autostart").startswith("autostart: off\n")
    shown = json.loads(ok("autostart", "on", "--json"))
    unit = config / f"gpuqueue-{socket.gethostname()}.service"
    assert shown["path"] == str(unit)
    assert shown["on"] is shown["current"] is True
    link = config / "default.target.wants" / unit.name
    assert link.resolve() == unit.resolve()
    command, env = read_unit(unit.read_text())
    assert command == [sys.executable, "-P", "-m", "gpuqueue_jupyter"]
    assert env["GPUQUEUE_HOME"] == str(home.root)
    assert env["PATH"] == os.environ["PATH"]

    text = ok("autostart", "status")
    assert f"autostart: on, by {unit}\n" in text
    assert f"controller: none runs on {socket.gethostname()}\n" in text
    assert f"systemctl --user start {unit.name}" in text

    ok("autostart", "off")
    assert not unit.exists()
    assert not os.path.lexists(link)
    assert "autostart: off\n" in ok("autostart", "off")  # and again


def test_the_unit_starts_the_controller_of_this_home(
    home: Home, config: Path, tmp_path: Path
) -> None:
    home.config.write_text("ui_port = 0\n")
    ok("autostart", "on")
    (unit,) = config.glob("*.service")
    command, env = read_unit(unit.read_text())
    bare = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
    process = subprocess.Popen(command, env={**bare, **env}, cwd=tmp_path)
    try:
        lead = until(lambda: lead_process(home))
        assert lead.pid == process.pid
        assert f"pid {process.pid} on {socket.gethostname()}" in ok("autostart")
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0  # or systemd would start it again


def test_a_unit_of_another_installation_is_told(home: Home, config: Path) -> None:
    ok("autostart", "on")
    (unit,) = config.glob("*.service")
    elsewhere = os.environ | {"PATH": f"{os.environ['PATH']}{os.pathsep}/else/where"}
    assert "not what this installation" not in ok("autostart", env=elsewhere)
    unit.write_text(unit.read_text().replace(sys.executable, "/gone/bin/python"))
    (config / "gpuqueue-other.service").write_text("")
    text = ok("autostart")
    assert "not what this installation would write" in text
    assert str(config / "gpuqueue-other.service") in text
    ok("autostart", "on")
    assert "not what this installation" not in ok("autostart")


def test_a_relative_config_home_does_not_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert login_item("linux").path.parent == tmp_path / ".config" / "systemd" / "user"


def test_macos_gets_a_launch_agent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GPUQUEUE_HOME", str(tmp_path / "st ate – ü"))
    item = login_item("darwin")
    item.write()
    assert item.on
    assert item.path == tmp_path / "Library" / "LaunchAgents" / "org.gpuqueue.plist"
    found = plistlib.loads(item.path.read_bytes())
    assert found["ProgramArguments"] == [sys.executable, "-P", "-m", "gpuqueue_jupyter"]
    assert found["EnvironmentVariables"]["GPUQUEUE_HOME"] == str(tmp_path / "st ate – ü")
    assert found["RunAtLoad"] is True
    assert found["AbandonProcessGroup"] is True
    assert item.remove()
    assert not item.on


@pytest.mark.parametrize("path", AWKWARD)
def test_a_launch_agent_says_what_was_meant(path: str) -> None:
    found = plistlib.loads(launch_agent([path, "-P"], {"GPUQUEUE_HOME": path}))
    assert found["ProgramArguments"][0] == found["EnvironmentVariables"]["GPUQUEUE_HOME"] == path


def test_elsewhere_it_is_refused() -> None:
    with pytest.raises(NotSupportedHere, match=r"win32.*serve"):
        login_item("win32")


@pytest.mark.parametrize("name", ["line\nbreak", os.fsdecode(b"not-\xff-text")])
def test_a_path_that_a_unit_cannot_hold_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GPUQUEUE_HOME", str(tmp_path / name))
    with pytest.raises(NotSupportedHere, match="autostart: "):
        login_item("linux")


def test_another_word_is_refused(home: Home) -> None:
    done = gq("autostart", "maybe")
    assert done.returncode == 2
    assert "'maybe' is not one of 'on', 'off', 'status'" in done.stderr
