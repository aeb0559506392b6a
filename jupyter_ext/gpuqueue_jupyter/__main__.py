"""``python -m gpuqueue_jupyter``: what ``jupyter gpuqueue serve`` runs."""

from __future__ import annotations

from gpuqueue_jupyter.serve import main

if __name__ == "__main__":
    main()
