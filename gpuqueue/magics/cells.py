"""``%%gpu``: queue a cell, show its outputs as they come, bring its variables back."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from gpuqueue.client import Job, LocalClient, default_client, options_from
from gpuqueue.client.cell import cell_payload
from gpuqueue.client.job import describe
from gpuqueue.client.request import Options
from gpuqueue.errors import GpuqueueError, JobFailed, NotAllowedNow
from gpuqueue.magics.bringing import bring_back, remember
from gpuqueue.magics.options import parse_options, split_line
from gpuqueue.magics.replay import Here, OutputTail, Place, place_of
from gpuqueue.magics.shown import cell_error, silent
from gpuqueue.model import TERMINAL, JobState
from gpuqueue.model import Job as Record
from gpuqueue.run.kernelshare import SHARE
from gpuqueue.units import format_bytes, format_share

__all__ = ["follow", "run_cell"]

_QUICK, _SLOW = 0.01, 0.25
_STATUS_AFTER = 1.0
_STATUS_EVERY = 0.5
_RESTART_AFTER = 0.4
_CANCEL_AFTER = 3.0
_LEAVE_AFTER = 4.5


def run_cell(shell: Any, line: str, source: str) -> Job | None:
    """Run a cell as a job; with ``--bg`` return the job at once.

    Raises
    ------
    GpuqueueError
        It was refused, and nothing was queued; or the job ended otherwise than by an exception.
    BaseException
        What the cell raised in the job.
    """
    if job_id := os.environ.get("GPUQUEUE_JOB_ID"):
        raise NotAllowedNow(
            f"this runs inside job {job_id}, which would wait for itself if it queued cells; "
            "take %%gpu away, the cell runs on this job's GPUs"
        )
    asked = parse_options(split_line(line))
    options = options_from(asked.options)
    client = default_client()
    payload = cell_payload(
        source,
        shell.user_ns,
        shell=shell,
        ins=asked.ins,
        outs=asked.outs,
        waited=not asked.background,
        shown=client.settings.size("cell_text_limit"),
    )
    notes = payload.notes
    if SHARE in os.environ and (options_left := _beside_own(client, options)):
        options, note = options_left
        notes = (*notes, note)
    record = client.submit([(payload, options)])[0]
    for note in notes:
        Here(shell).write(f"gpuqueue: {note}\n")
    if asked.background:
        remember(record.id, payload.objects)
        _in_background(shell, client, record.id)
        return Job(client, record.id)
    error = _Foreground(shell, client, record.id, payload.objects).run()
    if error is not None:
        raise error
    return None


def _beside_own(client: LocalClient, options: Options) -> tuple[Options, str] | None:
    """The same without waiting for this notebook's own share, and what is to be said of it."""
    from gpuqueue.client.ownshare import beside_own

    request = beside_own(client, options.request)
    if request is None:
        return None
    words = f"share {format_share(request.share or 0)} and {format_bytes(request.memory or 0)}"
    note = f"this notebook holds a share of the only GPU; this cell asks for the rest, {words}"
    return replace(options, request=request), note


# -- following --------------------------------------------------------------------------------


class _Follow:
    """Shows a job's outputs in a place until the job has ended.

    Attributes
    ----------
    last_error
        The error output that nothing of the cell's code has followed: the cell's own exception.
    after
        What came when the code was over: it is shown after the error.
    """

    def __init__(self, client: LocalClient, job_id: int, place: Place) -> None:
        self.client = client
        self.job_id = job_id
        self.place = place
        self.last_error: dict[str, Any] | None = None
        self.after: list[dict[str, Any]] = []
        self._over = False
        self._tail = OutputTail(client, job_id)
        self._shown_of = 0
        self._frozen = False

    def run(self) -> Record:
        """Show until the end; returns the job as it ended, or as it is when told to leave."""
        pause = _QUICK
        with self.client.watch() as watch:
            while True:
                job = self.client.job(self.job_id)
                self._note_freeze(job)
                if self._show(job):
                    pause = _QUICK
                    continue
                if job.state in TERMINAL or self.tick(job):
                    return job
                watch.wait(pause)
                pause = min(pause * 1.5, _SLOW)

    def _note_freeze(self, job: Record) -> None:
        """Say once that it is frozen, and once that it goes on."""
        frozen = job.state is JobState.FROZEN
        if frozen is self._frozen or job.state in TERMINAL or job.asked == "cancel":
            return
        self._frozen = frozen
        words = f"is {job.reason}; it goes on after %gpu resume" if frozen else "goes on"
        self.place.write(f"gpuqueue: job {job.id} {words}\n")

    def _show(self, job: Record) -> bool:
        came = False
        if self._shown_of not in (0, job.attempt):
            self._begin_again(job)
        for output in self._tail.read(job):
            if not came:
                self.clear()
            came, self._shown_of = True, job.attempt
            if output["output_type"] == "over":
                self._over = True
                continue
            if self._over and self.last_error is not None:
                self.after.append(output)
                continue
            # what comes on stderr after it may still be about it
            about_it = output.get("name") == "stderr"
            if self.last_error is not None and not about_it:
                self.place.show(self.last_error)
                self.last_error = None
            if about_it and (self.last_error or {}).get("ename") == "SystemExit":
                continue  # IPython says it again when it is raised here
            if output["output_type"] == "error":
                self.last_error = output
            else:
                self.place.show(output)
        return came

    def _begin_again(self, job: Record) -> None:
        """Take away what an attempt that was lost has shown: the next one shows all of it again."""
        self._shown_of, self.last_error, self._over = 0, None, False
        self.after.clear()
        self.clear()
        self.place.begin_again()
        self.place.write(
            f"gpuqueue: job {job.id} was lost and has begun again (attempt {job.attempt})\n"
        )

    def show_rest(self) -> None:
        """Show what has been kept back until it was known what it is."""
        for output in [*([self.last_error] if self.last_error else []), *self.after]:
            self.place.show(output)

    def tick(self, _job: Record) -> bool:
        """Called now and then; True to leave before the end."""
        return False

    def clear(self) -> None:
        """Called before outputs are shown."""


class _Foreground(_Follow):
    """The cell waits: it tells why while the job is queued, and passes interrupts on."""

    def __init__(
        self, shell: Any, client: LocalClient, job_id: int, objects: Mapping[int, Any]
    ) -> None:
        super().__init__(client, job_id, Here(shell))
        self._objects = objects
        self._shell = shell
        self._status = _StatusLine(shell, job_id)
        self._interrupts: list[float] = []
        self._wishes = 0

    def run(self) -> BaseException | None:  # type: ignore[override]
        """Show, bring back, and return what the cell raised."""
        with self._listening():
            job = super().run()
        self.clear()
        if self._going():
            remember(job.id, self._objects)
            return self._left(job)
        values = bring_back(self._shell, self.client, job, self.place, objects=self._objects)
        return self._error(job, values)

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Count interrupts instead of being torn out of the middle of something."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, lambda *_: self._interrupts.append(time.monotonic()))
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def tick(self, job: Record) -> bool:
        """Show why it waits; carry out interrupts."""
        if job.state is JobState.QUEUED:
            self._status.show(job, self.client)
        else:
            self.clear()
        if not self._interrupts:
            return False
        since = time.monotonic() - self._interrupts[0]
        # a kernel that is restarted or shut down is interrupted first; the job is not meant
        if self._going():
            return True
        if since < _RESTART_AFTER and len(self._interrupts) == 1:
            return False
        if self._wishes == 0:
            self._wish("cancel" if job.state is JobState.QUEUED else "interrupt")
        elif self._wishes == 1 and (len(self._interrupts) > 1 or since > _CANCEL_AFTER):
            self._wish("cancel")
        return since > _LEAVE_AFTER

    def _going(self) -> bool:
        """Whether this kernel is on its way out: then the job goes on without it."""
        return bool(self._interrupts) and not self._wishes and bool(self._shell.exit_now)

    def _left(self, job: Record) -> BaseException:
        words = (
            f"job {job.id} goes on; %gpu logs {job.id} shows it, %gpu pull {job.id} its variables"
        )
        lines = [f"KeyboardInterrupt: {words}"]
        return cell_error(
            {"ename": "KeyboardInterrupt", "evalue": words, "traceback": lines},
            KeyboardInterrupt(words),
        )

    def _wish(self, what: str) -> None:
        self._wishes += 1
        job = Job(self.client, self.job_id)

        def ask() -> None:
            with contextlib.suppress(GpuqueueError):  # it may have ended meanwhile
                getattr(job, what)()

        # asking waits for the controller's answer; this cell has no time for that
        threading.Thread(target=ask, daemon=True).start()

    def clear(self) -> None:
        """Take the status line away."""
        self._status.clear()

    def _error(self, job: Record, values: Mapping[str, Any]) -> BaseException | None:
        if job.state is JobState.SUCCEEDED:
            self.show_rest()
            return None
        if self._interrupts:
            return self._interrupted(job)
        original = values.get("<error>")
        if self.last_error is not None:
            error = cell_error(self.last_error, original)
            _when_it_is_over(self._shell, self.place, self.after, error)
            return error
        if isinstance(original, BaseException):
            # one that IPython shows as text, such as a group: that has been shown
            _when_it_is_over(self._shell, self.place, self.after, original)
            return silent(self._shell, original)
        try:
            Job(self.client, self.job_id).result(timeout=0)
        except JobFailed as error:
            # the end of its log has just been shown
            error.args = (str(error).partition("\nlast lines of its log:")[0],)
            return error
        return JobFailed(f"job {job.id} {job.state}: {job.reason}", job.id, job.returncode)

    def _interrupted(self, job: Record) -> BaseException:
        words = f"job {job.id}: {job.reason.splitlines()[0] if job.reason else job.state}"
        if job.state not in TERMINAL:
            words = f"job {job.id} is being ended; %gpu show {job.id} tells when it is gone"
        lines = [f"KeyboardInterrupt: {words}"]
        output = self.last_error or {}
        if output.get("ename") == "KeyboardInterrupt":
            lines = [*output["traceback"], words]
        return cell_error(
            {"ename": "KeyboardInterrupt", "evalue": words, "traceback": lines},
            KeyboardInterrupt(words),
        )


def _when_it_is_over(
    shell: Any, place: Place, outputs: list[dict[str, Any]], error: BaseException
) -> None:
    """Show outputs after the error that is about to be raised, as figures are in a plain cell.

    The error is then the user's own again, who may raise it once more.
    """

    def done() -> None:
        shell.events.unregister("post_execute", done)
        vars(error).pop("_render_traceback_", None)
        vars(shell).pop("showtraceback", None)
        for output in outputs:
            place.show(output)

    shell.events.register("post_execute", done)


class _StatusLine:
    """One line that says why a cell still waits, replaced as things change, then gone."""

    def __init__(self, shell: Any, job_id: int) -> None:
        self._shell = shell
        self._id = f"gpuqueue-{job_id}-{os.getpid()}"
        self._next = time.monotonic() + _STATUS_AFTER
        self._text = ""
        self._rich = hasattr(shell, "kernel")

    def show(self, job: Record, client: LocalClient) -> None:
        """Show it, at most twice a second, if it says something new."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _STATUS_EVERY
        text = f"job {job.id} {describe(job, client)}"
        if text == self._text:
            return
        if self._rich:
            self._shell.display_pub.publish(
                data={"text/plain": text},
                metadata={},
                transient={"display_id": self._id},
                update=bool(self._text),
            )
        else:
            print(f"\r\x1b[K{text[:200]}", end="", flush=True)
        self._text = text

    def clear(self) -> None:
        """Take it away, if it was there."""
        if not self._text:
            return
        self._text = ""
        if self._rich:
            self._shell.display_pub.clear_output(False)  # noqa: FBT003 - IPython's own signature
        else:
            print("\r\x1b[K", end="", flush=True)


def follow(client: LocalClient, job_id: int, place: Place) -> Record:
    """Show a job's outputs until it has ended, an exception as text."""
    shown = _Follow(client, job_id, place)
    job = shown.run()
    shown.show_rest()
    return job


def _in_background(shell: Any, client: LocalClient, job_id: int) -> None:
    place = place_of(shell)

    def work() -> None:
        with contextlib.suppress(GpuqueueError, OSError):
            job = follow(client, job_id, place)
            words = f"job {job_id} {job.state}"
            if job.reason:
                words += f": {job.reason}"
            place.write(f"[{words}; %gpu pull {job_id} brings its variables]\n", "stdout")

    threading.Thread(target=work, name=f"gpuqueue-{job_id}", daemon=True).start()
