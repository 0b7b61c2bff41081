"""Builds one wheel after the other in a bundle's toolchain; runs where `matrix_offline.py` carried it, as `matrix.py`.

Needs root and Python 3.9, nothing else. What is in OUT/matrix.json is not built again.
"""

import argparse
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def prepare(here: Path, state: Path) -> "dict[str, Any]":
    """The toolchain and the sources in `state`, by the bundle's own program; returns its manifest."""
    subprocess.run([sys.executable, here / "bundle/run", "--state", state, "--check"], check=True)
    manifest: dict[str, Any] = json.loads((here / "bundle/manifest.json").read_text())
    return manifest


def build(root: Path, inputs: "dict[str, Path]", job: "dict[str, Any]", jobs: int, log: Path) -> "dict[str, Any]":
    """One build in an empty tree, with the compiler cache of those before it."""
    farm = root / "farm"
    shutil.rmtree(farm / "src", ignore_errors=True)
    for name, folder in inputs.items():
        shutil.rmtree(farm / name, ignore_errors=True)
        shutil.copytree(folder, farm / name)
    (farm / "home").mkdir(exist_ok=True)
    environment = {**job["environment"], "FARM_JOBS": str(jobs), "HOME": "/farm/home"}
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with log.open("wb") as stream:
        command = ["chroot", str(root), *job["command"]]
        done = subprocess.run(
            command, env=environment, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL, check=False
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"exit code {done.returncode}: see {log}")
    (wheel,) = (farm / "out/wheel").glob("*.whl")
    cache = farm / "out/cache.json"
    return {
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "wall_s": round(time.monotonic() - begun, 1),
        "wheel": wheel.name,
        "bytes": wheel.stat().st_size,
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "cache": json.loads(cache.read_text())["rows"] if cache.exists() else [],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compiles at a time")
    parser.add_argument("--out", type=Path, required=True, help="matrix.json and the logs")
    parser.add_argument("--state", type=Path, default=Path("/var/tmp/farm-matrix"), help="toolchain and trees")
    args = parser.parse_args()
    here, root = Path(__file__).resolve().parent, args.state / "root"
    manifest = prepare(here, args.state)
    args.out.mkdir(parents=True, exist_ok=True)
    results = args.out / "matrix.json"
    rows = json.loads(results.read_text()) if results.exists() else []
    mount = not (root / "proc/self").exists()
    if mount:
        subprocess.run(["mount", "-t", "proc", "proc", root / "proc"], check=True)
    try:
        for name in json.loads((here / "builds.json").read_text()):
            if name in [row["name"] for row in rows]:
                continue
            inputs = {"source": args.state / "source", "job": here / "jobs" / name}
            row = build(root, inputs, manifest["job"], args.jobs, args.out / f"{name}.log")
            rows.append({"name": name, **row})
            results.write_text(json.dumps(rows, indent=1))
            print(f"{name}: {row['cpu_s']:.0f} s of CPU time in {row['wall_s']:.0f} s", flush=True)
    finally:
        if mount:
            subprocess.run(["umount", root / "proc"], check=True)


if __name__ == "__main__":
    main()
