"""MPS behind the common protocol: a share of the compute of one GPU, for each process of a job."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpuqueue.errors import MpsError
from gpuqueue.model import ProcessId
from gpuqueue.run.files import MPS, read_json, write_json
from gpuqueue.run.process import environment_of
from gpuqueue.share.mechanism import Bound, Effect, Probe, Standing, Subject
from gpuqueue.share.memcap import LEDGER, ledger_of
from gpuqueue.share.mps import book, canary, daemon
from gpuqueue.share.mps.control import PERCENTAGE, PIPE, PROGRAM, Control, Limits, Session
from gpuqueue.share.mps.place import Place, is_ours, place_of
from gpuqueue.share.mps.variables import NOWHERE, own_percent, percent_of, variables
from gpuqueue.share.proofs import remembered

__all__ = ["Mps"]

log = logging.getLogger("gpuqueue")


class Mps:
    """Caps the compute of each process of a job; NVIDIA, on Linux.

    It is a cap and not a reservation: two jobs of half a GPU may meet on the same multiprocessors.
    Where the memory cap is not in force, MPS limits the device memory of each process as well, if
    that was seen to work.

    Each call may take seconds, up to those of `Limits`; see to it that nobody waits for them.

    Parameters
    ----------
    gpus
        UUIDs of the GPUs that jobs may have parts of.
    folder
        Where to keep what was proven.
    base
        The environment for daemons and trials; this process's where it is None.
    root
        The folder for all daemons of this user; None is the usual one.
    """

    name = "MPS"
    subject = Subject.COMPUTE
    standing = Standing.CAPPED
    reports = False
    at_start = False
    scope = "each process of a job"
    changes = Effect.NEXT_START
    bypass = "a process without the job's CUDA_MPS_PIPE_DIRECTORY"

    def __init__(
        self,
        gpus: Sequence[str],
        folder: Path,
        base: Mapping[str, str] | None = None,
        *,
        root: Path | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._gpus = tuple(gpus)
        self._folder = folder
        self._base = dict(os.environ if base is None else base)
        self._root = root
        self._limits = limits or Limits()
        self._proven: dict[str, Probe] = {}

    # -- what works here --------------------------------------------------------------------------

    def probe(self) -> Probe:
        """Try it on each GPU: two programs under a daemon, one with half of the GPU."""
        if why := self._impossible():
            return Probe(usable=False, reason=why)
        with ThreadPoolExecutor(max_workers=max(1, len(self._gpus))) as pool:
            probes = pool.map(self._remembered, self._gpus)
            self._proven = dict(zip(self._gpus, probes, strict=True))
        good = [probe for probe in self._proven.values() if probe.usable]
        told = (good or list(self._proven.values()))[0]
        return Probe(
            usable=bool(good),
            reason=told.reason,
            each=self._proven,
            figure=told.figure,
            beside=told.beside,
        )

    def _impossible(self) -> str:
        """Why there is nothing to try; empty if there is."""
        if not sys.platform.startswith("linux"):
            return f"MPS is there on Linux only, not on {sys.platform}."
        if Path("/dev/dxg").exists() and not Path("/dev/nvidiactl").exists():
            return "MPS is not there in the Windows Subsystem for Linux."
        if not self._gpus:
            return "There is no NVIDIA GPU for MPS."
        if self._program() is None:
            return (
                f"There is no {PROGRAM} on the PATH: install it with the NVIDIA driver (package "
                "nvidia-compute-utils or similar) to have compute capped."
            )
        return ""

    def _program(self) -> str | None:
        return shutil.which(PROGRAM, path=self._base.get("PATH", os.defpath))

    def _control(self, gpu: str) -> Control:
        program = self._program()
        if program is None:
            raise MpsError(f"There is no {PROGRAM} on the PATH any more.")
        return Control(place_of(gpu, self._root), program, self._base, self._limits)

    def _remembered(self, gpu: str) -> Probe:
        if not gpu.startswith("GPU-"):
            return Probe(
                usable=False,
                reason=f"{gpu} is a MIG instance: a part of a GPU already, of which MPS is not "
                "asked for parts.",
            )
        return remembered(self._folder, f"mps-{gpu}", lambda: self._trial(gpu), gpu)

    def _trial(self, gpu: str) -> Probe:
        try:
            with tempfile.TemporaryDirectory(prefix="gpuqueue-mps-") as folder:
                return canary.try_out(self._control(gpu), self._base, Path(folder))
        except MpsError as error:
            return Probe(usable=False, reason=str(error))

    # -- one job ----------------------------------------------------------------------------------

    def environment(self, bound: Bound) -> Mapping[str, str]:
        """Have a daemon, let it give as much as this job's share, and tell the job where it is.

        Raises
        ------
        MpsError
            It cannot be capped: its GPU was not proven, it has parts of several, it brings a daemon
            of its own, or the daemon does not answer.
        """
        if not bound.holds(Subject.COMPUTE):
            return self._without(bound.base)
        gpu, percent = self._share(bound)
        if bound.base.get(PIPE) and not is_ours(bound.base[PIPE], self._root):
            raise MpsError(
                f"The job's own environment has {PIPE}={bound.base[PIPE]}, so it is left with that "
                "MPS, and nothing holds it to its share."
            )
        proof = self._proven.get(gpu)
        if proof is None or not proof.usable:  # it may have been full when it was tried
            proof = self._proven[gpu] = self._remembered(gpu)
        if not proof.usable:
            raise MpsError(proof.reason)
        control = self._control(gpu)
        with control.session() as session:
            try:
                book.enter(control.place, bound.folder, percent)
                daemon.ensure(session, bound.folder)
                session.hold_to(book.ceiling(control.place))
            except BaseException:
                book.strike(control.place, bound.folder)
                raise
        write_json(bound.folder / MPS, {"gpu": gpu, "pipe": str(control.place.pipe)}, flush=False)
        if is_ours(bound.base.get(PIPE, ""), self._root):
            percent_set = percent  # of the job that has submitted this one
        else:
            percent_set = min(percent, own_percent(bound.base))
        # a process keeps its limit, so one beside the memory cap would stand in the way of a larger
        # cap, which holds at once
        capped = bound.base.get(LEDGER) == str(ledger_of(bound.folder))
        memory = bound.caps.get(gpu) if proof.beside and not capped else None
        return variables(control.place, percent_set, memory)

    def _without(self, base: Mapping[str, str]) -> Mapping[str, str]:
        """Let go of the daemon of another job, from inside which this one was submitted."""
        if not is_ours(base.get(PIPE, ""), self._root):
            return {}
        return {PIPE: str(Path(base[PIPE]).parents[1] / NOWHERE), PERCENTAGE: "100"}

    @staticmethod
    def _share(bound: Bound) -> tuple[str, int]:
        if len(bound.compute) > 1:
            raise MpsError(
                f"The job has parts of {len(bound.compute)} GPUs. Each has an MPS daemon of its "
                "own, for a fault ends all that share one, and a process can use only one of them."
            )
        ((gpu, compute),) = bound.compute.items()
        assert compute is not None
        return gpu, percent_of(compute)

    def apply(self, bound: Bound, process: ProcessId) -> None:
        """Nothing: the environment does it."""

    def resize(self, bound: Bound) -> Effect:
        """Let the daemon give as much as the new share.

        A process keeps the share that it began with, and one that begins takes the less of the
        job's environment and of what the daemon gives. So it holds now if that is no other share,
        or if none of the job's processes is there yet and the daemon gives no more than that.
        """
        if not bound.holds(Subject.COMPUTE):
            return Effect.NEXT_START
        gpu, percent = self._share(bound)
        control = self._control(gpu)
        with control.session() as session:
            before = book.shares(control.place).get(bound.folder)
            if before == percent:
                return Effect.NOW
            book.enter(control.place, bound.folder, percent)
            most = book.ceiling(control.place)
            if daemon.running(control.place) is None:
                return Effect.NEXT_START
            session.hold_to(most)
            lowered = before is not None and percent < before and most == percent
            return Effect.NOW if lowered and not session.all_clients() else Effect.NEXT_START

    def verify(self, bound: Bound, users: Collection[int]) -> tuple[str, ...]:
        """Processes that use a GPU and that MPS does not have, or with more than their share."""
        if not bound.holds(Subject.COMPUTE):
            return ()
        try:
            gpu, percent = self._share(bound)
            control = self._control(gpu)
            with control.session() as session:
                if daemon.running(control.place) is None:
                    return tuple(_loose(gpu, users, "the daemon is gone"))
                found = _faults(session)
                listed = session.all_clients()
        except MpsError as error:
            return (f"Whether the job is held to its share of compute cannot be seen: {error}",)
        return (
            *found,
            *_loose(gpu, sorted(set(users) - set(listed)), "MPS does not have it"),
            *_larger(control.place, sorted(set(users) & set(listed)), percent),
        )

    def release(self, bound: Bound) -> None:
        """Give no more than the others' shares; end the daemon if nobody is left. Never raises."""
        note = read_json(bound.folder / MPS)
        if not isinstance(note, dict):
            return
        try:
            control = self._control(note["gpu"])
            with control.session() as session:
                if not book.strike(control.place, bound.folder) or daemon.end_if_idle(session):
                    return
                session.hold_to(book.ceiling(control.place))
        except MpsError as error:
            log.warning("a job has left MPS, and not all of it could be put in order: %s", error)


def _faults(session: Session) -> Iterable[str]:
    return [
        f"The MPS server of {session.place.gpu} (pid {server}) is in fault: a program on it has "
        "failed, all others there end with it, and new ones are refused until they have."
        for server in session.servers()
        if session.faulty(server)
    ]


def _loose(gpu: str, pids: Iterable[int], why: str) -> Iterable[str]:
    return [
        f"Process {pid} uses {gpu} and is not held to the job's share of compute: {why}. It was "
        "started without the job's environment, or before MPS was there."
        for pid in pids
    ]


def _larger(place: Place, pids: Iterable[int], percent: int) -> Iterable[str]:
    started = {pid: environment_of(pid) for pid in pids}
    told = {
        pid: environment.get(PERCENTAGE, "")
        for pid, environment in started.items()
        # one that MPS has without this got its share later on, as a cell does: it is not seen there
        if environment.get(PIPE) == str(place.pipe)
    }
    return [
        f"Process {pid} was started with {value or 'all'} per cent of the GPU's compute, and the "
        f"job's share is {percent}."
        for pid, value in told.items()
        if own_percent({PERCENTAGE: value} if value else {}) > percent
    ]
