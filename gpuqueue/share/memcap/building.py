"""Building the library: once per machine, at first use, with the compiler that is there.

The wheel has its C sources. A library built elsewhere would ask for that system's C library, and
one that does not load makes the dynamic linker print a line into every program of a job.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gpuqueue.errors import MemoryCapError, NoCompiler

__all__ = ["FLAGS", "SOURCES", "build", "build_into", "compiler", "sources"]

SOURCES = Path(__file__).parent / "src"
"""The folder of the C sources."""

# 16 bytes are compared and swapped in one instruction; on aarch64 the compiler decides
_MACHINES = {"x86_64": ("-mcx16",), "aarch64": ()}

FLAGS = (
    "-std=gnu11",
    "-O2",
    "-fPIC",
    "-fvisibility=hidden",
    "-U_FORTIFY_SOURCE",  # its checked calls are of glibc alone
)
_LINK = (
    "-shared",
    "-nostartfiles",  # nothing runs when it is loaded or unloaded
    "-Wl,-Bsymbolic",  # it calls its own functions, whatever else has their names
    "-Wl,-z,now",
)
_UNSUITED = " \t\n:;$"
"""Where one of these is in its name, LD_PRELOAD cannot name a file."""


def sources() -> tuple[Path, ...]:
    """The C files, in an order that does not change."""
    return tuple(sorted(SOURCES.glob("*.c")))


def compiler() -> list[str]:
    """The command of a C compiler: ``CC``, else the first of cc, gcc and clang.

    Raises
    ------
    NoCompiler
        There is none, or no way to build for this machine.
    """
    machine = platform.machine()
    if not sys.platform.startswith("linux") or machine not in _MACHINES:
        raise NoCompiler(
            "The memory cap is for Linux on x86-64 and aarch64, "
            f"not for {sys.platform} on {machine}."
        )
    asked = shlex.split(os.environ.get("CC", ""))
    for words in (asked, ["cc"], ["gcc"], ["clang"]):
        if words and shutil.which(words[0]):
            return words
    raise NoCompiler(
        "Memory caps need a small library that is built at first use, and there is no C compiler "
        "here. Install one (apt install gcc libc6-dev, or conda install gcc), or name one in CC."
    )


def build_into(target: Path, extra: Sequence[str] = ()) -> None:
    """Compile the library to a file, which appears in one piece.

    Raises
    ------
    NoCompiler
        There is no C compiler.
    MemoryCapError
        It has failed; the message ends with what it said.
    """
    command = compiler()
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(prefix=".memcap-", suffix=".so", dir=target.parent)
    os.close(handle)
    script = f"-Wl,--version-script={SOURCES / 'exports.map'}"
    flags = [*FLAGS, *_MACHINES[platform.machine()], *_LINK, script, *extra]
    files = [str(path) for path in sources()]
    try:
        done = subprocess.run(
            # libdl is a library of its own before glibc 2.34
            [*command, *flags, "-o", name, *files, "-ldl"],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=120,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode != 0:
            raise MemoryCapError(
                f"The memory-cap library cannot be built with {shlex.join(command)}: "
                f"{done.stderr.strip()[-2000:]}"
            )
        Path(name).chmod(0o700)
        Path(name).replace(target)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MemoryCapError(f"The memory-cap library cannot be built: {error}") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()


def _mark() -> str:
    """What the library depends on: its sources, the machine, the C library."""
    digest = hashlib.sha256()
    for path in (*sources(), *sorted(SOURCES.glob("*.h")), SOURCES / "exports.map"):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    digest.update(repr((FLAGS, _LINK, platform.machine(), platform.libc_ver())).encode())
    return digest.hexdigest()[:16]


def _own(folder: Path) -> bool:
    """Whether a folder is this user's alone, so that nobody else can put a library there."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        info = folder.lstat()
    except OSError:
        return False
    return folder.is_dir() and info.st_uid == os.geteuid() and not info.st_mode & 0o022


def _spare() -> Path:
    return Path(f"/var/tmp/gpuqueue-{os.geteuid()}-memcap")  # noqa: S108 - made 0700, checked


def build(folder: Path) -> Path:
    """The library, built if it is not yet there.

    Parameters
    ----------
    folder
        Where to keep it. If LD_PRELOAD cannot name a file in it (spaces, colons), it is kept in
        ``/var/tmp/gpuqueue-<uid>-memcap`` instead.

    Raises
    ------
    NoCompiler
        It has to be built and there is no C compiler.
    MemoryCapError
        The compiler has failed, or no folder will do.
    """
    spare = _spare()
    for place in (folder, spare):
        if not any(mark in str(place) for mark in _UNSUITED) and _own(place):
            library = place / f"libgpuqueue-memcap-{_mark()}.so"
            if not library.is_file():
                build_into(library)
            return library
    raise MemoryCapError(
        f"{folder}: the dynamic linker cannot load a library from a path with spaces or colons, "
        f"and {spare} is not a folder of this user alone. Remove it, or set GPUQUEUE_HOME to "
        "another path."
    )
