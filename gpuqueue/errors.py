"""What can go wrong, by type.

Every error says what happened, names the field or the thing it is about, and says what to do.
"""

from __future__ import annotations

__all__ = [
    "AutostartError",
    "ComputeCapError",
    "DoesNotFit",
    "GpuqueueError",
    "InvalidRequest",
    "JobCancelled",
    "JobFailed",
    "JobLost",
    "MemoryCapError",
    "MpsError",
    "MpsSilent",
    "NoCompiler",
    "NoShare",
    "NoSpace",
    "NotAllowedNow",
    "NotSupportedHere",
    "NotYours",
    "PayloadError",
    "StateDamaged",
    "StateDirectoryError",
    "StateLocked",
    "StateRebuilt",
    "StateVersionError",
    "UnknownJob",
]


class GpuqueueError(Exception):
    """Base of all errors that gpuqueue raises on purpose."""


class InvalidRequest(GpuqueueError, ValueError):
    """A request or an option that cannot be understood.

    Parameters
    ----------
    field
        The name of the offending field, as the user typed it.
    problem
        What is wrong with it and what would be right.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem

    def __reduce__(self) -> tuple[type[InvalidRequest], tuple[str, str]]:
        return type(self), (self.field, self.problem)


class DoesNotFit(InvalidRequest):
    """A request that this machine can never (or, with ``wait=False``, cannot now) satisfy."""


class PayloadError(InvalidRequest):
    """What was to be run cannot be run: a missing program, a syntax error, an unpicklable input."""


class UnknownJob(GpuqueueError, LookupError):
    """There is no job with that number."""


class NotAllowedNow(GpuqueueError):
    """The job is in a state in which this cannot be done."""


class NotYours(GpuqueueError):
    """Only the person at the machine may do this, and an agent or a job asked."""


class NotSupportedHere(GpuqueueError):
    """What was asked for needs something that this system or this place does not have."""


class StateDirectoryError(GpuqueueError):
    """The state directory cannot be used: a network file system, missing rights, no locks."""


class StateLocked(GpuqueueError):
    """Somebody else has held the state database locked for too long."""


class StateVersionError(StateDirectoryError):
    """The state was written by a newer gpuqueue than this one."""


class StateDamaged(StateDirectoryError):
    """The state database cannot be read."""


class StateRebuilt(StateDirectoryError):
    """The state database was damaged and has been made anew; what was asked for was not done."""


class NoSpace(GpuqueueError, OSError):
    """The disk that holds the state directory is full; nothing was queued."""

    def __str__(self) -> str:
        return self.strerror or super().__str__()  # without the number that OSError puts before it


class NoShare(GpuqueueError):
    """A notebook's kernel cannot have the share of a GPU that it asks for, now or at all."""


class AutostartError(GpuqueueError):
    """No controller is running and none could be started."""


class MemoryCapError(GpuqueueError):
    """A job's device memory cannot be capped, or its count cannot be read."""


class NoCompiler(MemoryCapError):
    """The memory-cap library is not built yet and this machine has nothing to build it with."""


class ComputeCapError(GpuqueueError):
    """A job cannot be held to its share of a GPU's compute."""


class MpsError(ComputeCapError):
    """NVIDIA MPS cannot be used for it, or does not do as it was told."""


class MpsSilent(MpsError):
    """The MPS daemon of a GPU does not answer, or not with an answer."""


class JobFailed(GpuqueueError):
    """The job ended without success.

    Attributes
    ----------
    job_id
        The job's number.
    returncode
        Its exit code; negative for a signal; None where it is unknown.
    """

    def __init__(self, message: str, job_id: int = 0, returncode: int | None = None) -> None:
        super().__init__(message)
        self.job_id = job_id
        self.returncode = returncode

    def __reduce__(self) -> tuple[type[JobFailed], tuple[str, int, int | None]]:
        return type(self), (str(self), self.job_id, self.returncode)


class JobCancelled(JobFailed):
    """The job was cancelled before it ended by itself."""


class JobLost(JobFailed):
    """The job's processes are gone and left no exit record (a kill, a reboot)."""
