"""``gpuqueue kernelspec``: tiles in JupyterLab's launcher whose kernels start with a share."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuqueue.errors import InvalidRequest

if TYPE_CHECKING:
    from jupyter_client.kernelspec import KernelSpecManager

    from gpuqueue.client.wishes import Wish

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Launcher tiles whose kernels hold a share of a GPU.",
)

_PROVISIONER = "gpuqueue"
_NAME = re.compile(r"[A-Za-z0-9._-]+")
"""What Jupyter takes as the name of a kernelspec."""


@app.command()
def add(
    *,
    share: Annotated[str, typer.Option(help="Part of a GPU's compute, such as 0.25.")],
    mem: Annotated[
        str | None, typer.Option(help="Memory of the GPU, such as 20G; else the share's part.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="Number of GPUs; else one.")] = None,
    name: Annotated[str | None, typer.Option(help="Its name; else made of its share.")] = None,
    kernel: Annotated[str, typer.Option(help="The kernelspec to make it of.")] = "python3",
    prefix: Annotated[
        bool, typer.Option("--sys-prefix", help="Into this Python's environment, not for the user.")
    ] = False,
) -> None:
    """Add a kernelspec whose kernels hold a share: a copy of another one."""
    from gpuqueue.client.wishes import wish_from

    wish = wish_from({"share": share, "mem": mem, "gpus": gpus}, "")
    assert wish is not None
    manager = _manager()
    base = _base(manager, kernel)
    chosen = (name or _name_for(kernel, wish)).lower()  # as Jupyter keeps it
    if not _NAME.fullmatch(chosen):
        raise InvalidRequest("name", f"{chosen!r}: letters, digits, '.', '_' and '-' are allowed")
    there = _specs(manager)
    if chosen in there and not _is_ours(there[chosen]):
        raise InvalidRequest("name", f"{chosen!r} is another kernelspec, not made by this command")
    asked = {"share": share, **({"mem": mem} if mem else {}), **({"gpus": gpus} if gpus else {})}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "spec"
        shutil.copytree(base, copy)
        text = _changed(copy / "kernel.json", kernel, asked, wish)
        (copy / "kernel.json").write_text(text, encoding="utf-8")
        where = manager.install_kernel_spec(
            str(copy), chosen, user=not prefix, prefix=sys.prefix if prefix else None
        )
    typer.echo(f"{chosen}: {json.loads(text)['display_name']} ({where})")


@app.command("list")
def list_() -> None:
    """List the kernelspecs that start kernels with a share."""
    found = {name: spec for name, spec in _specs(_manager()).items() if _is_ours(spec)}
    if not found:
        typer.echo("none; `jupyter gpuqueue kernelspec add --share 0.25` adds one")
    for name, spec in sorted(found.items()):
        typer.echo(f"{name}  {spec['spec']['display_name']}  {spec['resource_dir']}")


@app.command()
def remove(name: Annotated[str, typer.Argument(help="Its name, as `list` has it.")]) -> None:
    """Remove a kernelspec that `add` has made."""
    manager = _manager()
    spec = _specs(manager).get(name)
    if spec is None:
        raise InvalidRequest("name", f"there is no kernelspec {name!r}")
    if not _is_ours(spec):
        raise InvalidRequest("name", f"{name!r} was not made by this command, and stays")
    typer.echo(f"removed {manager.remove_kernel_spec(name)}")


def _manager() -> KernelSpecManager:
    from jupyter_client.kernelspec import KernelSpecManager

    return KernelSpecManager()


def _specs(manager: KernelSpecManager) -> dict[str, Any]:
    """Every kernelspec, also those that name a provisioner which is not installed here."""
    found: dict[str, Any] = {}
    for name, folder in manager.find_kernel_specs().items():
        try:
            spec = json.loads((Path(folder) / "kernel.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        found[name] = {"resource_dir": folder, "spec": spec}
    return found


def _base(manager: KernelSpecManager, kernel: str) -> Path:
    """The directory of the kernelspec to copy."""
    there = manager.find_kernel_specs()
    if kernel not in there:
        known = ", ".join(sorted(there)) or "none"
        raise InvalidRequest("kernel", f"there is no kernelspec {kernel!r}; there are: {known}")
    return Path(there[kernel])


def _is_ours(spec: dict[str, Any]) -> bool:
    metadata = spec["spec"].get("metadata") or {}
    return bool((metadata.get("gpuqueue") or {}).get("base"))


def _name_for(kernel: str, wish: Wish) -> str:
    words = re.sub(r"[^A-Za-z0-9.]+", "-", str(wish)).strip("-")
    return f"{kernel}-gpu-{words}"


def _changed(path: Path, kernel: str, asked: dict[str, Any], wish: Wish) -> str:
    """The text of a kernelspec with a share; all else in it stays.

    Raises
    ------
    InvalidRequest
        It is of another language, or has a provisioner of its own.
    """
    spec = json.loads(path.read_text(encoding="utf-8"))
    metadata = dict(spec.get("metadata") or {})
    own = (metadata.get("kernel_provisioner") or {}).get("provisioner_name", _PROVISIONER)
    if own != _PROVISIONER:
        raise InvalidRequest("kernel", f"{kernel!r} has a provisioner of its own ({own})")
    if not str(spec.get("language", "")).lower().startswith("python"):
        raise InvalidRequest("kernel", f"{kernel!r} is not a Python kernel")
    metadata["kernel_provisioner"] = {"provisioner_name": _PROVISIONER, "config": asked}
    metadata["gpuqueue"] = {"base": kernel}
    base = str(spec.get("display_name", kernel)).partition(" · ")[0]
    return json.dumps(
        {**spec, "display_name": f"{base} · GPU {wish}", "metadata": metadata},
        indent=1, ensure_ascii=False,
    )  # fmt: skip
