"""The store: jobs, events, intents, placements and facts, in one SQLite file.

Everything that outlives a process is here or in a job's directory.
"""

from __future__ import annotations

from gpuqueue.store.facts import Facts
from gpuqueue.store.intents import Intents
from gpuqueue.store.submit import Submitting

__all__ = ["Store"]


class Store(Submitting, Facts, Intents):
    """One connection to the state database; safe to use from several threads.

    It is made as a ``Connection`` is; what each table is asked and told is in a class of its own.
    """
