"""The panel in a notebook cell: ``gpuqueue.panel()``, and the card of a job.

It asks the Jupyter server where that has gpuqueue, which answers while a cell runs, and else the
notebook's own kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuqueue.errors import GpuqueueError

if TYPE_CHECKING:
    from gpuqueue_widgets.widget import PanelWidget

__all__ = ["card", "panel"]


def panel(job: Any = None) -> PanelWidget:
    """The GPUs and the queue, live, with their buttons; or one job alone.

    Parameters
    ----------
    job
        A job or its number.

    Raises
    ------
    GpuqueueError
        ``anywidget`` is not installed.

    Examples
    --------
    >>> gpuqueue.panel()  # doctest: +SKIP
    """
    try:
        from gpuqueue_widgets.widget import PanelWidget
    except ImportError as error:
        raise GpuqueueError(
            f"the panel in a cell needs anywidget ({error}); install it in the kernel's "
            "environment: pip install 'jupyter-gpuqueue[widget]'"
        ) from None
    return PanelWidget(job=int(getattr(job, "id", job) or 0))


def card(job_id: int) -> dict[str, Any] | None:
    """A job's live card as a MIME bundle; None where no front end could show it."""
    import sys

    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is None or getattr(shell, "kernel", None) is None:
        return None
    try:
        from gpuqueue_widgets.widget import PanelWidget
    except ImportError:
        return None
    bundle = PanelWidget(job=job_id)._repr_mimebundle_()
    return bundle[0] if isinstance(bundle, tuple) else bundle
