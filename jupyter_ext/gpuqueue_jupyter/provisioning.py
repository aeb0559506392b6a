"""How the kernels of a server with the extension come to our provisioner. Quick to import."""

from __future__ import annotations

import os
from importlib.metadata import EntryPoint
from typing import Any

__all__ = ["NAME", "forget_failed_starts", "offer_provisioner", "withdraw_provisioner"]

NAME = "gpuqueue"
"""What kernelspecs call the provisioner."""
_LOCAL = "local-provisioner"


def offer_provisioner(server: Any) -> Any:
    """Make ours the provisioner of kernelspecs that name none; the factory, None if it is not ours.

    Whoever has chosen a default keeps it.
    """
    from jupyter_client.provisioning.factory import KernelProvisionerFactory

    factory = KernelProvisionerFactory.instance(parent=server)
    if NAME not in factory.provisioners:
        # of an installation that was made before there was one, the metadata does not tell
        value = "gpuqueue_jupyter.provisioner:GpuqueueProvisioner"
        factory.provisioners[NAME] = EntryPoint(NAME, value, factory.GROUP_NAME)
    chosen = "default_provisioner_name" in server.config.get("KernelProvisionerFactory", {})
    if chosen or os.environ.get(factory.default_provisioner_name_env):
        return None
    if factory.default_provisioner_name != _LOCAL:
        return None
    factory.default_provisioner_name = NAME
    return factory


def withdraw_provisioner(factory: Any) -> None:
    """Leave the default as it was."""
    if factory.default_provisioner_name == NAME:
        factory.default_provisioner_name = _LOCAL


def forget_failed_starts(kernels: Any) -> None:
    """Take kernels whose start has failed out of a manager's list of those that are starting.

    As long as one of them is in it, `shutdown_all` raises, and the server does not stop.
    """
    pending = getattr(kernels, "_pending_kernels", None)
    if not isinstance(pending, dict):
        return
    for kernel_id, task in list(pending.items()):
        if kernel_id not in kernels and getattr(task, "done", bool)():
            pending.pop(kernel_id, None)
