"""Pure scheduling: a ``Snapshot`` of the machine and its queue becomes a ``Plan``.

No clock, no I/O, no randomness: the same snapshot and time always give the same plan.
"""

from gpuqueue.plan.borrow import stranded
from gpuqueue.plan.decide import Plan, plan
from gpuqueue.plan.forecast import Booking, ends_of, forecast
from gpuqueue.plan.learn import History, kind_of, likeness_of, words_of, work_of
from gpuqueue.plan.need import need_of, never_fits
from gpuqueue.plan.room import asked_words, refusal
from gpuqueue.plan.types import (
    Card,
    Drop,
    Estimate,
    Evict,
    Need,
    Policy,
    Promise,
    Snapshot,
    Start,
    Wait,
    WaitReason,
)

__all__ = [
    "Booking",
    "Card",
    "Drop",
    "Estimate",
    "Evict",
    "History",
    "Need",
    "Plan",
    "Policy",
    "Promise",
    "Snapshot",
    "Start",
    "Wait",
    "WaitReason",
    "asked_words",
    "ends_of",
    "forecast",
    "kind_of",
    "likeness_of",
    "need_of",
    "never_fits",
    "plan",
    "refusal",
    "stranded",
    "words_of",
    "work_of",
]
