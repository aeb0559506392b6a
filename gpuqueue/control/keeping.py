"""What the lead does about jobs that are held to their shares: takes in answers, looks again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpuqueue.control.crowding import Crowding
from gpuqueue.control.holding import FACT, Holder, Told
from gpuqueue.control.machine import CARDS, Machine
from gpuqueue.control.outcome import Outcome
from gpuqueue.control.resizing import Resizer
from gpuqueue.control.starting import Starter
from gpuqueue.control.turn import Turn
from gpuqueue.model import Gpu, Job, JobState
from gpuqueue.paths import Home
from gpuqueue.store import Store

__all__ = ["DOUBT", "Keeper"]

DOUBT = "doubt"
"""The event that tells what was seen to contradict what a job is held by."""
_MOST_DOUBTS = 8
"""A job that starts many processes without its environment is told of once, or some times."""
_SWEPT = 500


class Keeper:
    """Between the turns of the lead and the thread of the ``Holder``.

    Parameters
    ----------
    end
        Records that an attempt has ended.
    """

    def __init__(
        self,
        home: Home,
        store: Store,
        holder: Holder,
        *,
        starter: Starter,
        resizer: Resizer,
        end: Callable[[Turn, Job, Outcome], None],
    ) -> None:
        self._home = home
        self._store = store
        self._holder = holder
        self._starter = starter
        self._resizer = resizer
        self._end = end
        self._seen: dict[int, frozenset[int]] = {}
        self._cards: tuple[Gpu, ...] = ()
        self._crowding = Crowding(store)

    def sweep(self) -> None:
        """Let go of what held jobs that ended as no lead was there to do it, or one was killed."""
        for job in self._store.once_held(_SWEPT):
            self._holder.release(self._home.attempt(job.id, job.attempt))
        for job in self._store.live():
            if job.state is JobState.QUEUED and job.attempt:
                self._holder.release(self._home.attempt(job.id, job.attempt))

    def take_in(self, turn: Turn) -> bool:
        """Take in what has come of calls; whether anything changed for the plan."""
        changed = False
        self._holder.press()
        for told in self._holder.take():
            if told.kind == "start":
                if (outcome := self._starter.go_on(turn, told)) is not None:
                    self._end(turn, turn.jobs[told.job], outcome)
                    changed = True
            elif told.kind == "resize":
                self._resizer.hear(told)
            else:
                self._doubt(turn, told)
        return changed

    def look(self, turn: Turn, machine: Machine) -> None:
        """See to the trials, tell of them, and have the processes of jobs looked at."""
        self._holder.know(machine.gpus)
        if (fact := self._holder.fact()) is not None:
            self._store.set_fact(FACT, fact)
        if machine.gpus != self._cards:
            self._cards = machine.gpus
            self._note_cards()
        self._crowding.look(turn, machine)
        users = machine.users or {}
        for job_id, pids in users.items():
            job = turn.jobs.get(job_id)
            if job is None or job.state is not JobState.RUNNING or not self._holder.holds(job):
                continue
            if pids != self._seen.get(job_id):
                self._seen[job_id] = pids
                self._holder.verify(job, self._home.attempt(job.id, job.attempt), pids)
        self._seen = {job_id: pids for job_id, pids in self._seen.items() if job_id in users}

    def _note_cards(self) -> None:
        """Keep what is known of every GPU that was ever here, for the usage books."""
        known = self._store.fact(CARDS) or {}
        told = {
            gpu.uuid: {
                "index": gpu.index, "name": gpu.name, "vendor": gpu.vendor, "memory": gpu.memory
            }
            for gpu in self._cards
        }  # fmt: skip
        if any(known.get(uuid) != card for uuid, card in told.items()):
            self._store.set_fact(CARDS, known | told)

    def _doubt(self, turn: Turn, told: Told) -> None:
        job = turn.jobs.get(told.job)
        if job is None or job.hold is None or job.attempt != told.key:
            return
        found = (told.error,) if told.error else told.value
        new = [sentence for sentence in found if sentence not in job.hold.doubts]
        new = new[: max(0, _MOST_DOUBTS - len(job.hold.doubts))]
        if new:
            turn.know(job.id, hold=replace(job.hold, doubts=(*job.hold.doubts, *new)))
            turn.notes += [(job.id, DOUBT, {"sentence": sentence}) for sentence in new]
