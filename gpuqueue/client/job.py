"""``Job``: a handle on one job, good in any process of the user on this host."""

from __future__ import annotations

import contextlib
import html
import threading
import time
from collections.abc import Callable, Generator, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuqueue.client.follow import follow_log, tail, tail_from
from gpuqueue.client.local import LocalClient, default_client
from gpuqueue.client.payload import load_result
from gpuqueue.client.resizing import Resized, resize
from gpuqueue.client.resubmit import resubmit
from gpuqueue.errors import GpuqueueError, JobCancelled, JobFailed, JobLost, PayloadError
from gpuqueue.model import ACTIVE, TERMINAL, Hold, IntentKind, JobKind, JobState, Placement
from gpuqueue.model import Job as Record
from gpuqueue.run.files import RESULT
from gpuqueue.store import job_to_dict
from gpuqueue.units import format_duration

if TYPE_CHECKING:
    from gpuqueue.client.drilled import Drill
    from gpuqueue.client.throughput import Rate
    from gpuqueue.record.facts import Code

__all__ = ["Job", "RemoteTraceback"]


class RemoteTraceback(Exception):
    """The traceback of an exception as it was in the job's own process."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


class Job:
    """One job, by its number. Everything it tells is read afresh from the store.

    ``await job`` gives what ``job.result()`` gives.
    """

    def __init__(self, client: LocalClient, job_id: int) -> None:
        self._client = client
        self.id = job_id

    # -- what it is ---------------------------------------------------------------------------

    @property
    def record(self) -> Record:
        """The job as the store knows it now, frozen."""
        return self._client.job(self.id)

    @property
    def state(self) -> JobState:
        """Where it is in its life."""
        return self.record.state

    @property
    def returncode(self) -> int | None:
        """Exit code; negative for a signal; None while it runs, or if it is unknown."""
        return self.record.returncode

    @property
    def reason(self) -> str:
        """Why it ended as it did; empty while it runs and after a success."""
        return self.record.reason

    @property
    def tag(self) -> str:
        """Its short name."""
        return self.record.tag

    @property
    def placement(self) -> Placement | None:
        """Which GPUs it has or had, and how much of each; None before it started."""
        return self.record.placement

    @property
    def hold(self) -> Hold | None:
        """How far its latest start is held to its share, and by what; None for whole GPUs."""
        return self.record.hold

    @property
    def result_path(self) -> Path:
        """Where what it gave back is kept (it may not be there)."""
        record = self.record
        return self._client.home.attempt(record.id, max(1, record.attempt)) / RESULT

    @property
    def directory(self) -> Path:
        """The job's own directory."""
        return self._client.home.job(self.id)

    @property
    def code(self) -> Code | None:
        """Which code it ran: version, commit, dirty. None until a second after it began."""
        from gpuqueue.record.facts import code_from

        return code_from(self._client.store.events(job_id=self.id))

    @property
    def checkpoints(self) -> list[Path]:
        """Its complete checkpoints, the newest last."""
        from gpuqueue.record.checkpoints import captured

        return captured(self.directory, self._client.spec(self.id))

    @property
    def progress(self) -> dict[str, Any] | None:
        """What it noted last with ``gpuqueue.checkpoint.log``: ``at``, ``step``, ``metrics``.

        None while this attempt has noted nothing.
        """
        from gpuqueue.client.progress import latest_note

        return latest_note(self._client, self.record)

    @property
    def throughput(self) -> list[Rate]:
        """What it does each second, and for each hour of a whole GPU that it holds.

        Of what it notes with ``gpuqueue.checkpoint.log``: its step, and rates of its own such as
        ``samples_per_second``. Empty while this attempt has noted too little.
        """
        from gpuqueue.client.throughput import throughput

        return throughput(self._client, self.record)

    def done(self) -> bool:
        """Whether it has ended."""
        return self.state in TERMINAL

    def why(self) -> str:
        """One plain sentence: why it waits, or what became of it."""
        record = self.record
        if record.state is not JobState.QUEUED:
            said = record.reason or _so_it_is(record.state)
            doubts = record.hold.doubts if record.hold and record.state in ACTIVE else ()
            return "; ".join([said, *doubts])
        wait = self._client.why(self.id)
        if wait is None:
            return "it is about to start"
        when = ""
        if wait.expected is not None:
            when = f"; expected to start in {format_duration(wait.expected - time.time())}"
        return f"{wait.sentence}{when}"

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data, without the environment."""
        return job_to_dict(self.record)

    # -- waiting ------------------------------------------------------------------------------

    def wait(self, timeout: float | None = None) -> int | None:
        """Block until it has ended; return its exit code.

        Raises
        ------
        TimeoutError
            It has not ended in ``timeout`` seconds. It goes on.
        """
        return self._client.wait(self.id, timeout).returncode

    def result(self, timeout: float | None = None) -> Any:
        """Wait, then give what the job gave back.

        A function's return value; a cell's names and values; the path of an executed notebook;
        None for a script.

        Raises
        ------
        TimeoutError
            It has not ended in ``timeout`` seconds. It goes on.
        JobFailed
            It ended without success. A function's own exception is raised as it is, with the
            traceback from its process as its cause.
        JobCancelled, JobLost
            It was cancelled; its processes were ended from outside.
        """
        record = self._client.wait(self.id, timeout)
        folder = self._client.home.attempt(record.id, max(1, record.attempt))
        if record.state is not JobState.SUCCEEDED:
            raise self._failure(record, folder)
        if record.kind is JobKind.FUNCTION:
            return self._load(folder)[1]
        if record.kind is JobKind.NOTEBOOK:
            return folder / "run" / "output.ipynb"
        if record.kind is JobKind.CELL:
            return self._cell_values(folder)
        return None

    def _cell_values(self, folder: Path) -> dict[str, Any]:
        from gpuqueue.run.values import FromFile, load_values

        values, problems = load_values(folder / RESULT, origins=FromFile(folder.parent / "payload"))
        if problems:
            names = "; ".join(f"{name}: {why}" for name, why in problems.items())
            print(f"gpuqueue: job {self.id}: not everything could be loaded here ({names})")
        return values

    def _load(self, folder: Path) -> tuple[str, Any]:
        try:
            return load_result(folder / RESULT)
        except FileNotFoundError:
            raise PayloadError("result", f"job {self.id} left no result in {folder}") from None
        except Exception as error:
            raise PayloadError(
                "result",
                f"the result of job {self.id} cannot be loaded here ({type(error).__name__}: "
                f"{error}); it stays in {folder / RESULT}",
            ) from error

    def _failure(self, record: Record, folder: Path) -> BaseException:
        if record.kind is JobKind.FUNCTION and record.state is JobState.FAILED:
            try:
                kind, value = load_result(folder / RESULT)
            except Exception:  # noqa: BLE001 - there may be none, or one that does not load
                kind, value = "", None
            if kind == "error":
                exception, text = value
                if isinstance(exception, BaseException):
                    exception.__cause__ = RemoteTraceback(text)
                    return exception
        words = f"job {record.id} ({record.tag}) {_ended(record.state)}"
        if record.reason and record.reason != str(record.state):
            words += f": {record.reason}"
        if record.state is JobState.CANCELLED:
            return JobCancelled(words, record.id, record.returncode)
        last = tail(folder / "log", 5).rstrip()
        if last:
            words += f"\nlast lines of its log:\n{last}"
        if record.reason.startswith(("lost:", "interrupted: the machine")):
            return JobLost(words, record.id, record.returncode)
        return JobFailed(words, record.id, record.returncode)

    def __await__(self) -> Generator[Any, None, Any]:
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def settle(how: Callable[[Any], None], value: Any) -> None:
            if not future.done():
                how(value)

        def work() -> None:
            try:
                how, value = future.set_result, self.result()
            except BaseException as error:  # noqa: BLE001 - it is for whoever awaits
                how, value = future.set_exception, error
            with contextlib.suppress(RuntimeError):  # the loop may be closed by now
                loop.call_soon_threadsafe(settle, how, value)

        # a thread of the loop's own pool would keep the program from ending before the job does
        threading.Thread(target=work, name=f"gpuqueue-await-{self.id}", daemon=True).start()
        return future.__await__()

    def __reduce__(self) -> tuple[Callable[[int], Job], tuple[int]]:
        return _by_number, (self.id,)

    # -- output -------------------------------------------------------------------------------

    def logs(self, lines: int | None = None, *, follow: bool = False) -> Any:
        """What the job wrote: all of it, or its last ``lines`` lines.

        With ``follow``, an iterator of pieces of text that ends when the job has ended.
        """
        if follow:
            return self._follow(lines)
        return tail(self._client.log_path(self.record), lines)

    def _follow(self, lines: int | None) -> Iterator[str]:
        start = 0
        if lines is not None:
            text, start = tail_from(self._client.log_path(self.record), lines)
            yield text
        yield from follow_log(self._client, self.id, start=start)

    # -- wishes -------------------------------------------------------------------------------

    def cancel(self) -> None:
        """End it: a waiting job is taken out of the queue, a running one asked and then ended.

        Raises
        ------
        NotAllowedNow
            It has ended already.
        """
        self._client.intend(IntentKind.CANCEL, self.id)

    def interrupt(self) -> None:
        """Interrupt it, as Ctrl-C would; a waiting job is cancelled."""
        self._client.intend(IntentKind.INTERRUPT, self.id)

    def to_front(self) -> None:
        """Move it to the front of the queue."""
        self._client.intend(IntentKind.PRIORITY, self.id)

    def set_priority(self, priority: int) -> None:
        """Give a waiting job a priority; higher starts first, 0 is normal."""
        self._client.intend(IntentKind.PRIORITY, self.id, priority)

    def swap(self, other: Job | int) -> None:
        """Exchange its place in the queue with that of another waiting job."""
        number = other.id if isinstance(other, Job) else other
        self._client.intend(IntentKind.SWAP, self.id, number)

    def resize(self, share: str | float | None = None, mem: str | float | None = None) -> Resized:
        """Give it another share of each of its GPUs, another memory, or both, also as it runs.

        What is None stays. It grows only into what is free; lowering never ends anything.

            >>> job.resize(share=0.5, mem="20G")  # doctest: +SKIP
            job 3 has share 0.5 (admitted only), mem 20G (now)

        Raises
        ------
        InvalidRequest
            Neither is given, one cannot be read, or the job has no share of a GPU.
        DoesNotFit
            This machine could never hold a job of that size.
        NotAllowedNow
            It has ended, or there is no room: the sentence says what is free. It keeps its size.
        """
        return resize(self._client, self.id, share=share, mem=mem)

    def retry(self, *, priority: bool = False) -> Job:
        """Queue the same work again, as a new job with the same surroundings."""
        return Job(self._client, resubmit(self._client, self.record, priority=priority).id)

    def drill(
        self, *, timeout: float = 600.0, steps: int = 3, at: int | None = None, ask: bool = False
    ) -> Drill:
        """Whether its work goes on where it saved when it is killed in the middle and run again.

        Two new jobs with the same work, one after the other, with a folder for checkpoints of
        their own; this job is left alone. It goes by what is reported with ``checkpoint.log``.

        Parameters
        ----------
        timeout
            Seconds that each run has, from its start. Both are ended when the drill is over.
        steps
            How many reports the first run makes after a checkpoint before it is killed.
        at
            Kill it at this step instead, whatever it has saved.
        ask
            Ask it to save and step aside, as for another job, rather than kill it.

        Raises
        ------
        InvalidRequest
            Its work reports nothing, or ends before it can be killed: says what to add.
        JobFailed
            The first run failed by itself.
        """
        from gpuqueue.client.drill import drill_job

        return drill_job(self._client, self.record, timeout=timeout, steps=steps, at=at, ask=ask)

    # -- looks --------------------------------------------------------------------------------

    def __repr__(self) -> str:
        try:
            record = self.record
        except GpuqueueError as error:
            return f"<Job {self.id}: {error}>"
        return f"<Job {self.id} {record.tag}: {describe(record, self._client)}>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        text = repr(self)
        try:
            record = self.record
            body = describe(record, self._client)
        except GpuqueueError:
            return {"text/plain": text}
        colour = {"succeeded": "#2e7d32", "failed": "#c62828", "cancelled": "#757575"}.get(
            str(record.state), "#1565c0"
        )
        markup = (
            f'<div style="border-left:3px solid {colour};padding:2px 10px">'
            f"<b>Job {record.id}</b> · {html.escape(record.tag)} · {html.escape(body)}"
            f'<br><code style="opacity:.75">{html.escape(_shorten(record.command))}</code></div>'
        )
        told = {"text/plain": text, "text/html": markup}
        if record.state in TERMINAL:
            return told
        return told | _live_card(self.id)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Job)
            and other.id == self.id
            and other._client.home == self._client.home
        )

    def __hash__(self) -> int:
        return hash((Job, self.id))


def _live_card(job_id: int) -> dict[str, Any]:
    """A card that follows the job, where a notebook can show one; a plain one is there anyhow."""
    try:
        # by name, because this room knows nothing of those above it
        bundle = import_module("gpuqueue_widgets").card(job_id)
    except Exception:  # noqa: BLE001 - a job must not fail to show because of a widget
        return {}
    return {kind: value for kind, value in (bundle or {}).items() if "widget-view" in kind}


def _so_it_is(state: JobState) -> str:
    if state is JobState.CANCELLED:
        return "it was cancelled"
    return f"it has {state}" if state in TERMINAL else f"it is {state}"


def _by_number(job_id: int) -> Job:
    """A job sent to another process is the same job there."""
    return Job(default_client(), job_id)


def _ended(state: JobState) -> str:
    return "was cancelled" if state is JobState.CANCELLED else str(state)


def _shorten(command: str) -> str:
    line = " ".join(command.split())
    return line if len(line) <= 120 else f"{line[:117]}..."


def describe(record: Record, client: LocalClient) -> str:
    """A job's state in a few words for people."""
    if record.state is JobState.QUEUED:
        wait = client.why(record.id)
        if wait is None:
            return "about to start"
        when = ""
        if wait.expected is not None and wait.expected > time.time():
            at = time.strftime("%H:%M", time.localtime(wait.expected))
            when = f", expected to start in {format_duration(wait.expected - time.time())} ({at})"
        hint = f"; {wait.hint}" if wait.hint else ""
        return f"queued, position {wait.position}{when}; {wait.sentence}{hint}"
    where = ""
    if record.placement is not None and record.placement.grants:
        index = {gpu.uuid: gpu.index for gpu in client.machine().gpus}
        names = ", ".join(str(index.get(uuid, uuid)) for uuid in record.placement.gpus)
        where = f" on GPU {names}"
    words = f"{record.state}{where}"
    if record.started is not None:
        words += f", {format_duration(record.ran(time.time()))}"
    return f"{words}: {record.reason}" if record.reason else words
