"""CPU seconds of the canary's build, native and emulated: `python tests/bench/emulated.py [VARIANT...]`.

The container of each build says how much CPU time it used, every fifth of a second; toolchain images are made or
reused before. Needs a Docker engine with qemu registered on its machine (docs/runners.md).
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import docker
import docker.errors

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.e2e.conftest import make_project  # noqa: E402

VARIANTS = ("cpu-avx2-py311", "cpu-armv8_2-py311", "cpu-armv9-py311")


def build_seconds(client: docker.DockerClient, variant: str, project: Path) -> float:
    command = [sys.executable, "-m", "farm.cli.main", "--project", str(project), "submit", "--no-publish", "--quiet"]
    command += ["--variant", variant, "--package", "canary"]
    used = 0.0
    wanted = {"label": [f"farm.job=canary-{variant}", "farm.kind=build"]}
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, "CI": "true"}, stdout=subprocess.DEVNULL) as farm:
        while farm.poll() is None:
            for container in client.containers.list(filters=wanted, ignore_removed=True):
                try:
                    said = client.api.stats(container.id, stream=False, one_shot=True)
                except docker.errors.APIError:  # it has ended
                    continue
                used = max(used, said.get("cpu_stats", {}).get("cpu_usage", {}).get("total_usage", 0) / 1e9)
            time.sleep(0.2)
    if farm.returncode:
        raise SystemExit(f"{variant}: exit code {farm.returncode}")
    return used


def main() -> None:
    client = docker.from_env()
    base = 0.0
    for variant in sys.argv[1:] or VARIANTS:
        with tempfile.TemporaryDirectory() as folder:
            seconds = build_seconds(client, variant, make_project(Path(folder) / "project"))
        base = base or seconds
        print(f"{variant}: {seconds:.1f} CPU s, {seconds / base:.1f} times", flush=True)


if __name__ == "__main__":
    main()
