"""How much longer a canary takes through Slurm than its script by hand: `python
tests/bench/slurm.py`, as root.
"""

import json
import os
import shutil
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.e2e.conftest import *  # noqa: F403
from tests.e2e.conftest import Farm, make_project, pack_fast, wait
from tests.e2e.slurm.conftest import FOLDER, Cluster, cluster, tree  # noqa: F401

SUBMIT = (
    "submit",
    "--variant",
    "cpu-avx-py311",
    "--package",
    "canary",
    "--on",
    "slurm",
    "--no-publish",
    "--json",
)


def test_overhead(cluster: Cluster, tree: str, tmp_path: Path) -> None:  # noqa: F811
    farm = Farm(make_project(tmp_path / "project"))
    pack_fast(farm.project)
    settings = farm.project / "ci/farm.yaml"
    slurm = {"folder": str(cluster.shared), "ssh": "login", "cpus": 1, "memory_gb": 2}
    settings.write_text(
        settings.read_text().replace("\nslurm: null", f"\nslurm: {json.dumps(slurm)}")
    )
    start = time.monotonic()
    process = farm.start(*SUBMIT)
    jobs = cluster.shared / "jobs"
    job = wait(
        "the build's job",
        lambda: next((each.parent for each in jobs.glob("*/submitted")), None),
        300,
    )
    shutil.copytree(job, FOLDER / "kept", symlinks=True)
    out, err = process.communicate()
    through = time.monotonic() - start
    assert process.returncode == 0, err
    # By hand: the same folder, under another name and with an empty build tree.
    hand = jobs / "by-hand"
    shutil.copytree(FOLDER / "kept", hand, symlinks=True)
    (hand / "job.sh").write_text((hand / "job.sh").read_text().replace(job.name, hand.name))
    for line in (hand / "places").read_text().splitlines():
        if volume := line.partition(" ")[2]:
            shutil.rmtree(cluster.shared / "volumes" / volume, ignore_errors=True)
            (cluster.shared / "volumes" / volume).mkdir(parents=True)
    cluster.command("chown", "-R", "65534:65534", str(cluster.shared))
    options = [
        "--wait",
        "--uid=65534",
        "--gid=65534",
        f"--chdir={hand}",
        "--output=/dev/null",
        "--export=NIL",
    ]
    start = time.monotonic()
    cluster.command("sbatch", *options, "--cpus-per-task=1", "--mem=1900M", str(hand / "job.sh"))
    alone = time.monotonic() - start
    steps = {step["step"]: step["seconds"] for step in json.loads(out)["steps"]}
    print(
        f"\nthrough the farm {through:.1f} s {steps}, by hand {alone:.1f} s: "
        f"{through - alone:.1f} s more"
    )


if __name__ == "__main__":
    os.execv(
        sys.executable,
        [sys.executable, "-m", "pytest", "-s", "-q", "-p", "no:cacheprovider", __file__],
    )
