"""Pretend GPUs, for trying things out and for tests on machines without any.

A spec is a list of entries, separated by commas. Each is
``[COUNTx][NAME:]MEMORY[/grain=N][/vendor=VENDOR][/uuid=UUID]``::

    80G                 one GPU of 80 GiB
    8192,6144           two, in MiB
    2xA100:40G          two, with a name
    4x80G/grain=125     four whose compute can be divided in eighths
    2xMI300X:192G/vendor=amd  of another maker: nvidia (unless it is said), amd or intel
    80G/uuid=GPU-0…     one with the name of a real one: what would hold jobs on that is tried here

``GPUQUEUE_FAKE_PROCS`` may name a file of pretend processes, one ``pid:index:MiB`` a line, or
``pid:index:MiB@40`` for one that computes 40 per cent of the time, and of how busy a GPU is,
``busy:index:percent``; blank lines and lines that begin with ``#`` mean nothing. It is read anew at
every reading.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gpuqueue.errors import InvalidRequest
from gpuqueue.gpus.devices import visible
from gpuqueue.model import WHOLE, Gpu, GpuProcess, Reading
from gpuqueue.units import parse_bytes

__all__ = ["FakeDevices", "parse_fake"]

MOST = 64
"""The most pretend GPUs of one machine; a typing error should not fill the memory."""

NAME = "Pretend GPU"

_ENTRY = re.compile(
    r"(?:(?P<count>\d{1,6})x)?"
    r"(?:(?P<name>[^\W_][\w .+()-]{0,59}):)?"
    r"(?P<memory>[\d.]+\s*[a-zA-Z]*)"
    r"(?:/grain=(?P<grain>\d{1,6}))?"
    r"(?:/vendor=(?P<vendor>nvidia|amd|intel))?"
    r"(?:/uuid=(?P<uuid>GPU-(?:[0-9a-fA-F-]{32,36}|[0-9a-f]{16})))?",
    re.ASCII,
)
_PROCESS = re.compile(r"(\d{1,10})\s*:\s*(\d{1,3})\s*:\s*(\d{1,12})(?:@(\d{1,3}))?", re.ASCII)
_BUSY = re.compile(r"busy\s*:\s*(\d{1,3})\s*:\s*(\d{1,2}|100)")
_MIB = 1024**2


def parse_fake(spec: str, field: str = "GPUQUEUE_FAKE_GPUS") -> tuple[Gpu, ...]:
    """The pretend GPUs of a spec; their UUIDs are ``FAKE-0``, ``FAKE-1`` and so on.

    Raises
    ------
    InvalidRequest
        Not a spec; it names ``field``.
    """
    gpus: list[Gpu] = []
    for text in (part.strip() for part in spec.split(",")):
        entry = _ENTRY.fullmatch(text)
        if not entry:
            raise InvalidRequest(
                field,
                f"{text!r} is not a pretend GPU; write for example 80G, 2x80G, 2xA100:40G or "
                "80G/grain=125, separated by commas",
            )
        count = int(entry["count"] or 1)
        if not 1 <= count <= MOST - len(gpus):
            raise InvalidRequest(field, f"{text!r} makes no GPU or more than {MOST} in all")
        grain = int(entry["grain"] or 1)
        if not 1 <= grain <= WHOLE:
            raise InvalidRequest(field, f"grain in {text!r} must be from 1 to {WHOLE} thousandths")
        memory = parse_bytes(entry["memory"], field)
        if entry["uuid"] and (count > 1 or any(gpu.uuid == entry["uuid"] for gpu in gpus)):
            raise InvalidRequest(field, f"{text!r} gives the same uuid to several GPUs")
        gpus += [
            Gpu(
                uuid=entry["uuid"] or f"FAKE-{index}",
                index=index,
                name=entry["name"] or NAME,
                memory=memory,
                vendor=entry["vendor"] or "nvidia",
                grain=grain,
                fake=True,
            )
            for index in range(len(gpus), len(gpus) + count)
        ]
    return tuple(gpus)


class FakeDevices:
    """Pretend GPUs. Nothing runs on them; jobs see their indices.

    Parameters
    ----------
    spec
        See the module's grammar.
    processes
        File of pretend processes; None, or a file that does not exist, is no processes.
    field
        Where the spec came from, to name in errors.

    Raises
    ------
    InvalidRequest
        The spec cannot be understood.
    """

    def __init__(
        self, spec: str, processes: Path | None = None, field: str = "GPUQUEUE_FAKE_GPUS"
    ) -> None:
        self._gpus = parse_fake(spec, field)
        self._file = processes
        self._problem = ""

    @property
    def problem(self) -> str:
        """What was wrong with the process file at the last reading, first thing first."""
        return self._problem

    def gpus(self) -> tuple[Gpu, ...]:
        """The pretend GPUs."""
        return self._gpus

    def read(self) -> tuple[Reading, ...]:
        """Memory and processes as the process file has them; there is nothing else to tell."""
        held, busy, self._problem = _read_processes(self._file, len(self._gpus))
        return tuple(
            Reading(
                gpu.uuid,
                memory_used=sum(process.memory or 0 for process in held[gpu.index].values()),
                utilization=busy.get(gpu.index),
                processes=tuple(process for _, process in sorted(held[gpu.index].items())),
            )
            for gpu in self._gpus
        )

    def environment(self, gpus: Sequence[Gpu]) -> dict[str, str]:
        """Environment variables with which a job sees the indices of these GPUs."""
        return visible(gpus)

    def close(self) -> None:
        """Nothing to let go of."""


def _read_processes(
    file: Path | None, gpus: int
) -> tuple[list[dict[int, GpuProcess]], dict[int, int], str]:
    """For each GPU, its processes by pid; how busy those are of which that is said, in per cent.

    And what is wrong with the file, '' if nothing. A pid that is named twice for a GPU holds the
    sum.
    """
    held: list[dict[int, GpuProcess]] = [{} for _ in range(gpus)]
    busy: dict[int, int] = {}
    problem = ""
    try:
        text = file.read_text(encoding="utf-8", errors="replace") if file else ""
    except FileNotFoundError:
        text = ""
    except OSError as error:
        return held, busy, f"The pretend process file {file} cannot be read ({error})."
    for number, line in enumerate(map(str.strip, text.split("\n")), start=1):
        if not line or line.startswith("#"):
            continue
        if (told := _BUSY.fullmatch(line)) and int(told[1]) < gpus:
            busy[int(told[1])] = int(told[2])
            continue
        match = _PROCESS.fullmatch(line)
        if match and int(match[2]) < gpus:
            pid, on = int(match[1]), held[int(match[2])]
            memory = int(match[3]) * _MIB + ((on[pid].memory or 0) if pid in on else 0)
            on[pid] = GpuProcess(pid, memory, int(match[4]) if match[4] else None)
        elif not problem:
            problem = (
                f"Line {number} of the pretend process file {file} is ignored: {line[:40]!r} is "
                f"not pid:index:MiB with an index below {gpus}."
            )
    return held, busy, problem
