"""Another version of the program takes over while jobs run."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import leads_of, until

import gpuqueue
from gpuqueue.client import Job, LocalClient, default_client
from gpuqueue.control.lead import spawn_headless
from gpuqueue.errors import StateVersionError
from gpuqueue.model import JobState
from gpuqueue.paths import Home
from gpuqueue.run.process import alive
from gpuqueue.store.schema import MIGRATIONS, VERSION


def stop_leads(home: Home) -> None:
    for pid in leads_of(home):
        os.kill(pid, signal.SIGTERM)
    until(lambda: not leads_of(home))


def begin(home: Home, folder: Path) -> tuple[Job, Job]:
    """A job that runs until the file ``go`` is there, and one that waits for its GPU."""
    home.config.write_text("gpus = [0]\n")
    line = f"echo x >>'{folder}/ran'; until [ -e '{folder}/go' ]; do sleep 0.05; done; exit 6"
    runs = gpuqueue.submit(["sh", "-c", line], gpus=1)
    until(lambda: runs.state is JobState.RUNNING)
    waits = gpuqueue.submit(["sh", "-c", "exit 2"], gpus=1)
    stop_leads(home)
    default_client().close()
    return runs, waits


def downgrade(path: Path, version: int) -> None:
    """Write the database as an earlier release would have it."""
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    older = path.with_name("older.db")
    new = sqlite3.connect(older)
    for script in MIGRATIONS[:version]:
        new.executescript(script)
    new.execute("ATTACH ? AS now", (str(path),))
    tables = new.execute(
        "SELECT name FROM main.sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    ).fetchall()
    for (table,) in tables:
        names = ", ".join(row[1] for row in new.execute(f"PRAGMA main.table_info({table})"))
        new.execute(f"INSERT INTO main.{table} ({names}) SELECT {names} FROM now.{table}")
    new.execute(f"PRAGMA main.user_version = {version}")
    new.commit()
    new.close()
    for part in ("-wal", "-shm"):
        path.with_name(path.name + part).unlink(missing_ok=True)
    older.rename(path)


@pytest.mark.parametrize("version", range(1, VERSION))
def test_a_newer_one_follows_what_an_older_one_started(
    home: Home, tmp_path: Path, version: int
) -> None:
    runs, waits = begin(home, tmp_path)
    downgrade(home.database, version)
    client = LocalClient(home)
    spawn_headless(home)
    until(lambda: client.lead(), what="the newer one leads")
    assert client.job(runs.id).state is JobState.RUNNING
    assert client.job(waits.id).state is JobState.QUEUED
    (tmp_path / "go").touch()
    assert client.wait(runs.id, 60).returncode == 6
    assert client.wait(waits.id, 60).returncode == 2
    assert client.job(runs.id).attempt == 1
    assert (tmp_path / "ran").read_text() == "x\n"
    backup = home.database.with_name(f"state.db.v{version}.bak")
    with sqlite3.connect(backup) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (version,)
    db.close()
    client.close()


def test_an_older_one_refuses_and_touches_nothing(home: Home, tmp_path: Path) -> None:
    runs, waits = begin(home, tmp_path)
    with sqlite3.connect(home.database) as db:
        db.execute(f"PRAGMA user_version = {VERSION + 1}")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        process = db.execute("SELECT process FROM jobs WHERE id = ?", (runs.id,)).fetchone()[0]
    db.close()
    before = home.database.read_bytes()
    with pytest.raises(StateVersionError, match="newer gpuqueue") as refusal:
        LocalClient(home)
    assert "Nothing was changed" in str(refusal.value)
    told = subprocess.run(
        [sys.executable, "-c", "from gpuqueue.cli import main; main()", "submit", "true"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert told.returncode != 0
    assert "newer gpuqueue" in told.stderr
    assert "Traceback" not in told.stderr
    spawn_headless(home)
    until(lambda: "newer gpuqueue" in home.log.read_text(), what="a lead refuses, too")
    stop_leads(home)
    assert home.database.read_bytes() == before
    names = {entry.name for entry in home.root.iterdir()}
    assert not [name for name in names if ".bak" in name or "damaged" in name]
    assert process
    # the one that knows it is back, and goes on
    with sqlite3.connect(home.database) as db:
        db.execute(f"PRAGMA user_version = {VERSION}")
    db.close()
    client = LocalClient(home)
    held = client.job(runs.id).process
    assert held is not None
    assert alive(held)
    spawn_headless(home)
    (tmp_path / "go").touch()
    assert client.wait(runs.id, 60).returncode == 6
    assert client.wait(waits.id, 60).returncode == 2
    client.close()
