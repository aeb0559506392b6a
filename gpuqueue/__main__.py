"""``python -m gpuqueue``: the same program, for an environment whose scripts are not on the path."""

from gpuqueue.cli import main

main()
