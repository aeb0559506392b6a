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
    readings = play(browser, 200)
    # what is made once, and the compiled code, is there by then
    settled, last = readings[4], readings[-1]
    assert last["asked"] > 200
    assert last["heap_mb"] - settled["heap_mb"] < 0.5, readings
    assert last["nodes"] - settled["nodes"] < 200, readings
    assert last["listeners"] - settled["listeners"] < 100, readings
