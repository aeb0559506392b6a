"""The verbs that look and change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuqueue.api import told
from gpuqueue.api.routes import Clientless, Question, Raw
from gpuqueue.errors import InvalidRequest

if TYPE_CHECKING:
    from gpuqueue.api.asked import Asked
    from gpuqueue.client import LocalClient

__all__ = [
    "counts",
    "doctor",
    "events",
    "gpus",
    "job",
    "jobs",
    "log",
    "outputs",
    "progress",
    "queue",
    "settings",
    "status",
    "timeline",
]

_MOST = 2**53 - 1


def status(asked: Asked) -> Question:
    """Everything at a glance, with the first ``limit`` of running and of waiting jobs."""
    from gpuqueue.store import Sought

    query = asked.query("limit", "recent", "match", "state")
    limit = query.integer("limit", 200, 0, 1000)
    recent = query.integer("recent", 5, 0, 1000)
    sought = Sought.of(query.text("match"), query.states("state"))
    return lambda client: told.status_told(client, asked.about(), limit, recent, sought)


def counts(asked: Asked) -> Question:
    """How many jobs run and wait, for whoever looks often."""
    asked.query()
    return told.counts_told


def queue(asked: Asked) -> Question:
    """One page of the waiting jobs, in the order of the queue."""
    from gpuqueue.store import Sought

    query = asked.query("offset", "limit", "match")
    offset = query.integer("offset", 0, 0, _MOST)
    limit = query.integer("limit", 100, 1, 500)
    sought = Sought.of(query.text("match"), None)
    return lambda client: told.queue_told(client, offset, limit, sought)


def timeline(asked: Asked) -> Question:
    """Who has held, holds and is expected to hold which GPU."""
    query = asked.query("back", "limit")
    back = query.integer("back", 3600, 0, 7 * 86_400)
    limit = query.integer("limit", 200, 1, 1000)

    def ask(client: LocalClient) -> Any:
        from gpuqueue.api.timeline import timeline_told

        return timeline_told(client, back, limit)

    return ask


def gpus(asked: Asked) -> Question:
    """The GPUs, what is promised on them and what they say of themselves."""
    asked.query()
    return told.gpus_told


def jobs(asked: Asked) -> Question:
    """One page of jobs, newest first; or of those that have ended, the last to end first."""
    from gpuqueue.store import Sought

    query = asked.query("state", "owner", "before", "limit", "match", "order")
    owner = query.text("owner")
    before = query.integer("before", 0, 1, _MOST) or None
    limit = query.integer("limit", 100, 1, 1000)
    sought = Sought.of(query.text("match"), query.states("state"))
    order = query.text("order") or "number"
    if order not in ("number", "ended"):
        raise InvalidRequest("order", "write number or ended")
    ended = order == "ended"
    return lambda client: told.jobs_told(client, sought, owner, before, limit, ended=ended)


def usage(asked: Asked) -> Question:
    """Who used how much of the GPUs."""
    query = asked.query("since", "by")
    since, by = query.text("since") or "24h", query.text("by") or "owner"

    def ask(client: LocalClient) -> dict[str, Any]:
        from gpuqueue.client.books import usage

        return usage(client, since, by).to_dict()

    return ask


def job(asked: Asked) -> Question:
    """One job; where it waits, also why and until when."""
    asked.query()
    number = asked.job
    return lambda client: told.job_told(client, client.job(number))


def log(asked: Asked) -> Question:
    """A part of a log from a byte on, or the last lines; as JSON, or as it is (``format=text``)."""
    number = asked.job
    query = asked.query("offset", "limit", "lines", "attempt", "format")
    attempt = query.integer("attempt", 0, 1, 10**6) or None
    offset = query.integer("offset", 0, 0, _MOST)
    limit = query.integer("limit", 1 << 16, 1, told.MOST_LOG)
    form = query.text("format") or "json"
    if form not in ("json", "text"):
        raise InvalidRequest("format", "write json or text")
    if query.text("lines") is not None:
        if query.text("offset") is not None or query.text("limit") is not None:
            raise InvalidRequest("lines", "goes with neither offset nor limit")
        lines = query.integer("lines", 0, 0, 10**6)
        return lambda client: _form(told.log_tail(client, number, attempt, lines), form)
    if form == "text":
        return lambda client: _plain(*told.log_bytes(client, number, attempt, offset, limit))
    return lambda client: told.log_told(client, number, attempt, offset, limit)


def _form(answer: dict[str, Any], form: str) -> Any:
    if form == "json":
        return answer
    return _plain(answer["text"].encode(errors="replace"), answer["next"])


def _plain(content: bytes, after: int) -> Raw:
    return Raw(content, "text/plain; charset=UTF-8", {"X-Gpuqueue-Next": str(after)})


def outputs(asked: Asked) -> Question:
    """What a cell showed, as nbformat has it, from a byte of the outputs' file on."""
    number = asked.job
    query = asked.query("offset", "attempt")
    offset = query.integer("offset", 0, 0, _MOST)
    attempt = query.integer("attempt", 0, 1, 10**6) or None
    return lambda client: told.outputs_told(client, number, attempt, offset)


def events(asked: Asked) -> Question:
    """What happened to a job after number ``since``, oldest first."""
    number = asked.job
    query = asked.query("since", "limit")
    since = query.integer("since", 0, 0, _MOST)
    limit = query.integer("limit", 1000, 1, 1000)
    return lambda client: told.events_told(client, number, since, limit)


def progress(asked: Asked) -> Question:
    """What a job has noted of its progress, thinned out to ``points`` points."""
    number = asked.job
    query = asked.query("points", "attempt")
    points = query.integer("points", 200, 2, 1000)
    attempt = query.integer("attempt", 0, 1, 10**6) or None
    return lambda client: told.progress_told(client, number, attempt, points)


def settings(asked: Asked) -> Question:
    """The settings in force and what each is for."""
    asked.query()

    def ask(client: LocalClient) -> Any:
        return told.settings_told(client)

    return ask


def doctor(asked: Asked) -> Clientless:
    """What is in order here and what is not, also where the state cannot be used."""
    asked.query()
    return Clientless(told.doctor_told)
