"""The ledger file: how much device memory each process of a job holds, and how much they may.

``src/ledger.h`` has its layout and ``src/ledger.c`` why it needs no lock. The processes of the job
count in it; whoever started the job writes its caps and reads it. Both may happen at any time.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuqueue.errors import InvalidRequest, MemoryCapError
from gpuqueue.model import ProcessId
from gpuqueue.run.process import alive, identify

__all__ = ["LARGEST", "UNIT", "Holder", "Usage", "create", "holders", "read", "resize"]

UNIT = 512
"""Memory is counted in this many bytes."""

LARGEST = (1 << 40) - UNIT
"""The largest cap, in bytes; a GPU with more memory is counted only."""

_MAGIC = b"GQMEMCAP"
_VERSION = 1
_SLOTS = 1024
_MAX_GPUS = 64
_HEADER = 64 + 8 * _SLOTS
_GPU = 192 + 8 * _SLOTS
_LIMIT, _USED, _OP, _PEAK, _REFUSALS, _LAST, _CHARGES = 16, 64, 72, 128, 136, 144, 192
_NO_LIMIT = (1 << 64) - 1
_FROZEN = 1 << 53
_EPOCHS = 1 << 21
_TRIES = 10_000


@dataclass(frozen=True, slots=True)
class Usage:
    """What a job holds of one GPU, in bytes.

    ``limit`` is None where it is only counted. ``used`` is what its living processes hold;
    ``dead`` is what those that are gone held, which is taken back when somebody in the job runs
    out of room. ``peak`` is the most that was counted at any moment since the job's start,
    ``refusals`` how often an allocation was refused and ``last_refused`` how large the last of
    those was.
    """

    gpu: str
    limit: int | None
    used: int
    dead: int
    peak: int
    refusals: int
    last_refused: int

    @property
    def over(self) -> int:
        """By how much the job holds more than its cap: after the cap was lowered."""
        return 0 if self.limit is None else max(0, self.used - self.limit)


@dataclass(frozen=True, slots=True)
class Holder:
    """One process of a job and the bytes that it holds, by GPU.

    ``process`` is None where it is ``gone``, and where it cannot be seen from here because it has
    another pid namespace; then its ``pid`` is of that one.
    """

    pid: int
    process: ProcessId | None
    gone: bool
    held: Mapping[str, int]


def _uuid(gpu: str) -> bytes:
    """A GPU's name in the ledger: NVIDIA's 16 bytes, or the 16 digits that AMD's have, as text."""
    digits = re.sub(r"^[A-Z]+-|-", "", gpu)
    try:
        uuid = bytes.fromhex(digits)
    except ValueError:
        uuid = b""
    if len(uuid) == 8:
        return digits.lower().encode()
    if len(uuid) != 16:
        raise InvalidRequest("gpu", f"{gpu!r} is not the UUID of a GPU, such as GPU-6ca1…-…")
    return uuid


def _limit(cap: int | None) -> int:
    if cap is None or cap > LARGEST:
        return _NO_LIMIT
    if cap < 0:
        raise InvalidRequest("cap", f"{cap} bytes: a cap is 0 or more")
    return cap


def create(path: Path, caps: Mapping[str, int | None]) -> None:
    """Make the ledger of a job that starts now, in place of an older one.

    Parameters
    ----------
    path
        The file, on a local disk. It gets mode 0600 and takes about 8 KiB and 8 KiB a GPU; all of
        it is written, so that a full disk shows here and not in the job.
    caps
        Bytes by UUID of the GPU; None to count without a cap.

    Raises
    ------
    InvalidRequest
        A name that is not a UUID, a negative cap, or more than 64 GPUs.
    MemoryCapError
        The file cannot be written.
    """
    if len(caps) > _MAX_GPUS:
        raise InvalidRequest("caps", f"{len(caps)} GPUs; there may be {_MAX_GPUS}")
    data = bytearray(_HEADER + _GPU * len(caps))
    struct.pack_into("<8sIII", data, 0, _MAGIC, _VERSION, len(caps), _SLOTS)
    for index, (gpu, cap) in enumerate(caps.items()):
        at = _HEADER + index * _GPU
        data[at : at + 16] = _uuid(gpu)
        struct.pack_into("<Q", data, at + _LIMIT, _limit(cap))
        struct.pack_into("<Q", data, at + _OP, _FROZEN)
    fresh = path.with_name(f"{path.name}.new")
    try:
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()
        handle = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        fresh.replace(path)  # who maps the older one goes on with that
    except OSError as error:
        raise MemoryCapError(f"{path}: the ledger cannot be written: {error.strerror}") from error


class _Mapped:
    """The file, as words. Each is read and written in one piece, as the processes do."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("r+b") as file:
                self._map = mmap.mmap(file.fileno(), 0)
        except (OSError, ValueError) as error:
            raise MemoryCapError(f"{path}: there is no ledger to read: {error}") from error
        self._words = (ctypes.c_uint64 * (len(self._map) // 8)).from_buffer(self._map)
        if len(self._map) >= _HEADER:
            magic, version, self.gpus, slots = struct.unpack_from("<8sIII", self._map)
            enough = len(self._map) >= _HEADER + self.gpus * _GPU
            if (magic, version, slots, enough) == (_MAGIC, _VERSION, _SLOTS, True):
                return
        self.close()
        raise MemoryCapError(f"{path}: this is not a ledger of this version of gpuqueue")

    def close(self) -> None:
        del self._words
        self._map.close()

    def word(self, offset: int) -> int:
        return int(self._words[offset // 8])

    def put(self, offset: int, value: int) -> None:
        self._words[offset // 8] = value

    def uuid(self, index: int) -> bytes:
        at = _HEADER + index * _GPU
        return self._map[at : at + 16]

    def used(self, index: int) -> int:
        """Units in use: read between two equal looks at what it changes together with."""
        base = _HEADER + index * _GPU
        for _ in range(_TRIES):
            op = self.word(base + _OP)
            used = self.word(base + _USED)
            if self.word(base + _OP) == op:
                break
        return used

    def charge(self, index: int, slot: int) -> int:
        """Units that a process holds, its pending step included; see ``src/ledger.c``."""
        base = _HEADER + index * _GPU
        at = base + _CHARGES + 8 * slot
        for _ in range(_TRIES):
            op, charge = self.word(base + _OP), self.word(at)
            if (self.word(base + _OP), self.word(at)) == (op, charge):
                break
        units = charge // _EPOCHS
        if op >> 54 == slot and (op >> 32) % _EPOCHS != charge % _EPOCHS:
            delta = op & 0xFFFFFFFF
            units += delta - (1 << 32) if delta >> 31 else delta
        return units


@contextlib.contextmanager
def _open(path: Path) -> Iterator[_Mapped]:
    mapped = _Mapped(path)
    try:
        yield mapped
    finally:
        mapped.close()


def _name(uuid: bytes) -> str:
    if re.fullmatch(rb"[0-9a-f]{16}", uuid):  # AMD's
        return f"GPU-{uuid.decode()}"
    text = uuid.hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _names(mapped: _Mapped, gpus: tuple[str, ...]) -> list[str]:
    """The GPUs' names, spelled as the caller spells them where it names them."""
    known = {_uuid(gpu): gpu for gpu in gpus}
    return [
        known.get(uuid, _name(uuid))
        for uuid in (bytes(mapped.uuid(index)) for index in range(mapped.gpus))
    ]


def read(path: Path, gpus: tuple[str, ...] = ()) -> tuple[Usage, ...]:
    """What a job holds now, of each of its GPUs. It waits for nobody and stops nobody.

    Parameters
    ----------
    path
        The job's ledger.
    gpus
        Names to tell the GPUs by; else each is called ``GPU-`` and its UUID.

    Raises
    ------
    MemoryCapError
        There is no ledger.
    """
    with _open(path) as mapped:
        names = _names(mapped, gpus)
        gone = [holder for holder in _holders(mapped, names) if holder.gone]
        return tuple(_usage(mapped, index, name, gone) for index, name in enumerate(names))


def _usage(mapped: _Mapped, index: int, name: str, gone: Sequence[Holder]) -> Usage:
    base = _HEADER + index * _GPU
    limit = mapped.word(base + _LIMIT)
    counted = mapped.used(index) * UNIT
    dead = min(counted, sum(holder.held[name] for holder in gone))
    return Usage(
        gpu=name,
        limit=None if limit == _NO_LIMIT else limit,
        used=counted - dead,
        dead=dead,
        peak=mapped.word(base + _PEAK) * UNIT,
        refusals=mapped.word(base + _REFUSALS),
        last_refused=mapped.word(base + _LAST) * UNIT,
    )


def _holder(owner: int, held: Mapping[str, int]) -> Holder:
    """Who an owner word names: pid, 26 bits of its start time, 16 of its pid namespace."""
    pid = owner >> 42
    if owner % (1 << 16) != _namespace():
        return Holder(pid, None, gone=False, held=held)
    found = identify(pid)
    same = found is not None and found.start % (1 << 26) == (owner >> 16) % (1 << 26)
    if found is not None and same and alive(found):
        return Holder(pid, found, gone=False, held=held)
    return Holder(pid, None, gone=True, held=held)


def _namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino % (1 << 16)
    except OSError:
        return 0


def _holders(mapped: _Mapped, names: Sequence[str]) -> Iterator[Holder]:
    for slot in range(_SLOTS):
        owner = mapped.word(64 + 8 * slot)
        if owner:
            held = {name: mapped.charge(i, slot) * UNIT for i, name in enumerate(names)}
            yield _holder(owner, held)


def holders(path: Path, gpus: tuple[str, ...] = ()) -> tuple[Holder, ...]:
    """Which processes of a job hold how much.

    Raises
    ------
    MemoryCapError
        There is no ledger.
    """
    with _open(path) as mapped:
        return tuple(_holders(mapped, _names(mapped, gpus)))


def resize(path: Path, caps: Mapping[str, int | None]) -> tuple[Usage, ...]:
    """Give a running job other caps, at once; returns what it holds then.

    A cap below what the job holds takes nothing away: it refuses what is new until enough has been
    freed, and `Usage.over` tells how much that is.

    Raises
    ------
    InvalidRequest
        A GPU that is not the job's, or a negative cap.
    MemoryCapError
        There is no ledger.
    """
    with _open(path) as mapped:
        places = {bytes(mapped.uuid(index)): index for index in range(mapped.gpus)}
        changes = []
        for gpu, cap in caps.items():
            if _uuid(gpu) not in places:
                raise InvalidRequest("gpu", f"{gpu} is not a GPU of this job")
            changes.append((_HEADER + places[_uuid(gpu)] * _GPU + _LIMIT, _limit(cap)))
        for at, limit in changes:
            mapped.put(at, limit)
    return read(path, tuple(caps))
