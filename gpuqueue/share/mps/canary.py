"""Trying MPS on a real driver: two programs on the GPU, one of them under half of it.

A program whose pipe directory is wrong runs with the whole GPU and says nothing. So it is believed
only what a program under the cap has seen itself: how many multiprocessors it has, whether the
daemon knows it, and that an allocation over its limit is refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuqueue.errors import MpsError
from gpuqueue.share.mechanism import Probe
from gpuqueue.share.mps import book, daemon
from gpuqueue.share.mps.control import Control, Session
from gpuqueue.share.mps.variables import variables

__all__ = ["try_out"]

_HALF = 50
_ALL = 100
_LIMIT = 2 << 30
_FITS = 2 << 20
_SECONDS = 20.0

# It stands alone: the cap must hold for programs that know nothing of it.
_PROGRAM = """
import ctypes, json, sys
said = {}
def call(name, *words):
    if result := getattr(cuda, name)(*words):
        raise OSError(f"{name} answered {result}")
try:
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context, sms = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
    pointer, size = ctypes.c_uint64(), ctypes.c_size_t
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuDeviceGetAttribute", ctypes.byref(sms), 16, device)
    said["sms"] = sms.value
    call("cuMemAlloc_v2", ctypes.byref(pointer), size(int(sys.argv[1])))
    said["over"] = cuda.cuMemAlloc_v2(ctypes.byref(pointer), size(int(sys.argv[2])))
except (OSError, AttributeError) as error:
    said["error"] = str(error)
print(json.dumps(said), flush=True)
sys.stdin.readline()
"""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a program has seen: multiprocessors, and whether too much was refused."""

    pid: int
    sms: int
    refused: bool


def try_out(control: Control, base: Mapping[str, str], folder: Path) -> Probe:
    """Start two programs under the daemon and compare what they see.

    It makes two CUDA contexts, which take some hundred MB each of the GPU for a moment.

    Parameters
    ----------
    base
        The environment to start them from.
    folder
        A directory of the trial's own, which is there; the daemon knows the trial by it.
    """
    try:
        with control.session() as session:
            book.enter(control.place, folder, _ALL)
            daemon.ensure(session, folder)
            session.hold_to(book.ceiling(control.place))
        with _programs(control, base) as (whole, half):
            deadline = time.monotonic() + _SECONDS
            seen = _heard(whole, deadline), _heard(half, deadline)
            with control.session() as session:
                return _judge(session, *seen)
    except (MpsError, OSError) as error:
        return Probe(usable=False, reason=str(error))
    finally:
        with contextlib.suppress(MpsError), control.session() as session:
            book.strike(control.place, folder)
            if not daemon.end_if_idle(session):
                session.hold_to(book.ceiling(control.place))


@contextlib.contextmanager
def _programs(
    control: Control, base: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]]:
    started = []
    try:
        for percent, limit in ((_ALL, None), (_HALF, _LIMIT)):
            environment = {**base, **variables(control.place, percent, limit)}
            started.append(
                subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _PROGRAM, str(_FITS), str(_LIMIT)],
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
            )
        yield started[0], started[1]
    finally:
        for process in started:
            with contextlib.suppress(OSError):
                process.communicate(b"\n", timeout=1)
        for process in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1)
            process.kill()
            process.wait()


def _heard(process: subprocess.Popen[bytes], deadline: float) -> _Seen:
    """What a program tells.

    Raises
    ------
    MpsError
        It could not use the GPU, or has told nothing in time.
    """
    assert process.stdout is not None
    poller = select.poll()  # select() knows no descriptor above 1023
    poller.register(process.stdout, select.POLLIN)
    text = b""
    while not text.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not poller.poll(left * 1000):
            raise MpsError(f"A program under MPS could not use the GPU within {_SECONDS:g} s.")
        piece = os.read(process.stdout.fileno(), 4096)
        if not piece:
            raise MpsError("A program under MPS ended without a word.")
        text += piece
    said = json.loads(text)
    if "error" in said:
        raise MpsError(f"A program under MPS could not use the GPU: {said['error']}.")
    return _Seen(process.pid, said["sms"], said["over"] == 2)


def _judge(session: Session, whole: _Seen, half: _Seen) -> Probe:
    listed = session.all_clients()
    for seen in (whole, half):
        if seen.pid not in listed:
            raise MpsError(
                f"A program was started under MPS on {session.place.gpu} and MPS does not have it: "
                "it ran with the whole GPU."
            )
    figure = f"{half.sms} of {whole.sms} multiprocessors at {_HALF} per cent"
    if not 0 < half.sms <= whole.sms * _HALF // 100:
        raise MpsError(f"A cap of MPS does not hold: a program saw {figure}.")
    words = f"A program saw {figure}"
    if half.refused:
        why = f"{words}, and was refused what was over its memory."
        return Probe(usable=True, reason=why, figure=figure, beside="memory of each process")
    return Probe(usable=True, reason=f"{words}. MPS limits no memory here.", figure=figure)
