"""The pieces that sentences about waiting are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from gpuqueue.model import Job, JobKind, Mode
from gpuqueue.plan.board import Board, Space
from gpuqueue.units import format_duration

__all__ = [
    "Names",
    "free_words",
    "gpu_list",
    "is_own",
    "lent_words",
    "listed",
    "paused_words",
    "strangers",
]

_SHOWN = 4


def listed(parts: Sequence[str], word: str = "", *, shown: int = _SHOWN) -> str:
    """``a``, ``a and b``, ``a, b and 3 more``."""
    texts = list(parts[:shown])
    if len(parts) > shown:
        texts.append(f"{len(parts) - shown} more{f' {word}' if word else ''}")
    if len(texts) < 2:
        return "".join(texts)
    return f"{', '.join(texts[:-1])} and {texts[-1]}"


def gpu_list(indexes: Sequence[int], total: int) -> str:
    """``GPU 1``, ``both GPUs``, ``all 4 GPUs``, ``GPUs 0 and 2``."""
    if len(indexes) == 1:
        return f"GPU {indexes[0]}"
    if len(indexes) == total:
        return "both GPUs" if total == 2 else f"all {total} GPUs"
    return f"GPUs {listed([str(index) for index in indexes], shown=len(indexes))}"


def free_words(mode: Mode) -> str:
    """Why nothing starts while the GPUs are not the queue's."""
    if mode.by == "automatic":
        return f"free mode: {mode.program} has the GPUs; nothing starts until it has gone"
    return "free mode: nothing starts until `jupyter gpuqueue resume`"


def is_own(kernel: Job, job: Job) -> bool:
    """Whether ``kernel`` is the share of the notebook that has submitted ``job``."""
    if kernel.kind is not JobKind.KERNEL or job.kind is JobKind.KERNEL:
        return False
    if job.origin.kind != "notebook" or job.owner != kernel.owner:
        return False
    if job.origin.path and job.origin.path == kernel.origin.path:
        return True
    # a kernel tells itself by its process, which nobody else has as long as it lives
    return kernel.process is not None and job.origin.session == f"kernel-{kernel.process.pid}"


def strangers(space: Space) -> str:
    """Who uses a GPU outside the queue."""
    return listed(space.card.holders) or "a program outside the queue"


def paused_words(where: Sequence[tuple[int, Sequence[Job]]]) -> str:
    """Why a borrower stands still: by number of GPU, those whose compute is in use by themselves.

    ``paused: notebook a.ipynb computes on GPU 0``.
    """
    clauses = []
    for index, jobs in where:
        many = len(jobs) > 1
        books = all(job.kind is JobKind.KERNEL for job in jobs)
        verb = "compute" if many and books else "computes" if books else "has that part"
        verb = "have that part" if many and not books else verb
        clauses.append(f"{_who(jobs)} {verb} {'on' if books else 'of'} GPU {index}")
    return f"paused: {' and '.join(clauses)}" if clauses else "paused: others compute there"


def lent_words(job: Job, where: Sequence[tuple[int, Sequence[Job]]]) -> str:
    """Whose compute a borrower has: ``runs on compute that notebook a.ipynb lends on GPU 0``."""
    if job.kind is JobKind.KERNEL:
        return "computes when other notebooks on its GPU do not"
    clauses = [
        f"{_who(jobs)} lend{'s' if len(jobs) == 1 else ''} on GPU {index}" for index, jobs in where
    ]
    if not clauses:
        return "runs on compute that nobody else holds now"
    return f"runs on compute that {' and '.join(clauses)}"


def _who(jobs: Sequence[Job]) -> str:
    """``notebook a.ipynb``, ``notebooks a.ipynb and b.ipynb``, ``job 3 (train)``."""
    if all(job.kind is JobKind.KERNEL for job in jobs):
        word = "notebook" if len(jobs) == 1 else "notebooks"
        return f"{word} {listed([job.tag for job in jobs])}"
    names = [f"job {job.id} ({job.tag})" if job.tag else f"job {job.id}" for job in jobs]
    return listed(names) or "others"


class Names:
    """Jobs as people know them."""

    def __init__(self, jobs: Mapping[int, Job], now: float, asker: Job | None = None) -> None:
        self._jobs = jobs
        self._now = now
        self._asker = asker

    def to(self, job: Job) -> Names:
        """The same, as told to one job: it knows its own notebook."""
        return Names(self._jobs, self._now, job)

    def job(self, job_id: int, end: float = inf) -> str:
        """``job 3 (train, alice)``; says so if the job has outrun its estimated ``end``."""
        job = self._jobs[job_id]
        if self._asker is not None and is_own(job, self._asker):
            return f"this notebook itself (job {job_id})"
        if job.kind is JobKind.KERNEL:
            return f"notebook {job.tag} (job {job_id}, {job.owner})"
        about = [text for text in (job.tag, job.owner) if text]
        if -inf < end < self._now:
            about.append(f"{format_duration(self._now - end)} past its estimate")
        return f"job {job_id} ({', '.join(about)})" if about else f"job {job_id}"

    def residents(self, board: Board, jobs: Sequence[int]) -> str:
        """The named jobs that hold a placement."""
        return listed([self.job(job, board.residents[job].end) for job in jobs], shown=2)

    def holding(self, board: Board, spaces: Sequence[Space]) -> str:
        """``GPU 0 is held by job 3 (train, alice), GPU 1 by job 4 (eval, bob)``."""
        clauses: list[str] = []
        verb = ""
        for space in spaces[:_SHOWN]:
            taken = not space.held.empty
            if space.drained:
                clauses.append(f"GPU {space.index} takes no new jobs")
                verb = ""
                continue
            now_verb = "is held" if taken else "is used outside the queue"
            who = self.residents(board, sorted(space.parts)) if taken else strangers(space)
            clauses.append(
                f"GPU {space.index}{'' if now_verb == verb else f' {now_verb}'} by {who}"
            )
            verb = now_verb
        more = len(spaces) - _SHOWN
        return ", ".join(clauses) + (f" and {more} more" if more > 0 else "")

    def ahead(self, job_id: int, what: str) -> str:
        """``job 7 ahead of it is waiting for both GPUs``."""
        return f"{self.job(job_id)} ahead of it is waiting {what}"
