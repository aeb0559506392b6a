"""gpuqueue in a Jupyter server: REST, events and the controller."""

from __future__ import annotations

from typing import Any

__all__: list[str] = []


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """Where the server finds the extension."""
    from gpuqueue_jupyter.extension import GpuqueueExtension

    return [{"module": "gpuqueue_jupyter", "app": GpuqueueExtension}]


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Where the front end's own files are; installing puts ``panel.mjs`` beside them."""
    return [{"src": "../labextension", "dest": "jupyter-gpuqueue"}]
