"""What of waiting commands is written beside the database."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from gpuqueue.control import copies as module
from gpuqueue.control.copies import Copies
from gpuqueue.model import Job, JobKind, JobState, Origin, Request
from gpuqueue.run.files import SPEC, read_json


@pytest.fixture
def place(home, monkeypatch):
    """Two commands that have waited a while."""
    monkeypatch.setattr(module, "_LONGEST", 60.0)
    home.jobs.mkdir(parents=True, exist_ok=True)
    jobs = [
        Job(
            number, JobKind.SCRIPT, JobState.QUEUED, Request(), "a", "me", "true", "/", Origin(),
            0, number,
        )
        for number in (1, 2)
    ]  # fmt: skip
    store = SimpleNamespace(spec=lambda number: f'{{"argv": ["{number}"]}}')
    return SimpleNamespace(home=home, jobs=jobs, copies=Copies(home, store))


def test_one_that_cannot_be_copied_costs_the_others_nothing(place, caplog):
    (place.home.jobs / "1").touch()  # a file where its directory should be
    with caplog.at_level(logging.WARNING, "gpuqueue"):
        for _ in range(3):
            place.copies.keep(place.jobs, 100.0)
    assert read_json(place.home.job(2) / SPEC) == {"argv": ["2"]}
    assert len(caplog.records) == 1
    (place.home.jobs / "1").unlink()
    place.copies.keep(place.jobs, 100.0)
    assert read_json(place.home.job(1) / SPEC) == {"argv": ["1"]}


def test_a_full_disk_is_said_once_and_tried_again(place, monkeypatch, caplog):
    def full(path, value, *, flush):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "gpuqueue"):
        patch.setattr(module, "write_json", full)
        for _ in range(3):
            place.copies.keep(place.jobs, 100.0)
    assert [record.getMessage() for record in caplog.records] == [
        "gpuqueue: a waiting command could not be copied: [Errno 28] No space left on device"
    ]
    place.copies.keep(place.jobs, 100.0)
    assert all((place.home.job(job.id) / SPEC).exists() for job in place.jobs)
