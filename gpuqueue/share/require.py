"""Jobs that would rather not start than be held by less: ``--require compute=hard,memory=hard``."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gpuqueue.errors import InvalidRequest
from gpuqueue.share.mechanism import Standing, Subject

__all__ = ["HARD", "demanded", "refusal"]

HARD = "hard"
"""What is over is refused, as was seen on this machine: `Standing.CAPPED`."""

_REMEDY = {
    Subject.COMPUTE: "Ask for a whole GPU, or leave compute=hard out.",
    Subject.MEMORY: "Ask for a whole GPU, or leave memory=hard out.",
}
_UNASKED = {
    Subject.COMPUTE: "it asks for no share of compute; say which (--share 0.25)",
    Subject.MEMORY: "it asks for no size of memory; say which (--mem 6G)",
}


def demanded(text: str, field: str = "require") -> frozenset[Subject]:
    """What is to be hard, of ``compute=hard,memory=hard``; none of an empty text.

    Raises
    ------
    InvalidRequest
        Something else; it names ``field``.
    """
    found = set()
    for part in (part.strip() for part in text.split(",")):
        if not part:
            continue
        name, _, value = (word.strip().lower() for word in part.partition("="))
        if name not in list(Subject) or value != HARD:
            raise InvalidRequest(
                field,
                f"{part!r} is not known; write compute=hard or memory=hard, or both with a comma",
            )
        found.add(Subject(name))
    return frozenset(found)


def refusal(
    required: Collection[Subject],
    standings: Mapping[Subject, Standing],
    reasons: Mapping[Subject, str],
    *,
    asked: Collection[Subject] = tuple(Subject),
    whole: bool = False,
) -> str:
    """Why a job does not start, as one or more sentences; empty where nothing stands in the way.

    Parameters
    ----------
    required
        What is to be hard; see `demanded`.
    standings
        How far the job is held (`Outcome.standings`) or, before it has a place, how far one can be
        (`Ladder.promises`).
    reasons
        Why it is no better: `Outcome.reasons` or `Ladder.reasons`.
    asked
        What the job has asked for a share of. What it has not asked for cannot be held.
    whole
        It gets its GPUs for itself, so that there is nothing to hold it to.
    """
    if whole:
        return ""
    sentences = []
    for subject in sorted(required):
        if subject not in asked:
            sentences.append(f"It requires {subject}={HARD}, but {_UNASKED[subject]}.")
        elif standings.get(subject) is not Standing.CAPPED:
            word = standings.get(subject, Standing.ADMITTED_ONLY)
            why = reasons.get(subject) or f"Nothing here caps {subject}."
            sentences.append(
                f"It requires {subject}={HARD}, and {subject} would be {word} here. {why} "
                f"{_REMEDY[subject]}"
            )
    return " ".join(sentences)
