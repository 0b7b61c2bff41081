"""Builds the wheels of a matrix in a bundle's toolchain; runs where `matrix_offline.py` carried it, as `matrix.py`.

Needs Python 3.9, nothing else. What is in OUT/matrix.json is not built again.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def prepare(here: Path, state: Path) -> "dict[str, Any]":
    """The toolchain and the sources in `state`, by the bundle's own program; returns its manifest."""
    sys.path.insert(0, str(here / "bundle/run"))
    from farm_bundle import unpack  # type: ignore[import-not-found]

    manifest: dict[str, Any] = json.loads((here / "bundle/manifest.json").read_text())
    unpack.unpack(manifest, [here / "bundle"], unpack.make_folder(state))
    return manifest


def root_of(state: Path, number: int) -> Path:
    """The root file system of the builds that are the `number`-th of their stages."""
    root = state / (f"root-{number}" if number else "root")
    if not root.exists():
        shutil.rmtree(state / "root/farm/src", ignore_errors=True)  # gigabytes, made anew by every build
        subprocess.run(["cp", "-a", "--one-file-system", state / "root", root], check=True)
    (root / "farm/ccache").mkdir(exist_ok=True)
    return root


def build(
    root: Path, inputs: "dict[str, Path]", job: "dict[str, Any]", share: "tuple[int, int]", out: Path
) -> "dict[str, Any]":
    """One build in an empty tree, with the compiler cache of those before it; `share`: its jobs, and its niceness.

    Leaves the wheel in the folder `out`, as `farm submit --from-bundle` takes it too, and the log beside it.
    """
    farm = root / "farm"
    shutil.rmtree(farm / "src", ignore_errors=True)
    for name, folder in inputs.items():
        shutil.rmtree(farm / name, ignore_errors=True)
        shutil.copytree(folder, farm / name)
    (farm / "home").mkdir(exist_ok=True)
    # The bundle's program, which holds `enter`.
    environment = {**job["environment"], "FARM_JOBS": str(share[0]), "HOME": "/farm/home", "PYTHONPATH": sys.path[0]}
    command = ["nice", "-n", str(share[1]), sys.executable, "-m", "farm.base.processes.enter"]
    places = [(farm, "farm"), (root / "tmp", "tmp"), (root.with_name("root") / "farm/ccache", "farm/ccache")]
    command += [word for folder, place in places for word in ("--bind", str(folder), place)]
    command += [str(root), "env", "-u", "PYTHONPATH", *job["command"]]
    log = out.with_suffix(".log")
    begun = time.monotonic()
    with log.open("wb") as stream:
        process = subprocess.Popen(command, env=environment, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)  # of this build alone: others run beside it
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"exit code {process.returncode}: see {log}")
    from farm_bundle import result

    plan = json.loads((inputs["job"] / "plan.json").read_text())["digest"]
    result.write_pieces({"plan": plan}, farm / "out", out)
    (made,) = (farm / "out/wheel").glob("*.whl")
    wheel = Path(shutil.move(str(made), str(out / made.name)))
    size, digest = wheel.stat().st_size, hashlib.sha256(wheel.read_bytes()).hexdigest()
    cache = farm / "out/cache.json"
    return {
        "cpu_s": round(used.ru_utime + used.ru_stime, 1),
        "wall_s": round(time.monotonic() - begun, 1),
        "wheel": wheel.name,
        "bytes": size,
        "sha256": digest,
        "cache": json.loads(cache.read_text())["rows"] if cache.exists() else [],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compiles at a time, a build")
    parser.add_argument("--out", type=Path, required=True, help="matrix.json, the logs and the wheels")
    parser.add_argument("--state", type=Path, default=Path("farm-matrix"), help="toolchain and trees")
    args = parser.parse_args()
    here = Path(__file__).resolve().parent
    manifest = prepare(here, args.state)
    args.out.mkdir(parents=True, exist_ok=True)
    results = args.out / "matrix.json"
    rows = json.loads(results.read_text()) if results.exists() else []

    def one(number: int, root: Path, name: str) -> None:
        inputs = {"source": args.state / "source", "job": here / "jobs" / name}
        # Each of a stage goes before those after it, which take what it leaves: it alone links and packs for minutes.
        row = build(root, inputs, manifest["job"], (args.jobs, min(19, 15 * number)), args.out / name)
        rows.append({"name": name, **row})
        results.write_text(json.dumps(rows, indent=1))
        print(f"{name}: {row['cpu_s']:.0f} s of CPU time in {row['wall_s']:.0f} s", flush=True)

    for stage in json.loads((here / "stages.json").read_text()):
        left = [name for name in stage if name not in [row["name"] for row in rows]]
        roots = [root_of(args.state, number) for number in range(len(left))]
        with ThreadPoolExecutor(max(1, len(left))) as pool:
            for done in [pool.submit(one, n, roots[n], name) for n, name in enumerate(left)]:
                done.result()


if __name__ == "__main__":
    main()
