"""Compile work for a matrix with a shared compiler cache, against separate builds: a fixed subset of PyTorch 1.13.1.

    python tests/bench/cache_matrix.py --image TOOLCHAIN --sources CACHE --python-include DIR [--cpp N] [--cuda M]

2 SMs (sm35, sm37) x 2 CPU levels (avx, avx2) x 2 Pythons, and one build without CUDA. Configures each as the farm does,
compiles N C++ and M CUDA objects, evenly spread over the build, for each of the eight variants, and then what it has of
them for the ninth, at the same path through one empty ccache. Some of the hits are compiled again without the cache:
the objects must have the same sha256, but for the process id that nvcc writes into some names. Needs a Docker engine,
the toolchain image of the plan `--channel debian-1.13.1 --variant sm35-avx-py311` (used for the ninth too), a folder
for source archives, and the headers of a second Python (the image has one; its compiler is used for both). With
--jobs, each job has its share of the objects, a container and a cache. Seconds are CPU time, user and system.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from farm.engines.base import Capacity, Job
from farm.engines.docker import DockerEngine, connect
from farm.plan.build import resolve
from farm.plan.matrix import load_matrix
from farm.plan.render import render
from farm.plan.selectors import Selectors
from farm.plan.variant import Variant
from farm.run.sources import gather

ROOT = Path(__file__).parents[2]
SMS, CPUS, PYTHONS = ("sm35", "sm37"), ("avx", "avx2"), ("py311", "py310")
WITHOUT_CUDA = "cpu-avx"
SECOND = "/farm/python-include"
PROJECTED = "main"
TIMEOUT_S = 4 * 3600


def variants() -> list[dict[str, str]]:
    """The eight, and one without CUDA; the Python changes after SM and CPU, so that the first four configure."""
    eight = [
        {
            "name": f"{sm}-{cpu}-{python}",
            "configuration": f"{sm}-{cpu}",
            "python_include": "/usr/include/python3.11" if python == "py311" else SECOND,
        }
        for python in PYTHONS
        for cpu in CPUS
        for sm in SMS
    ]
    last = {"name": f"{WITHOUT_CUDA}-py311", "configuration": WITHOUT_CUDA, "without": "cuda"}
    return [*eight, last | {"python_include": "/usr/include/python3.11"}]


def prepare(folder: Path, sources: Path, part: int, args: argparse.Namespace) -> None:
    """Jobs of the configurations, the sources and the settings."""
    for configuration in dict.fromkeys(variant["configuration"] for variant in variants()):
        plan = resolve(ROOT, Selectors(Variant.parse(f"{configuration}-py311"), channel="debian-1.13.1"))
        for name, text in render(ROOT, plan).job.items():
            path = folder / "in" / configuration / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    gather(plan, args.sources, sources, mirror=None, line=print)
    if args.sccache:
        shutil.copy(args.sccache, folder / "in" / "sccache")
    (folder / "in" / "cache_subset.py").write_text((Path(__file__).parent / "cache_subset.py").read_text())
    environment = {"CCACHE_DIR": "/farm/ccache", "CCACHE_NOHASHDIR": "1", "CCACHE_COMPILERCHECK": "content"}
    environment |= {"SCCACHE_DIR": "/farm/ccache", "SCCACHE_IDLE_TIMEOUT": "0"}
    settings = {"cpp": args.cpp, "cuda": args.cuda, "minutes": args.minutes, "proofs": 3, "proof_every": 4}
    settings |= {"variants": variants(), "environment": environment, "part": [part, args.jobs]}
    (folder / "in" / "settings.json").write_text(json.dumps(settings))


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """What all jobs found, together."""
    with ThreadPoolExecutor(args.jobs) as pool:
        parts = list(pool.map(lambda part: run(part, args), range(args.jobs)))
    found = parts[0]
    for part in parts[1:]:
        found["rows"] += part["rows"]
        found["proofs"] += part["proofs"]
        found["ended"] += f"; {part['ended']}"
    return found


def run(part: int, args: argparse.Namespace) -> dict[str, Any]:
    engine = DockerEngine(connect(), cpus=args.cpus, memory=8 << 30)
    with tempfile.TemporaryDirectory(prefix="cache-matrix-") as name:
        folder = Path(name)
        (folder / "in").mkdir()
        prepare(folder, folder / "source", part, args)
        job = Job(
            name=f"cache-matrix-{part}",
            image=args.image,
            command=("nice", "-n", "10", "python3", "/farm/in/cache_subset.py", "/farm/in/settings.json"),
            inputs={"/farm/in": folder / "in", "/farm/source": folder / "source", SECOND: args.python_include},
            output="/farm/out",
            environment={"FARM_JOBS": "1"},
            limits=Capacity(cpus=args.cpus, memory=8 << 30),
            timeout_s=TIMEOUT_S,
            labels={"farm.bench": f"cache-matrix-{part}"},
        )
        handle = engine.submit(job)
        try:
            for piece in engine.logs(handle):
                sys.stdout.write(piece.decode(errors="replace"))
                sys.stdout.flush()
            seen = engine.observe(handle)
            engine.collect(handle, folder / "out", 1 << 30)
        finally:
            engine.release(handle)
        if seen.exit_code:
            logs = "\n".join(
                path.read_text()[-2000:] for path in sorted((folder / "out").rglob("configure-*.log"))[-1:]
            )
            raise SystemExit(f"exit code {seen.exit_code}: {seen.why}\n{logs}")
        found: dict[str, Any] = json.loads(next((folder / "out").rglob("results.json")).read_text())
    return found


def axes(rows: list[dict[str, Any]]) -> frozenset[str]:
    """What has an object compiled again: the variant that differs from the first in this axis alone was a miss."""
    missed = {tuple(row["variant"].split("-")): row["result"] == "miss" for row in rows}
    first = tuple(rows[0]["variant"].split("-"))
    others = {"sm": SMS[1], "cpu": CPUS[1], "python": PYTHONS[1]}
    changed = {axis: (*first[:i], other, *first[i + 1 :]) for i, (axis, other) in enumerate(others.items())}
    changed["cuda or none"] = (*WITHOUT_CUDA.split("-"), first[2])
    return frozenset(axis for axis, key in changed.items() if missed.get(key))


def is_without_cuda(row: dict[str, Any]) -> bool:
    return bool(row["variant"].startswith(WITHOUT_CUDA))


def report(found: dict[str, Any], console: Console) -> None:
    by_object = defaultdict(list)
    for row in found["rows"]:
        by_object[row["object"]].append(row)
    if incomplete := [name for name, rows in by_object.items() if len(rows) < 8]:
        console.print(f"left out, not compiled for all: {', '.join(incomplete)}")
    by_object = {name: rows for name, rows in by_object.items() if len(rows) >= 8}
    groups = defaultdict(list)
    for rows in by_object.values():
        groups[rows[0]["group"]].append(rows)
    table = Table(title="8 variants: 2 SMs x 2 CPU levels x 2 Pythons")
    for column in (
        "objects",
        "of",
        "s each",
        "separate, s",
        "shared, s",
        "shared/separate",
        "compiled of 8",
        "compiled again for another",
    ):
        table.add_column(column, justify="left" if column == "objects" else "right")
    total_naive = total_shared = scaled_naive = scaled_shared = 0.0
    for name, objects in sorted(groups.items()):
        naive = shared = 0.0
        compiled = []
        for rows in ([row for row in each if not is_without_cuda(row)] for each in objects):
            misses = [row["seconds"] for row in rows if row["result"] == "miss"]
            naive += len(rows) * sum(misses) / len(misses)
            shared += sum(row["seconds"] for row in rows)
            compiled.append(len(misses))
        scale = found["whole"][name] / len(objects)
        total_naive, total_shared = total_naive + naive, total_shared + shared
        scaled_naive, scaled_shared = scaled_naive + naive * scale, scaled_shared + shared * scale
        depends = sorted({" or ".join(sorted(axes(rows))) for rows in objects})
        table.add_row(
            f"{name}: {len(objects)}", str(found["whole"][name]), f"{naive / len(objects) / 8:.1f}", f"{naive:.0f}",
            f"{shared:.0f}", f"{shared / naive:.1%}", f"{min(compiled)} to {max(compiled)}", ", ".join(depends),
        )  # fmt: skip
    table.add_row(
        "all measured", "", "", f"{total_naive:.0f}", f"{total_shared:.0f}", f"{total_shared / total_naive:.1%}"
    )
    console.print(table)
    text = f"Weighted by the whole build's number of objects: {scaled_shared / scaled_naive:.1%} of separate builds"
    console.print(f"{text} ({scaled_naive / 3600:.1f} core-hours for eight). {found['ended']}.", highlight=False)
    ninth = [row for rows in by_object.values() for row in rows if is_without_cuda(row)]
    hits = sum(row["result"] == "hit" for row in ninth)
    console.print(f"A build without CUDA has {len(ninth)} of the objects, and finds {hits} in the cache.")
    same = sum(proof["same"] for proof in found["proofs"])
    console.print(f"Objects from the cache, compiled again without it: {same} of {len(found['proofs'])} the same.")
    for proof in found["proofs"]:
        if not proof["same"]:
            console.print(f"  differs: {proof['object']}")
    project(groups, found["whole"], console)


def project(groups: dict[str, list[list[dict[str, Any]]]], whole: dict[str, int], console: Console) -> None:
    """The channel's wheels of torch for Linux, with the measured seconds: one compile for what an object depends on.

    Builds for ARM and for x86-64 share nothing here; those with and without CUDA what was seen to be shared.
    """
    builds = load_matrix(ROOT).channel(PROJECTED).builds
    rows = [build for build in builds if build.package == "torch" and build.platform == "linux"]
    naive = shared = 0.0
    for name, objects in groups.items():
        for sample in objects:
            misses = [row["seconds"] for row in sample if row["result"] == "miss"]
            hits = [row["seconds"] for row in sample if row["result"] == "hit"]
            seconds = sum(misses) / len(misses) * whole[name] / len(objects)
            hit = (sum(hits) / len(hits) if hits else 0.0) * whole[name] / len(objects)
            depends, keys, count = axes(sample), set(), 0
            for entry in rows:
                variant = entry.variant
                if not variant.sms and name in ("device", "cuda host"):
                    continue
                arm = variant.cpu.startswith("arm")
                parts = {"sm": variant.gpu, "cpu": variant.cpu, "python": variant.python}
                parts["cuda or none"] = str(bool(variant.sms))
                keys.add((arm, *(parts[axis] for axis in sorted(depends))))
                count += 1
            naive += count * seconds
            shared += len(keys) * seconds + (count - len(keys)) * hit
    console.print(f"Projected to the {len(rows)} wheels of torch for Linux in channel {PROJECTED}:", highlight=False)
    text = f"{shared / naive:.1%} of separate builds"
    console.print(f"{text}, {shared / 3600:.0f} of {naive / 3600:.0f} core-hours.", highlight=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--image", help="the toolchain image: `docker images farm/toolchain`")
    parser.add_argument(
        "--sources", type=Path, default=ROOT / "artifacts" / "sources", help="archives, as the farm keeps them"
    )
    parser.add_argument("--python-include", type=Path, help="the headers of Python 3.10: .../include/python3.10")
    parser.add_argument("--cpp", type=int, default=200, help="C++ objects")
    parser.add_argument("--cuda", type=int, default=25, help="CUDA objects")
    parser.add_argument("--minutes", type=float, default=600, help="no further object is begun after this")
    parser.add_argument("--cpus", type=float, default=1, help="of each job")
    parser.add_argument("--sccache", type=Path, help="this program in place of ccache")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--results", type=Path, help="where the measured rows go; read instead of measured if it is there"
    )
    args = parser.parse_args()
    if args.results and args.results.exists():
        found = json.loads(args.results.read_text())
    else:
        found = measure(args)
        if args.results:
            args.results.write_text(json.dumps(found, indent=1))
    report(found, Console(width=140))


if __name__ == "__main__":
    main()
