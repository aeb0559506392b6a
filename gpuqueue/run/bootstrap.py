"""Start of a payload in the submitter's interpreter, run by path: ``bootstrap.py KIND``.

It makes the import path what it was where the job was submitted, then hands over to the module
of that kind. Nothing of gpuqueue is imported before the path is right.
"""

import json
import os
import sys


def main() -> None:
    """Set the import path and run the payload of the kind in ``sys.argv``."""
    kind = sys.argv[1]
    attempt = os.environ["GPUQUEUE_ATTEMPT_DIR"]
    job_dir = os.path.dirname(attempt)
    with open(os.path.join(job_dir, "spec.json"), encoding="utf-8") as file:
        spec = json.load(file)
    if kind == "function":
        sys.path[:] = spec["sys_path"]
    else:
        # the user's code runs in a process of its own; a module of theirs called queue.py is not
        # to be found by this one
        sys.path += [entry for entry in spec["sys_path"] if entry not in sys.path]
    sys.argv = [spec.get("argv0", "")]
    from importlib import import_module

    import_module(f"gpuqueue.run.{kind}").run(job_dir, attempt, spec)


if __name__ == "__main__":
    main()
