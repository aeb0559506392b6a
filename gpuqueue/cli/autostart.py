"""``gpuqueue autostart``: have the system run the controller from login on.

A user's own systemd unit on Linux, a LaunchAgent on macOS; both run ``gpuqueue serve``. No rights
of root are used. systemd.syntax(7), systemd.service(5) and launchd.plist(5) say what may stand in
such a file.
"""

from __future__ import annotations

import contextlib
import os
import plistlib
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuqueue.cli.words import program, say_json, tell
from gpuqueue.errors import NotSupportedHere

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LoginItem", "autostart", "launch_agent", "login_item", "systemd_unit"]

_CARRIED = ("GPUQUEUE_HOME", "XDG_STATE_HOME", "PATH")
"""Where the state is, and where jobs that come by REST find their programs: what the system starts
has none of what a shell's files set."""
_OF_PATH = re.compile(rb'Environment="PATH=.*\n|<key>PATH</key>\s*<string>[^<]*</string>')
_LABEL = "org.gpuqueue"


class Switch(StrEnum):
    """What to do about starting at login."""

    ON = "on"
    OFF = "off"
    STATUS = "status"


@dataclass(frozen=True, slots=True)
class LoginItem:
    """A file that makes the system start the controller when its user logs in.

    ``link`` is what turns it on, where the file alone does not: a symbolic link to it. ``start``
    is the command that starts it at once.
    """

    path: Path
    content: bytes
    link: Path | None
    start: str

    @property
    def on(self) -> bool:
        """Whether the system would start a controller by it."""
        return self.path.exists() and (self.link is None or self.link.exists())

    @property
    def current(self) -> bool:
        """Whether it is as this installation would write it now, from a shell with any PATH."""
        with contextlib.suppress(OSError):
            return _OF_PATH.sub(b"", self.path.read_bytes()) == _OF_PATH.sub(b"", self.content)
        return False

    def write(self) -> None:
        """Write it, whole or not at all, and turn it on."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            partial.write_bytes(self.content)
            partial.replace(self.path)
        finally:
            partial.unlink(missing_ok=True)
        if self.link is not None and not self.link.exists():
            self.link.parent.mkdir(parents=True, exist_ok=True)
            self.link.unlink(missing_ok=True)  # one that leads nowhere
            self.link.symlink_to(Path("..") / self.path.name)

    def remove(self) -> bool:
        """Take it away; False if there was nothing."""
        places = [self.path, *([self.link] if self.link else [])]
        found = [place for place in places if os.path.lexists(place)]
        for place in found:
            place.unlink()
        return bool(found)


def login_item(system: str = sys.platform) -> LoginItem:
    """What starts the controller of ``GPUQUEUE_HOME`` at login on this system.

    Raises
    ------
    NotSupportedHere
        It is not known how, or a path cannot be written in such a file.
    """
    command = [sys.executable, "-P", "-m", "gpuqueue_jupyter"]
    env = {name: os.environ[name] for name in _CARRIED if os.environ.get(name)}
    if home := env.get("GPUQUEUE_HOME"):
        env["GPUQUEUE_HOME"] = os.path.realpath(os.path.expanduser(home))
    for text in (*command, *env.values()):
        _check(text)
    if system.startswith("linux"):
        folder = _config_home() / "systemd" / "user"
        name = f"gpuqueue-{_host()}.service"
        return LoginItem(
            path=folder / name,
            content=systemd_unit(command, env, _host()).encode(),
            link=folder / "default.target.wants" / name,
            start=f"systemctl --user daemon-reload && systemctl --user start {name}",
        )
    if system == "darwin":
        path = Path.home() / "Library" / "LaunchAgents" / f"{_LABEL}.plist"
        return LoginItem(path, launch_agent(command, env), None, f"launchctl load '{path}'")
    raise NotSupportedHere(
        f"autostart: it is not known how on {system}. Every submit starts a controller by itself; "
        f"to have one from login on, let the system's task planner run `{program()} serve`"
    )


def _check(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise NotSupportedHere(
            f"autostart: {text!r} is not valid UTF-8, which such a file must be. Use a path that is"
        ) from None
    if not text.isprintable():
        raise NotSupportedHere(
            f"autostart: {text!r} has characters that such a file cannot hold. Use another path"
        )


def _config_home() -> Path:
    """As systemd finds it: a relative path in the variable does not count."""
    asked = os.environ.get("XDG_CONFIG_HOME", "")
    return Path(asked) if os.path.isabs(asked) else Path.home() / ".config"


def _host() -> str:
    return "".join(c if c.isalnum() or c in ".-_" else "_" for c in socket.gethostname())


def systemd_unit(command: Sequence[str], env: dict[str, str], host: str) -> str:
    """The text of a user's unit that runs a command from login on, on one host.

    Folders of settings are often shared between hosts, and each host has its own queue. Only the
    command's first process is ended with the unit, because jobs outlive the controller.
    """
    # dollars stand for variables in a command's arguments; not in its program
    words = [_quoted(command[0]), *(_quoted(word).replace("$", "$$") for word in command[1:])]
    lines = [
        "# Written by `gpuqueue autostart on`; `gpuqueue autostart off` removes it.",
        "[Unit]",
        "Description=gpuqueue: the queue for this machine's GPUs",
        f"ConditionHost={host.replace('%', '%%')}",
        "",
        "[Service]",
        *(f"Environment={_quoted(f'{name}={value}')}" for name, value in env.items()),
        f"ExecStart={' '.join(words)}",
        "KillMode=process",
        "Restart=on-failure",
        "RestartSec=5",
        "",
        "[Install]",
        "WantedBy=default.target",
        "",
    ]
    return "\n".join(lines)


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def launch_agent(command: Sequence[str], env: dict[str, str]) -> bytes:
    """The property list of a LaunchAgent that runs a command from login on."""
    return plistlib.dumps(
        {
            "Label": _LABEL,
            "ProgramArguments": list(command),
            "EnvironmentVariables": env,
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "AbandonProcessGroup": True,  # jobs outlive the controller
            "ProcessType": "Interactive",  # the jobs are a child's children; do not slow them down
        }
    )


def autostart(
    switch: Annotated[Switch, typer.Argument(metavar="on|off|status")] = Switch.STATUS,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print data for programs.")] = False,
) -> None:
    """Have the system run the controller from your login on, or not.

    Not needed with a Jupyter server, nor for submitting: a submit starts a controller if none runs.
    """
    item = login_item()
    if switch is Switch.ON:
        _turn_on(item)
    elif switch is Switch.OFF:
        found = item.remove()
        _reload()
        tell(f"removed {item.path}" if found else "it was off")
    state = _state(item)
    if as_json:
        say_json(state)
    else:
        _say(state, item)


def _turn_on(item: LoginItem) -> None:
    item.write()
    _reload()
    tell(f"wrote {item.path}")
    if sys.platform.startswith("linux") and not Path("/run/systemd/system").is_dir():
        tell("systemd does not run on this machine now; without it this file does nothing")


def _reload() -> None:
    """Have a running systemd read its files again."""
    if not Path(os.environ.get("XDG_RUNTIME_DIR", "/"), "systemd", "private").exists():
        return
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            ["systemctl", "--user", "daemon-reload"], capture_output=True, timeout=10, check=False
        )


def _state(item: LoginItem) -> dict[str, Any]:
    from gpuqueue.client.local import default_client

    client = default_client()
    lead = client.lead()
    names = ("pid", "kind", "since", "version")
    pattern = f"gpuqueue-*{item.path.suffix}" if item.link else item.path.name
    others = [p for p in item.path.parent.glob(pattern) if p != item.path]
    return {
        "schema": 1,
        "on": item.on,
        "path": str(item.path),
        "current": item.current,
        "lingers": _lingers(),
        "others": sorted(str(path) for path in others),
        "host": socket.gethostname(),
        "home": str(client.home.root),
        "lead": lead and {name: lead[name] for name in names},
    }


def _lingers() -> bool | None:
    """Whether this user's systemd runs without a login; None where there is none."""
    folder = Path("/var/lib/systemd/linger")
    if not sys.platform.startswith("linux") or shutil.which("loginctl") is None:
        return None
    import pwd

    return (folder / pwd.getpwuid(os.geteuid()).pw_name).exists()


def _say(state: dict[str, Any], item: LoginItem) -> None:
    on = state["on"]
    typer.echo(f"autostart: {f'on, by {item.path}' if on else 'off'}")
    if on and not state["current"]:
        typer.echo(
            "  it is not what this installation would write (another environment or state "
            f"directory): {program()} autostart on"
        )
    for path in state["others"]:
        typer.echo(f"  another host's: {path}")
    lead, host = state["lead"], state["host"]
    who = f"{lead['kind']}, pid {lead['pid']} on {host}" if lead else f"none runs on {host}"
    typer.echo(f"controller: {who}")
    typer.echo(f"state: {state['home']}")
    if not on:
        return
    if lead is None:
        typer.echo(f"it starts at your next login; now: {item.start}")
    if state["lingers"] is False:
        typer.echo(
            "systemd ends it, and jobs that it started, when your last session ends. To have it "
            "from boot on and past logout: loginctl enable-linger"
        )
