"""What the scheduler would do, or would have done: a workload replayed on a virtual clock."""

from gpuqueue.simulate.engine import Outcome, replay
from gpuqueue.simulate.report import measure
from gpuqueue.simulate.trace import TraceJob, from_history, read_trace, scaled_to_load

__all__ = [
    "Outcome",
    "TraceJob",
    "from_history",
    "measure",
    "read_trace",
    "replay",
    "scaled_to_load",
]
