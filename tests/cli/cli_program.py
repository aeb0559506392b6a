"""Running the real program, as people and scripts do."""

from __future__ import annotations

import json
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

PROGRAM = str(Path(sysconfig.get_path("scripts")) / "gpuqueue")


def gq(*words: str | bytes, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run ``gpuqueue`` with these words to its end."""
    return subprocess.run(
        [PROGRAM, *words],
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="surrogateescape",
        timeout=90,
        stdin=subprocess.DEVNULL,
        check=False,
        **options,
    )


def ok(*words: str, **options: Any) -> str:
    """Run it, expect success, and return what it printed."""
    done = gq(*words, **options)
    assert done.returncode == 0, done
    assert "Traceback" not in done.stderr
    return done.stdout


def queued(*words: str, **options: Any) -> int:
    """Submit, and return the job's number."""
    return int(json.loads(ok("submit", "--json", *words, **options))["id"])


def refused(*words: str | bytes, code: int = 2, **options: Any) -> str:
    """Run it, expect a refusal in one line, and return that line."""
    done = gq(*words, **options)
    assert done.returncode == code, done
    assert done.stdout == ""
    assert done.stderr.startswith("gpuqueue: ")
    assert done.stderr.count("\n") == 1
    return done.stderr
