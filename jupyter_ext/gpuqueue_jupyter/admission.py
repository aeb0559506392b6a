"""Which share a notebook kernel starts with, and getting it. Blocks: not for the event loop.

Where a share is asked for, first found first: what was chosen for the notebook (``%gpu share``, the
panel), the notebook's metadata, the kernelspec, the settings.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuqueue.client.local import LocalClient
from gpuqueue.client.shares import Lease, acquire
from gpuqueue.client.wishes import Wish, change_size, default_wish, remembered, size_of, wish_from
from gpuqueue.control.holding import FACT as HOLDING
from gpuqueue.control.machine import managed_gpus
from gpuqueue.errors import DoesNotFit, GpuqueueError, InvalidRequest, NoShare, NotAllowedNow
from gpuqueue.model import Gpu, Job
from gpuqueue.paths import find_home
from gpuqueue.run.kernelshare import without_share
from gpuqueue.settings import in_job
from gpuqueue_jupyter.lateshare import LateShare

__all__ = ["Admission", "Found"]

_PATIENCE = 5.0
"""Seconds to wait for somebody else's lock on the database: a person waits for this."""
_LARGEST = 256 << 20
"""Bytes. A notebook beyond that is not read for its metadata."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a kernel starts with: its share, or what it is to be told for later, or nothing."""

    lease: Lease | None = None
    environment: Callable[[Mapping[str, str]], dict[str, str]] | None = None
    late: LateShare | None = None
    hook: bool = False
    """Whether the kernel is to load our extension, which notices its first use of a GPU."""


class Admission:
    """One start of one kernel.

    Parameters
    ----------
    spec, kernel_id
        Its kernelspec and its id.
    config
        What the kernelspec's provisioner stanza asks for.
    env
        The environment that it was to start with.
    """

    def __init__(
        self, spec: Any, kernel_id: str, config: Mapping[str, Any], env: Mapping[str, str]
    ) -> None:
        self._spec = spec
        self._id = kernel_id
        self._config = config
        self._env = dict(env)
        self._path = env.get("JPY_SESSION_NAME", "")

    def prepare(self, held: Lease | None, given_up: threading.Event) -> Found:
        """Get what this start needs; ``held`` is the share of the kernel that is started again.

        Raises
        ------
        NoShare
            It cannot have what it asks for.
        InvalidRequest
            What it asks for cannot be understood: names the place.
        """
        if in_job():
            return Found()  # it has the job's GPUs
        try:
            client = LocalClient(find_home())
            client.store.patience = _PATIENCE
            try:
                found = self._prepare(client, held, given_up)
                # so that it tells of its cells, and lends while none runs
                tells = found.lease is not None and self._has_hook()
                return replace(found, hook=found.hook or tells)
            finally:
                client.close()
        except (NoShare, InvalidRequest):
            raise
        except (GpuqueueError, OSError) as error:
            if held is None and not self._asks_itself():
                return Found()  # a kernel that wants nothing of us starts without us
            words = f"This kernel's share of a GPU cannot be looked after: {error}"
            raise NoShare(words) from error

    def _prepare(self, client: LocalClient, held: Lease | None, given_up: threading.Event) -> Found:
        settings = client.settings
        wish = self._wish(client)
        rule = settings.kernel_shares
        gpus = client.machine().gpus
        if rule != "asked" and not managed_gpus(settings, gpus):
            rule = "asked"  # where there is no GPU, a rule for all kernels is about none of them
        if wish is None and rule == "all" and self._is_python():
            wish = default_wish(settings)
        if held is not None:
            return self._again(client, held, wish, given_up)
        if wish is not None:
            return _found(self._acquire(client, wish, given_up))
        if rule == "late" and _may_have_all(self._env, managed_gpus(settings, gpus)):
            return self._later(client)
        return Found(environment=_plain)

    def _acquire(
        self, client: LocalClient, wish: Wish, given_up: threading.Event, *, there: bool = False
    ) -> Lease:
        return acquire(
            client, wish, path=self._path, session=f"kernel-{self._id}", given_up=given_up,
            env=self._env, tag=Path(self._path).name or self._spec.display_name, there=there,
            program=sys.executable if self._has_hook() else next(iter(self._spec.argv or ()), ""),
        )  # fmt: skip

    # -- at the first use --------------------------------------------------------------------

    def _later(self, client: LocalClient) -> Found:
        """Start without a share, where the first use of a GPU will be noticed."""
        library = self._catcher(client)
        hook = self._has_hook()
        if not (library or hook):
            return Found(environment=_plain)
        settings = client.settings

        def get(asked: Any, given_up: threading.Event) -> Lease:
            return self._get_late(asked, given_up, there=not library)

        late = LateShare(
            get, _still_holds, library=library, gpus=default_wish(settings).gpus or 1,
            wait=settings.kernel_wait,
        )  # fmt: skip
        return Found(environment=late.environment, late=late, hook=hook)

    def _get_late(self, asked: Any, given_up: threading.Event, *, there: bool) -> Lease:
        """Get what the kernel asks for now, in the thread of its door."""
        client = LocalClient(find_home())
        try:
            client.store.patience = _PATIENCE
            wish = wish_from(asked, "share") or self._wish(client) or default_wish(client.settings)
            return self._acquire(client, wish, given_up, there=there)
        except OSError as error:
            words = f"This kernel's share of a GPU cannot be looked after: {error}"
            raise NoShare(words) from error
        finally:
            client.close()

    def _catcher(self, client: LocalClient) -> str:
        """The library that notices CUDA in this kernel; empty where none was seen to work here.

        A kernel that is started by a program of its own, as in a container, may run where the
        library cannot be loaded; the dynamic linker would complain into all that it prints.
        """
        words = list(self._spec.argv or ())
        if any(gpu.vendor != "nvidia" for gpu in client.machine().gpus):
            return ""  # it is CUDA that asks
        if not words or not re.fullmatch(r"python[\d.]*", os.path.basename(words[0])):
            return ""
        deadline = time.monotonic() + _TRYING
        while True:
            fact = client.store.fact(HOLDING) or {}
            library = str(fact.get("library") or "")
            if library or not fact.get("trying") or time.monotonic() > deadline:
                return library if library and os.path.isfile(library) else ""
            time.sleep(0.05)

    # -- starting again ----------------------------------------------------------------------

    def _again(
        self, client: LocalClient, held: Lease, wish: Wish | None, given_up: threading.Event
    ) -> Found:
        """Keep the share over a restart; another one if another was chosen since."""
        held.hold_on()
        job = client.job(held.job)
        if job.asked == "cancel":
            held.release()
            raise NoShare(
                f"The share of this notebook was taken back (job {job.id} was cancelled). Start "
                "its kernel again to ask for one."
            )
        if held.is_over(client):
            held.release()  # its lock would stay open for as long as the server lives
            if wish is None and held.late:
                return self._prepare(client, None, given_up)
            return _found(self._acquire(client, wish or held.wish, given_up))
        if wish is None or (wish.gpus or 1) == (held.wish.gpus or 1):
            if wish is not None and size_of(client, job, wish) != _size(job):
                with contextlib.suppress(NotAllowedNow, DoesNotFit):  # it stays as it is
                    change_size(client, job, wish)
            held.await_grant(client)
            return _found(held)
        held.release()
        _await_end(client, job)
        try:
            return _found(self._acquire(client, wish, given_up))
        except NoShare as error:
            try:
                kept = self._acquire(client, held.wish, given_up)
            except NoShare:
                raise error from None
            kept.wish = wish  # until another is chosen, this is not tried again
            return _found(kept)

    # -- what is asked for -------------------------------------------------------------------

    def _asks_itself(self) -> bool:
        return bool(self._config or (self._spec.metadata or {}).get("gpuqueue"))

    def _wish(self, client: LocalClient) -> Wish | None:
        chosen = remembered(client, self._path)
        if chosen is not None:
            return chosen
        if self._is_python() or self._asks_itself():
            written = wish_from(_entry(_metadata_of(self._path)), "notebook metadata gpuqueue")
            if written is not None:
                return written
        own = wish_from(self._config or None, "kernel_provisioner.config")
        if own is not None:
            return own
        return wish_from(_entry(self._spec.metadata), "kernelspec metadata gpuqueue")

    def _is_python(self) -> bool:
        return str(self._spec.language or "").lower().startswith("python")

    def _has_hook(self) -> bool:
        """Whether the kernel will have our hook: an IPython kernel of this very environment."""
        words = list(self._spec.argv or ())
        if not self._is_python() or not any("ipykernel" in word for word in words):
            return False
        # jupyter_client takes a bare name for the Python that it runs in itself; a link is not
        # followed, for those of all virtual environments lead to the same program
        names = ("python", "python3", f"python3.{sys.version_info.minor}")
        return words[0] in names or os.path.abspath(words[0]) == os.path.abspath(sys.executable)


_TRYING = 2.0
"""Seconds that a start waits for the trial of what holds shares: what was tried before is read."""
_FIELDS = ("share", "mem", "gpus")


def _may_have_all(env: Mapping[str, str], gpus: Sequence[Gpu]) -> bool:
    """Whether a kernel may use any GPU of the queue, as far as its user has chosen some.

    Where only some are left to it, or none, it is left alone: the queue cannot be told which to
    give.
    """
    visible = without_share(env).get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return True
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return all(
        any(
            name == str(gpu.index) or (len(name) > 4 and gpu.uuid.startswith(name))
            for name in names
        )
        for gpu in gpus
    )


def _still_holds(lease: Lease) -> bool:
    """Whether a share has not ended meanwhile; where that cannot be seen now, it has not.

    It is given back if it has, and a kernel may be computing on it.
    """
    try:
        client = LocalClient(find_home())
    except OSError:  # as with too many files open
        return True
    try:
        return not lease.is_over(client)
    except LookupError:
        return False
    except OSError:
        return True
    finally:
        client.close()


def _entry(metadata: Any) -> Any:
    """What a metadata dictionary asks for; entries of ours with other names are no wishes."""
    found = metadata.get("gpuqueue") if isinstance(metadata, Mapping) else None
    if not isinstance(found, Mapping):
        return found
    return {name: value for name, value in found.items() if name in _FIELDS} or None


def _found(lease: Lease) -> Found:
    return Found(lease, lease.environment)


def _size(job: Job) -> tuple[int, int]:
    """The size of what a job holds on its first GPU."""
    grant = job.placement.grants[0] if job.placement and job.placement.grants else None
    return (0, 0) if grant is None else (grant.compute, grant.memory)


def _plain(env: Mapping[str, str]) -> dict[str, str]:
    """A server that was itself started with a share does not hand it on."""
    return without_share(env)


def _metadata_of(path: str) -> Any:
    """A notebook's own metadata; None where there is none that can be read."""
    if not path.endswith(".ipynb"):
        return None
    try:
        if os.stat(path).st_size > _LARGEST:
            return None
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError, RecursionError):  # one may be nested too deeply to be read
        return None
    return found.get("metadata") if isinstance(found, dict) else None


def _await_end(client: LocalClient, job: Job) -> None:
    """Wait for a share that was given back to be free: a moment."""
    deadline = client.settings.kernel_wait
    try:
        client.wait(job.id, timeout=deadline)
    except TimeoutError:
        raise NoShare(
            f"The share that this notebook had (job {job.id}) is still held; try again."
        ) from None
