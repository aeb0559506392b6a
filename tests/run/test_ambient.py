"""Surroundings there and back, in one process."""

from __future__ import annotations

import decimal
import logging
import random
import subprocess
import sys
import warnings

import pytest

from gpuqueue.run import ambient


@pytest.fixture(autouse=True)
def as_before() -> object:
    state = ambient.take()
    yield
    ambient.put(state)


def test_everything_that_is_taken_can_be_put() -> None:
    state = ambient.take()
    assert {"import path", "random state", "warning filters", "logging"} <= state.keys()
    assert ambient.put(state) == []
    assert ambient.take() == state


def test_what_was_changed_is_made_as_it_was() -> None:
    state = ambient.take()
    first = random.random()
    decimal.getcontext().prec = 3
    sys.path.append("/nowhere")
    warnings.filterwarnings("error", message="boo")
    logging.getLogger("gpuqueue.test").setLevel(7)
    changed = ambient.take()
    assert {name for name in state if changed[name] != state[name]} == {
        "random state", "decimal context", "import path", "warning filters", "logging",
    }  # fmt: skip
    ambient.put(state)
    assert random.random() == first
    assert decimal.getcontext().prec != 3
    assert "/nowhere" not in sys.path
    assert logging.getLogger("gpuqueue.test").level == 0


def test_a_library_that_is_not_here_gets_its_state_when_it_is_imported() -> None:
    pytest.importorskip("numpy")
    program = """
import pickle, sys
from gpuqueue.run import ambient
states = pickle.loads(bytes.fromhex(sys.argv[1]))
assert "numpy" not in sys.modules
ambient.put(states, imported=["numpy"])
assert "numpy" not in sys.modules
assert {n: d for n, d in ambient.take().items() if n in states} == states  # for the next process
import warnings
filters = list(warnings.filters)
import numpy
print(numpy.get_printoptions()["precision"], numpy.random.rand())
assert list(warnings.filters) == filters
"""
    import pickle

    import numpy as np

    np.set_printoptions(precision=5)
    np.random.seed(3)
    data = pickle.dumps({n: d for n, d in ambient.take().items() if n.startswith("NumPy")}).hex()
    ran = subprocess.run(
        [sys.executable, "-c", program, data], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["5", str(np.random.rand())]


def test_gpus_are_seeded_where_the_notebook_has_set_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    tracker = torch.cuda._lazy_seed_tracker
    name = "torch's random state"
    monkeypatch.setattr(tracker, "manual_seed_all_cb", None)
    unseeded = ambient.take([name])
    torch.manual_seed(5)
    seeded = ambient.take([name])
    drawn = torch.rand(3)
    monkeypatch.setattr(tracker, "manual_seed_all_cb", None)
    assert ambient.put(unseeded) == []
    assert tracker.manual_seed_all_cb is None
    assert ambient.put(seeded) == []
    assert tracker.manual_seed_all_cb is not None
    assert torch.initial_seed() == 5
    assert torch.equal(torch.rand(3), drawn)
