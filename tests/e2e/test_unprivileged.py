"""The whole queue as a user without rights, whose home cannot be written."""

import os
import shutil
import subprocess
import sys
import textwrap

import pytest

NOBODY = 65534

SCRIPT = """
import os, gpuqueue
from gpuqueue.client import default_client

assert os.geteuid() != 0
job = gpuqueue.submit(["sh", "-c", "id -u; pwd; echo $CUDA_VISIBLE_DEVICES"])
assert job.wait(60) == 0, job
uid, cwd, gpus = job.logs().split("\\n")[:3]
assert (uid, cwd) == (str(os.geteuid()), os.getcwd()), job.logs()
assert gpus in ("0", "1")
assert gpuqueue.submit(lambda x: x + 1, 41).result(60) == 42
long = gpuqueue.submit(["sleep", "600"])
long.cancel()
assert long.wait(60) != 0
print(gpuqueue.status())
os.kill(default_client().lead()["pid"], 15)
"""


def as_nobody() -> list[str]:
    """Words that run a command without root's rights, where the tests run as root.

    Where others cannot read the interpreter, one capability is kept: it lets the command read
    whatever it may need, and write nothing.
    """
    if os.geteuid() != 0:
        return []
    plain = [
        "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs",
    ]  # fmt: skip
    reading = [
        "--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search",
        "--bounding-set=-all,+dac_read_search",
    ]  # fmt: skip
    for words in ([*plain, *reading], [*plain, "--inh-caps=-all", "--bounding-set=-all"]):
        trial = [*words, sys.executable, "-c", "import gpuqueue, sys; print(sys.prefix)"]
        done = subprocess.run(trial, capture_output=True, text=True, cwd="/", check=False)
        if done.stdout.strip() == sys.prefix:
            return words
    pytest.skip("no way here to run the interpreter as somebody without rights")


@pytest.mark.skipif(os.name != "posix", reason="POSIX users")
def test_the_queue_needs_no_rights_and_no_home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run (v2) – ü")
    state = folder / "st ate" / "ü"
    state.mkdir(parents=True)
    if os.geteuid() == 0:
        for path in (folder, *folder.parents[:2], state.parent, state):
            path.chmod(0o755) if path.owner() == "root" and path != state else None
        shutil.chown(state, NOBODY, NOBODY)
    env = {
        "HOME": "/nonexistent",
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "GPUQUEUE_HOME": str(state),
        "GPUQUEUE_FAKE_GPUS": "24G,24G",
    }
    done = subprocess.run(
        [*as_nobody(), sys.executable, "-c", textwrap.dedent(SCRIPT)],
        env=env, cwd=folder, capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    assert "controller: headless" in done.stdout
    assert {path.lstat().st_uid for path in state.rglob("*")} == {
        NOBODY if os.geteuid() == 0 else os.geteuid()
    }
