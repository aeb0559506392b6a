"""A certificate authority of one's own, and a certificate of it for loopback."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["Certificates", "make_certificates"]

_NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n"


@dataclass(frozen=True)
class Certificates:
    """Files in PEM."""

    authority: Path
    certificate: Path
    key: Path


def make_certificates(folder: Path) -> Certificates:
    """New ones, good for a day."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl here")
    names = folder / "names"
    names.write_text(_NAMES)
    new = ["-newkey", "rsa:2048", "-nodes"]
    for line in (
        ["req", "-x509", *new, "-subj", "/CN=Our CA", "-keyout", "ca.key", "-out", "ca.pem"],
        ["req", *new, "-subj", "/CN=localhost", "-keyout", "server.key", "-out", "server.csr"],
        ["x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", "1",
         "-CAcreateserial", "-extfile", "names", "-out", "server.pem"],
    ):  # fmt: skip
        subprocess.run(["openssl", *line], cwd=folder, check=True, capture_output=True)
    return Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key")
