import errno
import os

import pytest

from gpuqueue.run.logfile import LogFile


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log"


def test_what_fits_is_kept_as_it_is(path):
    log = LogFile(str(path), 1 << 20)
    log.write(b"a\r\xff")
    log.write(b"b\n")
    log.close()
    assert path.read_bytes() == b"a\r\xffb\n"
    assert log.dropped == 0


def test_beyond_the_limit_the_last_part_is_kept_and_the_gap_is_counted(path):
    log = LogFile(str(path), 1000)
    written = b""
    for number in range(100_000):
        line = b"%d\n" % number
        written += line
        log.write(line)
    log.close()
    text = path.read_bytes()
    head, _, rest = text.partition(b"\n[gpuqueue: ")
    note, _, tail = rest.partition(b"]\n")
    assert written.startswith(head)
    assert written.endswith(tail)
    assert note.startswith(b"%d bytes" % log.dropped)
    assert b"limit" in note
    assert len(head) + log.dropped + len(tail) == len(written)


def test_a_disk_without_room_delays_output_and_loses_none_that_is_small(path, monkeypatch):
    log = LogFile(str(path), 1 << 20)
    log.write(b"before\n")
    real = os.write
    full = True

    def write(handle, data):
        if full:
            raise OSError(errno.ENOSPC, "full")
        return real(handle, data)

    monkeypatch.setattr(os, "write", write)
    log.write(b"during\n")
    assert log.behind
    full = False
    log.close()
    assert path.read_bytes() == b"before\nduring\n"


def test_the_last_of_the_disk_is_left_for_the_exit_record(path, monkeypatch):
    log = LogFile(str(path), 1 << 30)
    monkeypatch.setattr(LogFile, "_room", lambda self: False)
    log.write(b"x" * 10)
    assert path.read_bytes() == b""
    monkeypatch.setattr(LogFile, "_room", lambda self: True)
    log._full_since -= 2
    log.settle()
    assert path.read_bytes() == b"x" * 10
    log.write(b"y")
    log.close()
    assert path.read_bytes() == b"x" * 10 + b"y"
