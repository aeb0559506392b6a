"""The panel keeps nothing of what it has shown; ``bench/panel_hour.py`` plays more of the same."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from panel_browser import *  # noqa: F403

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from panel_hour import play

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]


def test_memory_stays_flat_over_many_updates(browser: Any) -> None:
    # what is made once is there by the first of them
    readings = settled, last = play(browser, 200, parts=2)
    assert last["asked"] > 200
    # less than a page of memory an update: what is kept of one job is more
    assert last["heap_mb"] - settled["heap_mb"] < 0.1, readings
    # one object in four updates; a listener, a promise or an entry kept is at least one in each
    assert last["objects"] - settled["objects"] < 25, readings
    assert last["nodes"] - settled["nodes"] < 20, readings
    assert last["detached"] < 20, readings
    assert last["listeners"] - settled["listeners"] < 20, readings
