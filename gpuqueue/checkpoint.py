"""What a job imports to be resumable. Standard library only, and one file.

>>> from gpuqueue import checkpoint
>>> checkpoint.should_stop()  # asked to make room?
False

It is one file on purpose: a job may run in an interpreter that has no gpuqueue, older than the one
that gpuqueue itself needs (3.8 on). What needs PyTorch is in ``gpuqueue.integrations.torch``, and
its names are here too, imported when used. docs/checkpoints.md is the guide.

How a job is asked. The first ``should_stop()`` makes the file ``stop`` in the attempt's directory,
which says that the job is resumable, and maps it into memory; a look at it costs a memory access.
Byte 0 belongs to whoever asks (1: stop), byte 1 to the job (1: ``should_stop()`` has answered yes).
A job whose byte 1 is set and that exits with 0 has stepped aside; it is not done. No signal is
needed, so nothing that the job does with signals is in the way, and all its processes and threads
see the same byte. SIGTERM, with which Slurm, Kubernetes, Docker and a cancel ask, is heard as well.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sys
import time

TYPE_CHECKING = False  # typing is not imported for this
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

    AnyPath = str | os.PathLike[str]

__all__ = [
    "Cadence",
    "atomic_dir",
    "atomic_path",
    "checkpoint_dir",
    "every",
    "interval",
    "keep",
    "latest_checkpoint",
    "log",
    "resuming",
    "should_stop",
    "sweep",
    "why_incomplete",
]

STOP = "stop"
"""The file of two bytes by which a job is asked to stop and answers."""
PROGRESS = "progress.jsonl"
"""What ``log`` has written, one JSON line each; the older half is in ``progress.old.jsonl``."""
SAVED = "saved"
"""How many seconds the last save took."""

# -- being asked to stop ---------------------------------------------------------------------------

_UNSEEN = b"\xff"
_NOT_ASKED = b"\0"
_SIGNALLED = b"\2"


class _State:
    """What this process knows of being asked."""

    page: Any = _UNSEEN  # whatever it is, [0] is the answer; in a job, the mapped file
    previous: Any = None  # who had SIGTERM before
    hooked = False  # forked children are told to forget
    mask: Any = ()  # the signals that were blocked before a fork
    told = False  # the answer is in the file
    made = 0  # how many temporary names


_state = _State()


def should_stop(*, sync: bool = False) -> bool:
    """Whether this job has been asked to save and exit; call it at the end of every step.

    The first call says that the job can do that. Once it is True it stays so. Save, then exit
    with 0: that now means that the job has stepped aside and wants to run again, not that it is
    done.

    Parameters
    ----------
    sync
        Agree with the other ranks of ``torch.distributed``, if there are any: True on all as soon
        as one was asked, so that all stop at the same step. Every rank must then make the call,
        at the same steps; it costs one small all-reduce.
    """
    if not _state.page[0] and not sync:
        return False
    return _look(sync)


def _look(sync: bool) -> bool:
    if _state.page is _UNSEEN:
        _begin()
    asked: bool = _state.page[0] != 0
    if sync:
        asked = _agree(asked)
    if asked:
        _tell()
    return asked


def _attempt() -> str | None:
    folder = os.environ.get("GPUQUEUE_ATTEMPT_DIR")
    return folder if folder and os.path.isdir(folder) else None


def _begin() -> None:
    """Mark the job as resumable, and listen."""
    folder = _attempt()
    _state.page = _NOT_ASKED if folder is None else _map(os.path.join(folder, STOP))
    _listen()
    if not _state.hooked and hasattr(os, "register_at_fork"):
        _state.hooked = True
        os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_forget)


def _map(path: str) -> Any:
    """The ``stop`` file in memory, made if it is not there; any number of processes may do this."""
    import mmap

    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(handle).st_size < 2:
                try:  # sets its block aside, so that asking works on a full disk
                    os.posix_fallocate(handle, 0, 2)
                except (AttributeError, OSError):
                    os.truncate(path, 2)
            return mmap.mmap(handle, 2, access=mmap.ACCESS_READ)
        finally:
            os.close(handle)
    except (OSError, ValueError):
        return _NOT_ASKED  # no room: the job cannot be asked this way, and runs on


def _listen() -> None:
    """Let SIGTERM set the flag, where that is nobody's decision against it."""
    import signal

    if "ipykernel" in sys.modules:
        return  # when a notebook's kernel ends is not for one cell to decide
    found = signal.getsignal(signal.SIGTERM)
    # None: a handler from C, which could not be called from here
    if found is None or found is signal.SIG_IGN or found is _on_signal:
        return
    _state.previous = found
    with contextlib.suppress(ValueError):  # not the main thread, which alone may do this
        signal.signal(signal.SIGTERM, _on_signal)


def _on_signal(number: int, frame: Any) -> None:
    """Set the flag, nothing else: a save in here would meet a half-made step."""
    _state.page = _SIGNALLED
    if callable(_state.previous):
        _state.previous(number, frame)


def _hold() -> None:
    """Before a fork: a SIGTERM for the child waits until ``_forget`` has run there."""
    import signal

    _state.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _release() -> None:
    import signal

    signal.pthread_sigmask(signal.SIG_SETMASK, _state.mask)


def _forget() -> None:
    """In a forked child: SIGTERM means what it did, until the child itself asks ``should_stop``.

    A worker of a DataLoader or a Pool is ended by SIGTERM, and must not take it for a question.
    """
    if _state.page is not _SIGNALLED:
        _state.page = _UNSEEN
    import signal

    if signal.getsignal(signal.SIGTERM) is _on_signal:
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGTERM, _state.previous)
    _release()


def _tell() -> None:
    """Leave word that the job has heard, for when it has exited."""
    folder = _attempt()
    if _state.told or folder is None:
        return
    _state.told = True
    with contextlib.suppress(OSError):
        handle = os.open(os.path.join(folder, STOP), os.O_WRONLY)
        try:
            os.lseek(handle, 1, os.SEEK_SET)
            os.write(handle, b"\1")
            os.fsync(handle)
        finally:
            os.close(handle)


def _agree(asked: bool) -> bool:
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return asked
    import torch

    named = getattr(dist, "get_backend_config", dist.get_backend)()
    on_cpu = any(word in str(named) for word in ("gloo", "mpi", "cpu:"))
    device = "cpu" if on_cpu else torch.device("cuda", torch.cuda.current_device())
    flag = torch.tensor([int(asked)], dtype=torch.int32, device=device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())


# -- where a job carries on ------------------------------------------------------------------------


def resuming() -> bool:
    """Whether an earlier attempt of this job may have left a checkpoint.

    ``GPUQUEUE_RESUME`` says so (1) or denies it (0). Without it, an earlier attempt that has
    called ``should_stop()`` counts.
    """
    said = os.environ.get("GPUQUEUE_RESUME")
    folder = _attempt()
    if said in ("0", "1") or folder is None:
        return said == "1"
    job, name = os.path.split(os.path.abspath(folder))
    earlier = range(1, int(name)) if name.isdigit() else ()
    return any(os.path.exists(os.path.join(job, str(number), STOP)) for number in earlier)


def checkpoint_dir() -> Path:
    """The folder for this job's checkpoints, made if it is not there. It outlives attempts.

    ``GPUQUEUE_CHECKPOINT_DIR`` if that is set: name one for each run. Else ``checkpoints`` in the
    job's own directory, beside its attempts; outside a job, ``checkpoints`` in the current one.
    """
    from pathlib import Path

    named = os.environ.get("GPUQUEUE_CHECKPOINT_DIR")
    folder = _attempt()
    above = os.path.dirname(os.path.abspath(folder)) if folder else os.getcwd()
    found = Path(os.path.expanduser(named)) if named else Path(above, "checkpoints")
    found.mkdir(parents=True, exist_ok=True)
    return found


# -- written whole or not at all -------------------------------------------------------------------

_TEMPORARY = re.compile(r"\.gpuqueue-(new|old)-(\d+)-(\d+)-([0-9a-f]{8})-\d+-(.+)", re.DOTALL)
_DAY = 86400.0


@contextlib.contextmanager
def atomic_path(path: AnyPath) -> Iterator[Path]:
    """Write a file, or a folder, that appears under its name only when it is whole.

    Gives the path to write to, beside the real one and with the same ending. At the end of the
    block everything is flushed and takes its name, replacing what had it; after an exception
    nothing is left. If the process is killed, what was there before is there still, and the rest
    is removed when the next one writes there.
    """
    with _atomic(os.path.abspath(os.fspath(path)), folder=False) as made:
        yield made


@contextlib.contextmanager
def atomic_dir(path: AnyPath) -> Iterator[Path]:
    """The same for a folder, which exists when the block begins, empty."""
    with _atomic(os.path.abspath(os.fspath(path)), folder=True) as made:
        yield made


@contextlib.contextmanager
def _atomic(path: str, *, folder: bool) -> Iterator[Path]:
    from pathlib import Path

    above, name = os.path.split(path)
    os.makedirs(above, exist_ok=True)
    sweep(above)
    temporary = os.path.join(above, _temporary_name("new", name[-120:]))
    began = time.monotonic()
    try:
        if folder:
            os.mkdir(temporary)
        yield Path(temporary)
        if not os.path.lexists(temporary):
            raise FileNotFoundError(f"nothing was written for {path}: write to the path given")
        _sync_tree(temporary)
        _move(temporary, path)
    except BaseException:
        _remove(temporary)
        raise
    _note_save(time.monotonic() - began)


def _note_save(seconds: float) -> None:
    """For whoever wonders whether there is time enough to save when the job is asked to stop."""
    folder = os.environ.get("GPUQUEUE_ATTEMPT_DIR")
    if folder:
        with contextlib.suppress(OSError), open(os.path.join(folder, SAVED), "w") as file:
            file.write(f"{seconds:.3f}")


def _temporary_name(kind: str, name: str) -> str:
    _state.made += 1
    pid = os.getpid()
    return f".gpuqueue-{kind}-{pid}-{_start_of(pid) or 0}-{_here()}-{_state.made}-{name}"


def _move(temporary: str, path: str) -> None:
    """Give what is complete its name. A folder takes a folder's place in one step where it can."""
    if os.path.isdir(temporary) and os.path.isdir(path) and not os.path.islink(path):
        if not _exchange(temporary, path):
            above, name = os.path.split(path)
            aside = os.path.join(above, _temporary_name("old", name))
            os.rename(path, aside)  # sweep() puts it back, should this be the end
            try:
                os.rename(temporary, path)
            except OSError:
                os.rename(aside, path)
                raise
            temporary = aside
        _sync(os.path.dirname(path))
        _remove(temporary)
    else:
        os.replace(temporary, path)
        _sync(os.path.dirname(path))


def _exchange(one: str, other: str) -> bool:
    """Swap two names at once (Linux, most local file systems); whether that could be done."""
    try:
        import ctypes

        function = ctypes.CDLL(None).renameat2
    except (ImportError, OSError, AttributeError, TypeError):
        return False
    at_cwd, exchange = -100, 2
    done: int = function(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), exchange)
    return done == 0


def _sync(path: str) -> None:
    flags = os.O_RDONLY
    if os.name == "nt":  # there a folder cannot be opened, and a file must be writable
        if os.path.isdir(path):
            return
        flags = os.O_RDWR
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_tree(path: str) -> None:
    if os.path.isdir(path):
        for folder, _, names in os.walk(path, topdown=False):
            for name in names:
                file = os.path.join(folder, name)
                if not os.path.islink(file):
                    _sync(file)
            _sync(folder)
    else:
        _sync(path)


def _remove(path: str) -> None:
    import shutil

    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            os.unlink(path)


def sweep(folder: AnyPath) -> None:
    """Remove what killed processes have left half written in a folder."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            found = _TEMPORARY.fullmatch(name)
            path = os.path.join(folder, name)
            if found is None or not _abandoned(path, int(found[2]), int(found[3]), found[4]):
                continue
            target = os.path.join(folder, found[5])
            if found[1] == "old" and not os.path.lexists(target):
                os.rename(path, target)
            else:
                _remove(path)


def _abandoned(path: str, pid: int, start: int, where: str) -> bool:
    if where == _here() and start:
        return not _lives(pid, start)
    # of another host, container or boot, where its process cannot be looked up
    try:
        inside = [os.path.join(path, name) for name in os.listdir(path)]
    except OSError:
        inside = []
    with contextlib.suppress(OSError):
        return time.time() - max(os.lstat(each).st_mtime for each in [path, *inside]) > _DAY
    return False


def _lives(pid: int, start: int) -> bool:
    found = _start_of(pid)
    if found is None:
        with contextlib.suppress(ProcessLookupError):
            try:
                os.kill(pid, 0)
            except PermissionError:
                return True  # somebody else's, which /proc does not show
    return found == start


def _start_of(pid: int) -> int | None:
    """When a process started, in the kernel's ticks; None if there is none, or no ``/proc``."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
        fields = text[text.rindex(b")") + 2 :].split()
        return None if fields[0] in b"ZX" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def _here() -> str:
    """Where a pid means something: the host, its boot, the container."""
    import socket
    import zlib

    words = [socket.gethostname()]
    with contextlib.suppress(OSError):
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            words.append(file.read().strip())
        words.append(os.readlink("/proc/self/ns/pid"))
    return f"{zlib.crc32(' '.join(words).encode()):08x}"


# -- which checkpoint is the last ------------------------------------------------------------------

_SUFFIXES = (
    ".bin", ".ckpt", ".distcp", ".h5", ".joblib", ".keras", ".msgpack", ".npy", ".npz", ".pickle",
    ".pkl", ".pt", ".pth", ".safetensors", ".tar", ".zip",
)  # fmt: skip
_UNFINISHED = re.compile(
    r"(^|[-_.])(tmp|temp|incomplete|partial|quarantined?)([-_.]|$)|\.(part|lock)$", re.IGNORECASE
)
_STEP = re.compile(r"(?:step|iter|iteration|checkpoint|ckpt)[-_=.]?(\d+)", re.IGNORECASE)
_SHARD = re.compile(r"(.*)-(\d+)-of-(\d+)(\.[a-z]+)")
_TRAINER = re.compile(r"(optimizer|scheduler)\.pt|training_args\.bin|rng_state.*\.pth")
_ACCELERATE = re.compile(r"(scheduler|sampler)\.bin")


def latest_checkpoint(
    folder: AnyPath | None = None, pattern: str | None = None, *, needs: str | None = None
) -> Path | None:
    """The newest complete checkpoint in a folder; None if there is none.

    Newest is by number: ``step10`` comes after ``step9``. The number after ``step``, ``iter``,
    ``checkpoint`` or ``ckpt`` counts first, then all others from the left; where there is no
    number at all, the time of change. Files and folders alike are checkpoints; those that are
    not complete are passed over with a warning in the log, never deleted.

    Parameters
    ----------
    folder
        ``checkpoint_dir()`` if it is not given.
    pattern
        Which names count, as in ``step*.pt``. By default all that look like checkpoints.
    needs
        A name that must be inside, where you know what your folders end with.
    """
    for path in sorted(_candidates(folder, pattern), key=_age, reverse=True):
        problem = why_incomplete(path)
        if needs and not problem and not (path / needs).exists():
            problem = f"it has no {needs}"
        if not problem:
            return path
        _warn(f"{path} is passed over: {problem}")
    return None


def complete_checkpoints(folder: AnyPath | None = None, pattern: str | None = None) -> list[Path]:
    """All complete checkpoints in a folder, in the order of ``latest_checkpoint``: newest last."""
    found = sorted(_candidates(folder, pattern), key=_age)
    return [path for path in found if not why_incomplete(path)]


def _candidates(folder: AnyPath | None, pattern: str | None) -> list[Path]:
    from fnmatch import fnmatch
    from pathlib import Path

    above = Path(folder) if folder is not None else checkpoint_dir()
    try:
        names = os.listdir(above)
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = []
    for name in names:
        if name.startswith(".") or _UNFINISHED.search(name):
            continue
        if fnmatch(name, pattern) if pattern else _looks_like_one(above / name):
            found.append(above / name)
    return found


def _looks_like_one(path: Path) -> bool:
    if not path.is_dir():
        return path.name.endswith(_SUFFIXES)
    if _STEP.match(path.name):
        return True
    return any(name.endswith(_SUFFIXES) for _, _, names in os.walk(path) for name in names)


def _age(path: Path) -> tuple[bool, int, list[int], float]:
    """What checkpoints are sorted by."""
    numbers = [int(digits) for digits in re.findall(r"\d+", path.name)]
    steps = _STEP.findall(path.name)
    changed = 0.0
    with contextlib.suppress(OSError):
        changed = path.stat().st_mtime
    return bool(numbers), int(steps[-1]) if steps else -1, numbers, changed


def why_incomplete(path: AnyPath) -> str:
    """What a checkpoint lacks to be complete; empty if nothing.

    A file must be as long as it says (the formats of torch, safetensors, zip) and not empty. A
    folder must hold what its kind writes last: ``.metadata`` beside ``.distcp`` shards, every
    shard that an index names, ``trainer_state.json`` in a ``checkpoint-500`` of Hugging Face's
    Trainer, ``random_states_0.pkl`` in a folder of accelerate's. Tensors are not read: a flipped
    bit is not found.
    """
    path = os.fspath(path)
    try:
        return _folder_problem(path) if os.path.isdir(path) else _file_problem(path)
    except OSError as error:
        return f"it cannot be read ({error.strerror})"


def _file_problem(path: str, *, inside: bool = False) -> str:
    name = os.path.basename(path)
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        head = file.read(8)
    if not head:
        return f"{name} is empty"
    if name.endswith(".safetensors"):
        length = int.from_bytes(head, "little")
        # where a mark says that a folder is complete, this need not be more than a stand-in
        return "" if inside and not length else _tensors_problem(path, length, size)
    if head.startswith(b"PK\3\4"):
        import zipfile

        try:
            with zipfile.ZipFile(path):
                pass
        except (zipfile.BadZipFile, ValueError):
            return f"{name} is cut short"
    return ""


def _tensors_problem(path: str, length: int, size: int) -> str:
    name = os.path.basename(path)
    if 8 + length > size:
        return f"{name} is cut short"
    try:
        with open(path, "rb") as file:
            file.seek(8)
            header = json.loads(file.read(length))
        ends = [item["data_offsets"][1] for key, item in header.items() if key != "__metadata__"]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return f"{name} has no readable header"
    return f"{name} is cut short" if 8 + length + max(ends, default=0) > size else ""


def _folder_problem(path: str) -> str:
    with os.scandir(path) as entries:
        names = {entry.name: entry.is_dir() for entry in entries}
    files = [name for name, folder in names.items() if not folder]
    if not names:
        return "it is empty"
    if any(name.endswith(".distcp") for name in files) and ".metadata" not in names:
        return "it has no .metadata, which is written last"
    if re.fullmatch(r"checkpoint-\d+", os.path.basename(path)) and any(map(_TRAINER.match, files)):
        problem = _json_problem(path, "trainer_state.json", "which Trainer writes last")
        if problem:
            return problem
    if any(map(_ACCELERATE.fullmatch, files)) and "random_states_0.pkl" not in names:
        return "it has no random_states_0.pkl, which accelerate writes last"
    problem = _shards_problem(path, files)
    if problem:
        return problem
    for name in files:
        if name.endswith(_SUFFIXES) or name == ".metadata":
            problem = _file_problem(os.path.join(path, name), inside=True)
            if problem:
                return problem
    for name, folder in names.items():
        if folder and not _UNFINISHED.search(name) and not name.startswith("."):
            problem = _folder_problem(os.path.join(path, name))
            if problem and problem != "it is empty":
                return f"{name}: {problem}"
    return ""


def _json_problem(path: str, name: str, why: str) -> str:
    try:
        with open(os.path.join(path, name), "rb") as file:
            json.loads(file.read())
    except FileNotFoundError:
        return f"it has no {name}, {why}"
    except ValueError:
        return f"{name} is not whole"
    return ""


def _shards_problem(path: str, files: list[str]) -> str:
    for name in files:
        if name.endswith(".index.json"):
            try:
                with open(os.path.join(path, name), "rb") as file:
                    named = set(json.loads(file.read())["weight_map"].values())
            except (ValueError, KeyError, TypeError, AttributeError):
                return f"{name} is not whole"
            lacking = sorted(named - set(files))
            if lacking:
                return f"it lacks {', '.join(lacking[:3])}, which {name} names"
    shards = [found for found in map(_SHARD.fullmatch, files) if found]
    for stem, of, ending in {(shard[1], shard[3], shard[4]) for shard in shards}:
        there = {int(s[2]) for s in shards if (s[1], s[3], s[4]) == (stem, of, ending)}
        count = int(of)  # they are numbered from 1, or from 0
        if not there >= set(range(1, count + 1)) and not there >= set(range(count)):
            return f"it has {len(there)} of the {count} shards {stem}-*-of-{of}{ending}"
        if ending in (".safetensors", ".bin") and f"{stem}{ending}.index.json" not in files:
            return f"it has no {stem}{ending}.index.json, which is written after the shards"
    return ""


# -- which checkpoints stay ------------------------------------------------------------------------

_SCORES = ".checkpoint-scores.json"


def keep(
    folder: AnyPath | None = None,
    *,
    last: int = 1,
    best: int = 2,
    score: float | None = None,
    mode: str = "min",
    pattern: str | None = None,
) -> list[Path]:
    """Remove the checkpoints that nobody needs any more; returns what was removed.

    The last complete one is never removed, nor is the best, nor one that is not complete: somebody
    may be writing it.

    Parameters
    ----------
    folder
        ``checkpoint_dir()`` if it is not given.
    pattern
        Which names may be removed, as in ``epoch*.pt``. By default those with a number after
        ``step``, ``iter``, ``checkpoint`` or ``ckpt``: a ``best.pt`` is nobody's to remove.
    last
        How many of the newest stay; 1 or more.
    best
        How many of the best by score stay, as far as scores are known: the best one always.
    score
        The newest checkpoint's score, a validation loss say. It is kept beside the checkpoints.
    mode
        Whether the best score is the ``"min"`` or the ``"max"``.

    Raises
    ------
    ValueError
        A number or a mode that makes no sense; or the scores cannot be read, and nothing is
        removed.
    """
    if last < 1:
        raise ValueError(f"last={last}: the newest checkpoint always stays; give 1 or more")
    if best < 0:
        raise ValueError(f"best={best}: give 0 or more")
    if mode not in ("min", "max"):
        raise ValueError(f'mode={mode!r}: give "min" or "max"')
    above = os.fspath(folder) if folder is not None else os.fspath(checkpoint_dir())
    named = [path for path in _candidates(above, pattern) if pattern or _STEP.search(path.name)]
    found = sorted((path for path in named if not why_incomplete(path)), key=_age)
    if not found:
        return []
    scores = _scores(above)
    if score is not None:
        scores[found[-1].name] = float(score)
        with atomic_path(os.path.join(above, _SCORES)) as made:
            names = {path.name for path in found}
            made.write_text(json.dumps({n: s for n, s in scores.items() if n in names}))
    scored = [path for path in found if not math.isnan(scores.get(path.name, math.nan))]
    # of equal ones the newer is the better
    scored.sort(key=lambda path: scores[path.name] * (1 if mode == "max" else -1))
    stay = {*found[-last:], *scored[-max(1, best) :]}
    gone = [path for path in found if path not in stay]
    for path in gone:
        # its name goes first: what a kill leaves half removed is no checkpoint
        away = os.path.join(above, _temporary_name("new", path.name[-120:]))
        os.rename(path, away)
        _remove(away)
    return gone


def _scores(folder: str) -> dict[str, float]:
    path = os.path.join(folder, _SCORES)
    try:
        with open(path, encoding="utf-8") as file:
            return {str(name): float(score) for name, score in json.load(file).items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} cannot be read ({error}); delete it to forget the scores"
        ) from None


# -- how often -------------------------------------------------------------------------------------


def interval(save_s: float, mtbf_s: float = 10800.0, workers: int = 1) -> float:
    """Seconds of work between two checkpoints that lose the least time: sqrt(2 * mtbf * save).

    J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17 (1974);
    for saves that take longer than half the time between failures that time itself, after
    J. T. Daly, A higher order estimate of the optimum checkpoint interval, FGCS 22 (2006).

    Parameters
    ----------
    save_s
        Seconds that a save takes.
    mtbf_s
        Mean time between failures (or evictions) of one worker, in seconds.
    workers
        How many there are, each of whose failures ends the job.
    """
    for name, value in (("save_s", save_s), ("mtbf_s", mtbf_s), ("workers", workers)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name}={value}: give a number above 0")
    between = mtbf_s / workers
    return min(math.sqrt(2 * between * save_s), between)


class Cadence:
    """When the next checkpoint is due, from what saves have cost so far.

    >>> pace = every(mtbf=10800, save_s=30)
    >>> round(pace.seconds, 2), pace.steps(2.0)
    (804.98, 402)
    """

    def __init__(self, mtbf: float, save_s: float | None, workers: int) -> None:
        self._mtbf, self._workers = mtbf, workers
        self._first = save_s
        self._costs: list[float] = []
        self._since = time.monotonic()
        interval(self.save_s, mtbf, workers)

    @property
    def save_s(self) -> float:
        """Seconds that a save takes: the mean of the last five; until there is one, as given."""
        if self._costs:
            return max(1e-3, math.fsum(self._costs) / len(self._costs))
        return self._first if self._first is not None else 10.0

    @property
    def seconds(self) -> float:
        """Seconds of work between two saves."""
        return interval(self.save_s, self._mtbf, self._workers)

    def steps(self, step_s: float) -> int:
        """The same in steps of ``step_s`` seconds, rounded down; 1 at least."""
        return max(1, int(self.seconds / step_s))

    def due(self) -> bool:
        """Whether it is time to save, at the end of a step."""
        return time.monotonic() - self._since >= self.seconds

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Measure a save: ``with pace.saving(): ...``; the time to the next counts from its end."""
        began = time.monotonic()
        yield
        self._since = time.monotonic()
        self._costs = [*self._costs[-4:], self._since - began]
        _note_save(self._since - began)


def every(*, mtbf: float = 10800.0, save_s: float | None = None, workers: int = 1) -> Cadence:
    """Save as often as pays off: ``if pace.due(): with pace.saving(): ...``.

    Parameters
    ----------
    mtbf
        Mean seconds between failures or evictions of one worker.
    save_s
        Seconds that a save takes, until some have been measured; 10 if it is not given.
    workers
        How many there are, each of whose failures ends the job.
    """
    return Cadence(mtbf, save_s, workers)


# -- progress --------------------------------------------------------------------------------------

_LINE = 4000
_HALF = 4 << 20


def log(step: int | None = None, **metrics: Any) -> None:
    """Note how far the job is: one JSON line, for whoever follows it. Nothing outside a job.

    The line is ``{"time": seconds since 1970, "step": 7, "metrics": {"loss": 0.5}}``. Numbers that
    JSON does not have are text: ``"nan"``, ``"inf"``. Of the lines, the newest 4 MiB are there in
    any case. Metrics that do not fit in a line of 4,000 bytes are left out and counted in
    ``dropped``. A full disk loses lines, never the job.

    Raises
    ------
    TypeError
        A metric that is no number, text or truth value, nor a tensor or array of one number.
    """
    folder = os.environ.get("GPUQUEUE_ATTEMPT_DIR")
    if not folder:
        return
    values = {name: _plain_metric(name, value) for name, value in metrics.items()}
    number = None if step is None else int(step)
    record = {"time": round(time.time(), 3), "step": number, "metrics": values}
    line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
    while len(line) > _LINE:
        values.popitem()
        record["dropped"] = len(metrics) - len(values)
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
    path = os.path.join(folder, PROGRESS)
    with contextlib.suppress(OSError):
        # opened each time: threads, forks and a file that has been put aside need no thought
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line)
            full = os.fstat(handle).st_size >= _HALF
        finally:
            os.close(handle)
        if full:
            os.replace(path, path.replace(".jsonl", ".old.jsonl"))


def _plain_metric(name: str, value: Any) -> Any:
    if not isinstance(value, (bool, int, float, str)) and hasattr(value, "item"):
        value = value.item()  # a number of NumPy's, a tensor of one element
    if isinstance(value, float):
        # repr() of a subclass, as NumPy's float64 is, would be no plain number
        return float(value) if math.isfinite(value) else str(float(value))
    if value is None or isinstance(value, (bool, int, str)):
        return value
    raise TypeError(f"{name}: a {type(value).__name__} is no number, text or truth value")


def _warn(words: str) -> None:
    import logging

    logging.getLogger("gpuqueue.checkpoint").warning(words)


_TORCH = (
    "PARTS", "load_state", "missing_parts", "random_states", "restore_random_states", "save_state",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in (*_TORCH, "state_parts"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    where = "torch" if name in _TORCH else "state"
    return getattr(import_module(f"gpuqueue.integrations.{where}"), name)
