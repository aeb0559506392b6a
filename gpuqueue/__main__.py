"""``python -m gpuqueue``: the same program, where its scripts are not on the path."""

from gpuqueue.cli import main

main()
