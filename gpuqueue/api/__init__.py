"""What people and pages may ask of the queue, as a table of verbs: one meaning for every way in.

The server extension answers them over HTTP, a widget answers them from a notebook's kernel.
"""

from __future__ import annotations

from gpuqueue.api.asked import Asked
from gpuqueue.api.errors import error_told
from gpuqueue.api.routes import ROUTES, Accepted, Clientless, Created, Raw, Route

__all__ = ["ROUTES", "Accepted", "Asked", "Clientless", "Created", "Raw", "Route", "error_told"]
