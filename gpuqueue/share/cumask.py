"""A part of an AMD GPU's compute units for each job, by masks that ROCm takes from a variable.

Jobs on one GPU get units of their own, none of which two share. How many there are and how they are
wired is read from the driver's topology (``/sys/class/kfd``). On a GPU of several dies the bits of
a mask go round them, so bits are given out in rounds; on GPUs whose units come in pairs, in pairs
(AMD, "Setting the number of compute units"; Linux, ``kfd_mqd_manager.c``).

ROCm ignores a mask that it does not understand, in silence, and nothing here has seen one at work:
so it is advice, not a cap. It holds from the next start on.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuqueue.errors import ComputeCapError
from gpuqueue.model import WHOLE, ProcessId
from gpuqueue.run.files import read_json, write_json
from gpuqueue.run.process import boot_id
from gpuqueue.share.mechanism import Bound, Effect, Probe, Standing, Subject

__all__ = ["MASK", "VISIBLE", "CuMask", "Units", "mask_of", "topology"]

MASK = "HSA_CU_MASK"
VISIBLE = "ROCR_VISIBLE_DEVICES"
TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")

_PAIRED_SINCE = 100000
"""``gfx_target_version`` of the first GPUs whose units are switched on in pairs."""


@dataclass(frozen=True, slots=True)
class Units:
    """The compute units of one GPU: how many, and in which steps they can be given out."""

    count: int
    step: int

    @property
    def steps(self) -> int:
        """How many parts there are to give out."""
        return self.count // self.step


def topology(nodes: Path = TOPOLOGY) -> dict[str, Units]:
    """The units of each AMD GPU by its UUID, as ROCm writes it; empty where there are none."""
    found = {}
    for folder in sorted(nodes.glob("*")) if nodes.is_dir() else ():
        facts = _facts(folder / "properties")
        simds, each, name = (
            facts.get(key, 0) for key in ("simd_count", "simd_per_cu", "unique_id")
        )
        if simds and each and name:  # processors are nodes too
            pairs = 2 if facts.get("gfx_target_version", 0) >= _PAIRED_SINCE else 1
            found[f"GPU-{name:016x}"] = Units(simds // each, facts.get("num_xcc", 1) * pairs)
    return found


def _facts(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:  # of a GPU that this user may not use
        return {}
    words = (line.split() for line in lines)
    return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdigit()}


def mask_of(steps: Iterable[int], units: Units) -> str:
    """The mask that has the units of these steps, as a hexadecimal number."""
    one = (1 << units.step) - 1
    return hex(sum(one << (step * units.step) for step in set(steps)))


class CuMask:
    """Masks for jobs with parts of AMD GPUs.

    Parameters
    ----------
    folder
        Where to note who has which units; whoever uses another folder gives out the same ones.
    nodes
        The driver's topology.
    """

    name = "compute-unit masks"
    subject = Subject.COMPUTE
    standing = Standing.ADVISED
    reports = False
    at_start = False
    scope = "each process of a job"
    changes = Effect.NEXT_START
    bypass = "a process without the job's HSA_CU_MASK"

    def __init__(self, folder: Path, nodes: Path = TOPOLOGY) -> None:
        self._folder = folder
        self._nodes = nodes
        self._noting = threading.Lock()

    def probe(self) -> Probe:
        """Whether the driver tells its units. That a mask holds is not seen."""
        if not sys.platform.startswith("linux"):
            return Probe(usable=False, reason=f"ROCm has no such masks on {sys.platform}.")
        found = topology(self._nodes)
        if not found:
            return Probe(usable=False, reason=f"{self._nodes} tells of no AMD GPU.")
        each = {
            gpu: Probe(
                usable=True,
                reason="Jobs are given compute units of their own; that ROCm keeps to it was not "
                "seen.",
                figure=f"{units.count} compute units, in steps of {units.step}",
            )
            for gpu, units in found.items()
        }
        first = next(iter(each.values()))
        return Probe(usable=True, reason=first.reason, figure=first.figure, each=each)

    def environment(self, bound: Bound) -> Mapping[str, str]:
        """Give the job units that no other has.

        Raises
        ------
        ComputeCapError
            The driver does not know one of its GPUs, or too few units are left.
        """
        if not bound.holds(Subject.COMPUTE):
            return {}
        known = topology(self._nodes)
        masks = []
        for index, (gpu, compute) in enumerate(bound.compute.items()):
            if compute is None:
                continue
            if gpu not in known:
                raise ComputeCapError(f"{self._nodes} does not tell the compute units of {gpu}.")
            steps = self._take(bound.folder, gpu, compute, known[gpu])
            masks.append(f"{index}:{mask_of(steps, known[gpu])}")
        # the numbers are those after this variable; what is not listed has no mask
        return {
            MASK: ";".join(masks),
            VISIBLE: ",".join(bound.compute),
            # HIP counts among those
            "HIP_VISIBLE_DEVICES": ",".join(map(str, range(len(bound.compute)))),
        }

    def _take(self, job: Path, gpu: str, compute: int, units: Units) -> list[int]:
        path = self._folder / f"units-{hashlib.sha256(gpu.encode()).hexdigest()[:12]}.json"
        wanted = max(1, compute * units.steps // WHOLE)
        with self._noting:
            taken = self._taken(path)
            taken.pop(str(job), None)
            busy = {step for steps in taken.values() for step in steps}
            free = [step for step in range(units.steps) if step not in busy]
            if len(free) < wanted:
                raise ComputeCapError(
                    f"{wanted * units.step} compute units of {gpu} are the job's share, and only "
                    f"{len(free) * units.step} have no other job."
                )
            taken[str(job)] = free[:wanted]
            self._note(path, taken)
        return free[:wanted]

    def _taken(self, path: Path) -> dict[str, list[int]]:
        value = read_json(path)
        if not isinstance(value, dict) or value.get("boot") != boot_id():
            return {}
        return {job: steps for job, steps in value["jobs"].items() if Path(job).is_dir()}

    def _note(self, path: Path, taken: Mapping[str, list[int]]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_json(path, {"boot": boot_id(), "jobs": dict(taken)}, flush=False)

    def apply(self, bound: Bound, process: ProcessId) -> None:
        """Nothing: the environment does it."""

    def resize(self, bound: Bound) -> Effect:  # noqa: ARG002 - the protocol's
        """A mask is taken when a program begins."""
        return Effect.NEXT_START

    def verify(
        self,
        bound: Bound,  # noqa: ARG002 - the protocol's
        users: Collection[int],  # noqa: ARG002
    ) -> tuple[str, ...]:
        """Nothing can be told from outside."""
        return ()

    def release(self, bound: Bound) -> None:
        """Its units are anybody's."""
        with self._noting:
            for path in self._folder.glob("units-*.json"):
                taken = self._taken(path)
                if taken.pop(str(bound.folder), None) is not None:
                    self._note(path, taken)
