"""The container's files, as far as they can be tried without a container."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import yaml
from conftest import until
from lab_server import TOKEN, free_port

from gpuqueue.paths import Home

ROOT = Path(__file__).resolve().parent.parent.parent
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8")


def test_compose_gives_the_gpus_and_keeps_the_queue() -> None:
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
    service = compose["services"]["jupyter"]
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    assert service["init"] is True
    assert service["ports"] == ["127.0.0.1:8888:8888"]  # not for the whole network
    context = DOCKER / service["build"]["context"]
    assert (context / service["build"]["dockerfile"]).samefile(DOCKER / "Dockerfile")
    (state,) = re.findall(r"^ENV GPUQUEUE_HOME=(\S+)$", DOCKERFILE, re.MULTILINE)
    mounted = {volume.split(":")[1]: volume.split(":")[0] for volume in service["volumes"]}
    assert mounted[state] in compose["volumes"]
    assert service["environment"] == {"JUPYTER_TOKEN": None}  # nobody's secret is in a file


def test_the_dockerfile_starts_what_it_copies() -> None:
    copied = dict(re.findall(r"^COPY (?:--\S+ )?(\S+) (\S+)$", DOCKERFILE, re.MULTILINE))
    (entry,) = re.findall(r'^ENTRYPOINT \["(\S+)"\]$', DOCKERFILE, re.MULTILINE)
    assert copied["docker/entrypoint.sh"] == entry
    assert DOCKERFILE.index("USER gpuqueue") < DOCKERFILE.index("ENTRYPOINT")


def test_what_is_sent_to_the_build_is_enough_to_install(tmp_path: Path) -> None:
    """The wheel builds from the files that the ignore file lets through, and from no others."""
    lines = (DOCKER / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    context = tmp_path / "context"
    for line in lines:
        if not line.startswith("!"):
            continue
        source, target = ROOT / line[1:], context / line[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    assert (context / "docker" / "entrypoint.sh").exists()
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, context],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(tmp_path.glob("jupyter_gpuqueue-*-py3-none-any.whl"))) == 1


def test_the_entrypoint_serves_the_queue(home: Home, tmp_path: Path) -> None:
    port = free_port()
    places = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    log = tmp_path / "container.log"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            ["sh", DOCKER / "entrypoint.sh"],
            cwd=tmp_path,
            env={
                **os.environ,
                **{name: str(tmp_path / name.lower()) for name in places},
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "JUPYTER_PORT": str(port),
                "JUPYTER_TOKEN": TOKEN,
                "JUPYTER_PREFER_ENV_PATH": "1",
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/gpuqueue/api/v1/status",
        headers={"Authorization": f"token {TOKEN}"},
    )

    def answered() -> bytes:
        assert process.poll() is None, log.read_text(errors="replace")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.read()
        except (urllib.error.URLError, ConnectionError):
            return b""

    try:
        assert b'"FAKE-1"' in until(answered)
        assert "FAKE-1" in log.read_text(errors="replace")  # the container's log tells its GPUs
    finally:
        process.terminate()
        process.wait(60)
