"""Whether files may have changed since somebody looked at them, without looking at each again.

Linux's inotify, on the files themselves, so that a change by whatever name of a file is seen, and
on the folders above them, for the move of one. It knows less than a look does: it may tell of a
change where there was none, so who is told looks. Where it could miss one (a file system that other
machines write to, few watches to have), nothing is watched, and the answer is always that
something may have changed.

Not seen is what a program writes through a mapping of the file.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable, Iterator

__all__ = ["Watch"]

_MODIFY, _ATTRIB, _MOVED_FROM, _MOVED_TO = 0x2, 0x4, 0x40, 0x80
_CREATE, _DELETE, _DELETE_SELF, _MOVE_SELF = 0x100, 0x200, 0x400, 0x800
_ADD = 0x20000000
_OF_FILES = _MODIFY | _ATTRIB | _DELETE_SELF | _MOVE_SELF
_OF_FOLDERS = _DELETE_SELF | _MOVE_SELF
_OF_LINKS = _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
_LOCAL = {
    0xEF53,  # ext2 to ext4
    0x58465342,  # XFS
    0x9123683E,  # Btrfs
    0x01021994,  # tmpfs
    0x794C7630,  # overlayfs
    0x2FC12FC1,  # ZFS
    0xF2F52010,  # F2FS
    0x73717368,  # SquashFS
    0xE0F5E1E2,  # EROFS
}
"""Kinds of file system (``statfs``) that only this machine's kernel writes to."""
_ENOUGH = 60_000
"""Watches that a user must be able to have: where they are few, others need them."""


class Watch:
    """Files that are looked after; ``quiet`` tells whether all are surely as they were.

    It is to be asked once before the files are looked at for the first time.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._handle = -1
        self._kinds: dict[int, int] = {}
        self._folders: set[str] = set()
        with (
            contextlib.suppress(OSError, ValueError, AttributeError),
            open("/proc/sys/fs/inotify/max_user_watches") as file,
        ):
            if int(file.read()) >= _ENOUGH:
                self._handle = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)

    def add(self, paths: Iterable[str]) -> None:
        """Look after files from now on."""
        for path in paths:
            taken = False
            with contextlib.suppress(OSError):
                taken = self._handle >= 0 and self._take(path)
            if not taken:
                self.close()
                return

    def quiet(self) -> bool:
        """Whether nothing has happened to any since this was last asked."""
        if self._handle < 0:
            return False
        seen = False
        with contextlib.suppress(BlockingIOError):
            while os.read(self._handle, 1 << 16):
                seen = True
        return not seen

    def close(self) -> None:
        """Look after nothing any more."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _take(self, path: str) -> bool:
        """Watch a file and what leads to it; False where that cannot be."""
        for place, mask in self._ways(path):
            if not self._watch(place, mask):
                return False
        return self._watch(path, _OF_FILES)

    def _ways(self, path: str) -> Iterator[tuple[str, int]]:
        """The folders above a file, and those that have the links on the way to it."""
        if os.path.islink(path):
            yield os.path.dirname(path), _OF_LINKS
            yield from self._ways(os.path.realpath(path))
        folder = os.path.dirname(path)
        while folder not in self._folders:
            self._folders.add(folder)
            yield folder, _OF_FOLDERS
            if os.path.islink(folder):
                yield os.path.dirname(folder), _OF_LINKS
                yield from self._ways(os.path.join(os.path.realpath(folder), "."))
            folder = os.path.dirname(folder)

    def _watch(self, path: str, mask: int) -> bool:
        name = os.fsencode(path)
        return (
            self._kind_of(path, name) in _LOCAL
            and self._libc.inotify_add_watch(self._handle, name, mask | _ADD) >= 0
        )

    def _kind_of(self, path: str, name: bytes) -> int:
        device = os.stat(path).st_dev
        if device not in self._kinds:
            room = ctypes.create_string_buffer(256)
            failed = self._libc.statfs(name, room)
            self._kinds[device] = 0 if failed else int.from_bytes(room.raw[:4], "little")
        return self._kinds[device]
