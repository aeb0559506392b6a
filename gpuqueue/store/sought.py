"""Looking for jobs by words, the same for those that live and for those that have ended. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from gpuqueue.model import Job

__all__ = ["Sought"]


@dataclass(frozen=True, slots=True)
class Sought:
    """What somebody looks for.

    Attributes
    ----------
    words
        Each must be in the tag, the owner, the command or the path of the notebook, or be the
        number; case does not matter.
    states
        The job must be in one of these; None for any.
    """

    words: tuple[str, ...] = ()
    states: frozenset[str] | None = None

    @classmethod
    def of(cls, text: str | None, states: Collection[str] | None) -> Sought | None:
        """What a text and states ask for; None where that is everything."""
        words = tuple((text or "").casefold().split())
        if not words and states is None:
            return None
        return cls(words, None if states is None else frozenset(states))

    def fits(self, job: Job) -> bool:
        """Whether a job is one of those."""
        if self.states is not None and str(job.state) not in self.states:
            return False
        return self.says(job.id, job.tag, job.owner, job.command, job.origin.path)

    def says(self, number: int, *texts: str) -> bool:
        """Whether a job with this number and these texts has all the words."""
        if not self.words:
            return True
        told = "\n".join(texts).casefold()
        return all(word in told or word.removeprefix("#") == str(number) for word in self.words)
