"""A cap on the compute of a job by NVIDIA's Multi-Process Service (MPS), on Linux, without root.

``place.py`` is where a daemon has its files, ``control.py`` how it is talked with, ``daemon.py``
how it is started, replaced and ended; ``book.py`` has the shares on it, ``variables.py`` what a
process is told. ``canary.py`` tries it, ``clients.py`` ends processes in the supported order,
``ending.py`` is that as a program. ``mechanism.py`` puts it together. ``docs/shares.md`` says what
it is worth.
"""

from __future__ import annotations

from gpuqueue.share.mps.clients import Ended
from gpuqueue.share.mps.control import PERCENTAGE, PIPE, Limits
from gpuqueue.share.mps.mechanism import Mps
from gpuqueue.share.mps.variables import LIMIT

__all__ = ["LIMIT", "PERCENTAGE", "PIPE", "Ended", "Limits", "Mps"]
