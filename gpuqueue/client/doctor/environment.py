"""Checks of this Python environment: what of Jupyter and IPython is there and turned on."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gpuqueue.client.doctor.findings import Check, Scene, bad, good, warn

__all__ = ["ipython", "jupyter", "kernels"]


def kernels(_: Scene) -> Iterable[Check]:
    """Cells can run as jobs."""
    from importlib.metadata import PackageNotFoundError, version
    from importlib.util import find_spec

    pip = f"{shlex.quote(sys.executable)} -m pip install ipykernel"
    if find_spec("ipykernel") is None:
        yield bad("ipykernel", "not here; %%gpu cells cannot run as jobs", pip)
        return
    try:
        yield good("ipykernel", f"version {version('ipykernel')}")
    except PackageNotFoundError:
        yield good("ipykernel", "is importable")


def _enabled(folders: Iterable[Path], names: Iterable[str], read: Callable[[Any], Any]) -> Any:
    """What the first file of configuration that has an opinion says, and where."""
    for folder in folders:
        for name in names:
            for path in sorted(folder.glob(name), reverse=True):
                try:
                    opinion = read(json.loads(path.read_text(encoding="utf-8")))
                except (OSError, ValueError, LookupError, AttributeError, TypeError):
                    continue
                if opinion is not None:
                    return opinion, path
    return None, None


def jupyter(_: Scene) -> Iterable[Check]:
    """The server extension is enabled."""
    from jupyter_core.paths import jupyter_config_path

    enabled, path = _enabled(
        [Path(folder) for folder in jupyter_config_path()],
        ["jupyter_server_config.json", "jupyter_server_config.d/*.json"],
        lambda data: (
            data.get("ServerApp", {}).get("jpserver_extensions", {}).get("gpuqueue_jupyter")
        ),
    )
    if enabled:
        yield good("server extension", f"enabled by {path}")
    else:
        words = "not enabled" if path is None else f"turned off by {path}"
        fix = "jupyter server extension enable gpuqueue_jupyter"
        yield warn("server extension", f"{words}; Jupyter servers here do without it", fix)


def ipython(_: Scene) -> Iterable[Check]:
    """Kernels load the magics by themselves."""
    from IPython.paths import get_ipython_dir

    folders = [
        Path(get_ipython_dir()) / "profile_default",
        Path(sys.prefix) / "etc" / "ipython",
        Path("/usr/local/etc/ipython"),
        Path("/etc/ipython"),
    ]

    def listed(data: Any) -> bool | None:
        for application in ("IPKernelApp", "InteractiveShellApp"):
            if "gpuqueue" in data.get(application, {}).get("extensions", ()):
                return True
        return None

    found, path = _enabled(folders, ["ipython_kernel_config.json", "ipython_config.json"], listed)
    if found:
        yield good("ipython extension", f"loaded in every kernel, by {path}")
    else:
        words = "kernels do not load it by themselves"
        yield warn("ipython extension", words, "write %load_ext gpuqueue in the notebook")
