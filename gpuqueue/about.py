"""The version of gpuqueue, and where it was imported from."""

from pathlib import Path

__all__ = ["PACKAGE", "ROOT", "__version__"]

__version__ = "0.1.0"

PACKAGE = Path(__file__).parent
"""The package's own folder."""

ROOT = str(PACKAGE.parent)
"""What has to be on the import path for ``import gpuqueue`` to find this one."""
