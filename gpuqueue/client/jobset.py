"""Several jobs that belong together: the runs of a sweep."""

from __future__ import annotations

import html
import sys
from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, overload

from gpuqueue.client.job import Job
from gpuqueue.model import TERMINAL, IntentKind, JobState
from gpuqueue.units import format_bytes, format_duration

__all__ = ["JobSet"]

_SMALL = 64 * 1024


class JobSet(Sequence[Job]):
    """The jobs of one ``map``, in the order of its arguments."""

    def __init__(
        self, jobs: list[Job], calls: list[tuple[tuple[Any, ...], dict[str, Any]]]
    ) -> None:
        self._jobs = jobs
        self._calls = calls

    @overload
    def __getitem__(self, index: int) -> Job: ...
    @overload
    def __getitem__(self, index: slice) -> JobSet: ...
    def __getitem__(self, index: int | slice) -> Job | JobSet:
        if isinstance(index, slice):
            return JobSet(self._jobs[index], self._calls[index])
        return self._jobs[index]

    def __len__(self) -> int:
        return len(self._jobs)

    def wait(self, timeout: float | None = None, *, progress: bool = True) -> JobSet:
        """Block until all have ended, showing how many have; return itself.

        Raises
        ------
        TimeoutError
            Some have not ended in ``timeout`` seconds. They go on.
        """
        import time

        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._jobs:
            return self
        client = self._jobs[0]._client  # noqa: SLF001 - the set is made of its own client's jobs
        bar = _Bar(len(self), enabled=progress)
        with client.watch() as watch:
            while True:
                states = client.store.states(job.id for job in self._jobs)
                bar.show(list(states.values()))
                if all(states[job.id] in TERMINAL for job in self._jobs):
                    bar.close()
                    return self
                left = 1.0 if deadline is None else min(1.0, deadline - time.monotonic())
                if left <= 0:
                    bar.close()
                    raise TimeoutError(f"{bar.left} of {len(self)} jobs have not ended; they go on")
                watch.wait(left)

    def results(self, timeout: float | None = None, *, progress: bool = True) -> list[Any]:
        """Wait for all, then what each gave back, in order.

        The first failure is raised, after all have ended: no run is lost for another's fault.
        """
        self.wait(timeout, progress=progress)
        return [job.result() for job in self._jobs]

    def cancel(self) -> None:
        """Cancel those that have not ended."""
        if self._jobs:
            client = self._jobs[0]._client  # noqa: SLF001
            states = client.store.states(job.id for job in self._jobs)
            left = [job.id for job in self._jobs if states.get(job.id) not in TERMINAL]
            client.intend_all(IntentKind.CANCEL, left)  # those that ended meanwhile are refused

    def table(self, *, most: float = inf) -> list[dict[str, Any]]:
        """One row for each job: its arguments, state, run time in seconds, result or reason.

        A result of more than ``most`` bytes is left where it is; its size stands for it.
        """
        rows = []
        for job, (args, kwargs) in zip(self._jobs, self._calls, strict=True):
            record = job.record
            row: dict[str, Any] = {"job": job.id}
            row |= {f"arg{i}": value for i, value in enumerate(args)} | kwargs
            row["state"] = str(record.state)
            if record.started is not None and record.ended is not None:
                row["seconds"] = round(record.ran(record.ended), 2)
            if record.state is JobState.SUCCEEDED:
                row |= _result(job, most)
            elif record.state in TERMINAL:
                row["reason"] = record.reason
            rows.append(row)
        return rows

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs)

    def __repr__(self) -> str:
        counts: dict[str, int] = {}
        for job in self._jobs:
            counts[str(job.state)] = counts.get(str(job.state), 0) + 1
        told = ", ".join(f"{count} {state}" for state, count in counts.items())
        many = "1 job" if len(self) == 1 else f"{len(self)} jobs"
        return f"<{many}: {told}>" if told else "<no jobs>"

    def _repr_html_(self) -> str:
        rows = self.table(most=_SMALL)
        names = list(dict.fromkeys(name for row in rows for name in row))
        head = "".join(f"<th>{html.escape(str(name))}</th>" for name in names)
        lines = []
        for row in rows:
            cells = "".join(f"<td>{html.escape(_shown(row.get(n, '')))}</td>" for n in names)
            lines.append(f"<tr>{cells}</tr>")
        return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _result(job: Job, most: float) -> dict[str, Any]:
    try:
        size = job.result_path.stat().st_size if job.result_path.exists() else 0
        value = job.result() if size <= most else f"<{format_bytes(size)}>"
    except Exception as error:  # noqa: BLE001 - one that does not load here costs its own cell only
        value = f"<{error}>"
    return value if isinstance(value, dict) else {"result": value}


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


class _Bar:
    """A progress line that updates in place, in a notebook and in a terminal."""

    def __init__(self, total: int, *, enabled: bool) -> None:
        import time

        self.total, self.left = total, total
        self._clock = time.monotonic
        self._began = self._clock()
        self._handle: Any = None
        self._shown = ""
        self._mode = self._pick() if enabled else "off"

    @staticmethod
    def _pick() -> str:
        shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        if shell is not None and hasattr(shell, "kernel"):
            return "notebook"
        return "terminal" if sys.stderr.isatty() else "off"

    def show(self, states: list[JobState]) -> None:
        """Draw the bar for these states, if it changed."""
        ended = sum(state in TERMINAL for state in states)
        bad = sum(state in TERMINAL and state is not JobState.SUCCEEDED for state in states)
        running = sum(state in (JobState.RUNNING, JobState.STARTING) for state in states)
        self.left = self.total - ended
        filled = round(20 * ended / self.total)
        text = f"{'█' * filled}{'░' * (20 - filled)} {ended}/{self.total} done, {running} running"
        if bad:
            text += f", {bad} not successful"
        if text == self._shown or self._mode == "off":
            return
        self._shown = text
        text += f" ({format_duration(self._clock() - self._began)})"
        if self._mode == "terminal":
            sys.stderr.write(f"\r{text}\x1b[K")
            sys.stderr.flush()
            return
        from IPython.display import Pretty, display

        class Line(Pretty):
            def __repr__(self) -> str:
                return text

        if self._handle is None:
            line = Line(text)  # type: ignore[no-untyped-call]
            self._handle = display(line, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(Line(text))  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Leave the bar as it is and go to the next line."""
        if self._mode == "terminal" and self._shown:
            sys.stderr.write("\n")
