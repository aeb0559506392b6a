"""The verbs that queue work, and that ask the controller for something."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from gpuqueue.api import told
from gpuqueue.api.asked import Submission, integer, submission_of
from gpuqueue.api.routes import Accepted, Created, Question
from gpuqueue.errors import InvalidRequest, UnknownJob
from gpuqueue.model import IntentKind, Origin

if TYPE_CHECKING:
    from gpuqueue.api.asked import Asked
    from gpuqueue.client import LocalClient, Options, Payload

__all__ = [
    "cancel",
    "interrupt",
    "move",
    "preview",
    "priority",
    "release",
    "resize",
    "retry",
    "submit",
    "swap",
]

_MOST = 2**53 - 1
_MOST_PRIORITY = 2**31


def work_of(asked: Asked, wanted: Submission) -> tuple[Payload, Options]:
    """What is to be run, and the options, from a submission."""
    from gpuqueue.client import options_from, payload_from

    options = options_from(wanted.options)
    payload = payload_from(
        wanted.command,
        kwargs=wanted.parameters,
        cwd=asked.folder / (wanted.cwd or ""),
        env=wanted.env,
    )
    return payload, options


def submit(asked: Asked) -> Question:
    """Queue a program, a line for the shell, a script or a notebook."""
    wanted = submission_of(asked.content)

    def ask(client: LocalClient) -> Created:
        from gpuqueue.client.rights import agent_of

        work = work_of(asked, wanted)
        origin = Origin(asked.origin, agent=agent_of(browser=asked.browser))
        began = time.time()
        try:
            job = client.submit([work], origin=origin, owner=asked.owner)[0]
        except UnknownJob as error:
            raise InvalidRequest("after", str(error).removeprefix("after: ")) from None
        # with a key that is known, the first job of that key is the answer
        new = job.submitted >= began
        view = told.job_told(client, client.job(job.id)) | told.warnings_of(client, job)
        return Created(view, f"jobs/{job.id}", new)

    return ask


def preview(asked: Asked) -> Question:
    """Where and when a submission would run, if it were queued now. Nothing is queued."""
    wanted = submission_of(asked.content)

    def ask(client: LocalClient) -> Any:
        from gpuqueue.api.preview import previewed

        payload, options = work_of(asked, wanted)
        return previewed(client, payload, options, asked.owner)

    return ask


def _wish(asked: Asked, kind: IntentKind, value: Any = None) -> Question:
    """A wish about one job, and the job as it then is."""
    number = asked.job

    def ask(client: LocalClient) -> Any:
        client.intend(kind, number, value)
        return told.job_told(client, client.job(number))

    return ask


def cancel(asked: Asked) -> Question:
    """Take it out of the queue; one that runs is asked to end, and then ended."""
    asked.body()
    return _wish(asked, IntentKind.CANCEL)


def interrupt(asked: Asked) -> Question:
    """Interrupt it as Ctrl-C would."""
    asked.body()
    return _wish(asked, IntentKind.INTERRUPT)


def priority(asked: Asked) -> Question:
    """Give a waiting job a priority, or move it to the front."""
    value = asked.body("value").get("value")
    if value is not None:
        value = integer(value, "value", -_MOST_PRIORITY, _MOST_PRIORITY)
    return _wish(asked, IntentKind.PRIORITY, value)


def swap(asked: Asked) -> Question:
    """Let two waiting jobs change places."""
    pair = asked.body("jobs").get("jobs")
    if not isinstance(pair, list) or len(pair) != 2:
        raise InvalidRequest("jobs", "write the numbers of two jobs, such as [3, 5]")
    one, other = (integer(value, "jobs", 1, _MOST) for value in pair)
    if one == other:
        raise InvalidRequest("jobs", "write two different jobs")

    def ask(client: LocalClient) -> Any:
        client.intend(IntentKind.SWAP, one, other)
        return {"jobs": [told.job_told(client, client.job(job)) for job in (one, other)]}

    return ask


def move(asked: Asked) -> Question:
    """Put a waiting job right before or right after another one."""
    body = asked.body("before", "after")
    if len(body) != 1:
        raise InvalidRequest("before", "write the job that it is to be before, or after, not both")
    ((side, number),) = body.items()
    other = integer(number, side, 1, _MOST)
    if other == asked.job:
        raise InvalidRequest(side, "write another job than the one that is to be moved")
    return _wish(asked, IntentKind.MOVE, [side, other])


def resize(asked: Asked) -> Question:
    """Give a job another share or memory, also as it runs."""
    number = asked.job
    body = asked.body("share", "mem")

    def ask(client: LocalClient) -> Accepted:
        from gpuqueue.client.resizing import resize

        answer = resize(client, number, share=body.get("share"), mem=body.get("mem"))
        job = told.job_told(client, client.job(number))
        return Accepted(answer.to_dict() | {"job": job}, answer.settled)

    return ask


def release(asked: Asked) -> Question:
    """Give back the share of a notebook's kernel, which goes on without it."""
    number = asked.job
    asked.body()

    def ask(client: LocalClient) -> Accepted:
        from gpuqueue.client.releasing import release

        answer = release(client, number)
        job = told.job_told(client, client.job(number))
        return Accepted(answer.to_dict() | {"job": job}, answer.settled)

    return ask


def retry(asked: Asked) -> Question:
    """Queue the same work again, as a new job."""
    number = asked.job
    front = asked.body("priority").get("priority", False)
    if not isinstance(front, bool):
        raise InvalidRequest("priority", "write true for the front of the queue, or false")

    def ask(client: LocalClient) -> Created:
        from gpuqueue.client.resubmit import resubmit

        job = resubmit(client, client.job(number), priority=front)
        view = told.job_told(client, client.job(job.id)) | told.warnings_of(client, job)
        return Created(view, f"../{job.id}")

    return ask
