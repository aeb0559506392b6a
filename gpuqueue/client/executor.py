"""``GpuExecutor``: the queue behind the interface of ``concurrent.futures``."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

from gpuqueue.client.job import Job
from gpuqueue.client.local import LocalClient, default_client
from gpuqueue.client.payload import function_payload
from gpuqueue.client.request import options_from
from gpuqueue.errors import GpuqueueError, InvalidRequest, NotAllowedNow
from gpuqueue.model import TERMINAL, IntentKind, JobState
from gpuqueue.settings import may_autostart

__all__ = ["GpuExecutor", "JobFuture"]

P = ParamSpec("P")
T = TypeVar("T")

_ANSWER = 30.0
"""Seconds for the controller to take a waiting job out of the queue."""


class JobFuture(Future[T]):
    """A future whose work is a job. ``job`` is its handle.

    ``cancel`` cancels a job that waits; a running job goes on, as the interface says (use
    ``future.job.cancel()`` for that).
    """

    job: Job

    def cancel(self) -> bool:
        """Cancel if the job still waits; whether it is cancelled now."""
        if self.cancelled():
            return True
        if self.done() or self.job.state is not JobState.QUEUED:
            return False
        with contextlib.suppress(NotAllowedNow):
            self.job.cancel()
        # a busy machine's controller may take a while to hear it, and False would be a lie then;
        # where there is none, nobody will
        client, deadline = default_client(), time.monotonic() + _ANSWER
        with client.watch() as watch:
            while self.job.state is JobState.QUEUED and time.monotonic() < deadline:
                if client.lead() is None and not may_autostart(client.settings):
                    break
                watch.wait(0.5)
        # it may have started before the controller saw the wish; what counts is what it became
        record = self.job.record
        return record.state is JobState.CANCELLED and (super().cancel() or self.cancelled())


class GpuExecutor(Executor):
    """Run functions as jobs: ``executor.submit(train, lr=0.1)`` gives a future.

    Parameters
    ----------
    **options
        The options of ``gpuqueue.submit``, for every call.

    Examples
    --------
    >>> with GpuExecutor(mem="6G") as pool:  # doctest: +SKIP
    ...     losses = list(pool.map(train, [0.1, 0.01, 0.001]))
    """

    def __init__(self, **options: Any) -> None:
        self._options = options_from(options)
        if self._options.key is not None:
            raise InvalidRequest("key", "would make every call the same job; leave it out")
        self._client: LocalClient = default_client()
        self._pending: dict[int, JobFuture[Any]] = {}
        self._lock = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> JobFuture[T]:
        """Queue a call."""
        payload = function_payload(fn, args, kwargs)
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            record = self._client.submit([(payload, self._options)])[0]
            future: JobFuture[T] = JobFuture()
            future.job = Job(self._client, record.id)
            self._pending[record.id] = future
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._follow, name="gpuqueue-futures", daemon=True
                )
                self._thread.start()
            self._lock.notify_all()
        return future

    def _follow(self) -> None:
        with self._client.watch() as watch:
            while True:
                with self._lock:
                    while not self._pending:
                        if self._closed:
                            return
                        self._lock.wait()
                    pending = dict(self._pending)
                try:
                    states = self._client.store.states(pending)
                except GpuqueueError:
                    watch.wait(1.0)
                    continue
                self._settle(pending, states)
                watch.wait(1.0)

    def _settle(
        self, pending: Mapping[int, JobFuture[Any]], states: Mapping[int, JobState]
    ) -> None:
        for job_id, future in pending.items():
            state = states.get(job_id)
            if state is None or state in TERMINAL:
                with self._lock:
                    self._pending.pop(job_id, None)
                _resolve(future, state)
            elif state is not JobState.QUEUED and not future.running() and not future.cancelled():
                future.set_running_or_notify_cancel()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; ``wait`` for those that are queued or running.

        Without ``wait``, and when this process ends, the jobs go on.
        """
        with self._lock:
            self._closed = True
            pending = list(self._pending.values())
            thread = self._thread
            self._lock.notify_all()
        if cancel_futures:
            waiting = [f for f in pending if f.job.state is JobState.QUEUED]
            self._client.intend_all(IntentKind.CANCEL, [future.job.id for future in waiting])
            for future in waiting:
                future.cancel()
        if wait and thread is not None:
            thread.join()


def _resolve(future: JobFuture[Any], state: JobState | None) -> None:
    if state is JobState.CANCELLED and not future.running():
        Future.cancel(future)  # it never ran: cancelled from elsewhere, or by its own cancel()
    if not future.running() and not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(future.job.result())
    except BaseException as error:  # noqa: BLE001 - the job's own exception is the future's
        future.set_exception(error)
