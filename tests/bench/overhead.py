"""What the farm costs over the same build by hand: `python tests/bench/overhead.py [--files N]
[--rounds R]`.

Builds the canary with N more sources in one image: by hand (a container that unpacks the source and
runs `python3 -m build` with the plan's environment), and with `farm build PLAN`, in turns. Prints
the walls, their ratio, and the farm's own seconds: what of its wall is not `python3 -m build`.
These do not grow with the build. Needs a Docker engine.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from farm.engines.base import Job  # noqa: E402
from farm.engines.docker import DockerEngine, connect  # noqa: E402
from farm.plan.file import Plan  # noqa: E402
from tests.larger_canary import larger_canary  # noqa: E402

TORCH_BUILD_S = 2.4 * 3600 / 16
"""The CPU wheel of 1.13.1, 2.4 core-hours, on 16 cores: the shortest of the builds that matter."""
BEGIN, END = "farm: step build", "farm: step libraries"


def command(code: Path, project: Path, *arguments: str) -> str:
    environ = {**os.environ, "PYTHONPATH": str(code), "CI": "true"}
    words = [sys.executable, "-m", "farm.cli.main", "--project", str(project), *arguments]
    return subprocess.run(
        words, cwd=code, env=environ, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def build_step(client: Any, known: set[str], found: list[float]) -> None:
    """Seconds between the lines that begin and end `python3 -m build`, as the engine noted them."""
    for _ in range(3000):
        fresh = [
            c
            for c in client.containers.list(filters={"label": "farm.kind=build"})
            if c.id not in known
        ]
        if fresh:
            times = {}
            for line in fresh[0].logs(stream=True, follow=True, timestamps=True):
                stamp, _, text = line.decode(errors="replace").strip().partition(" ")
                times[text] = stamp
            begin, end = (datetime.fromisoformat(times[name]) for name in (BEGIN, END))
            found.append((end - begin).total_seconds())
            return
        time.sleep(0.1)


def by_farm(code: Path, project: Path, plan: Path) -> tuple[float, float]:
    """(wall of the command, seconds of `python3 -m build` in it)."""
    client, found = connect(), []
    known = {c.id for c in client.containers.list(filters={"label": "farm.kind=build"})}
    watcher = threading.Thread(target=build_step, args=(client, known, found))
    watcher.start()
    start = time.perf_counter()
    command(code, project, "build", str(plan), "--json")
    wall = time.perf_counter() - start
    watcher.join()
    return wall, found[0]


def by_hand(plan: Plan, image: str, source: Path) -> float:
    """Wall of the container."""
    engine = DockerEngine(connect())
    steps = (
        "mkdir -p /farm/src && cp -r /farm/source/. /farm/src && cd /farm/src && mkdir -p "
        "/farm/out && "
    )
    job = Job(
        name="by-hand",
        image=image,
        command=(
            "bash",
            "-c",
            steps + "python3 -m build --wheel --no-isolation -x --outdir /farm/out .",
        ),
        inputs={"/farm/source": source},
        output="/farm/out",
        environment={**plan.env, "MAX_JOBS": str(int(engine.capacity().cpus))},
        limits=engine.capacity(),
        timeout_s=3600,
        labels={"farm.bench": "overhead"},
    )
    start = time.perf_counter()
    handle = engine.submit(job)
    try:
        for _ in engine.logs(handle):
            pass
        wall = time.perf_counter() - start
        seen = engine.observe(handle)
        if seen.exit_code:
            raise SystemExit(
                "by hand: exit code "
                f"{seen.exit_code}\n{b''.join(engine.logs(handle)).decode()[-2000:]}"
            )
    finally:
        engine.release(handle)
    return wall


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="farm-overhead-") as name:
        code, project = Path(name, "code"), Path(name, "project")
        larger_canary(code, args.files, ccache=False)
        for part in ("ci", "dockerfiles"):
            shutil.copytree(ROOT / part, project / part)
        path = Path(name, "plan.json")
        path.write_text(
            command(
                code, project, "plan", "--variant", "cpu-avx-py311", "--package", "canary", "--json"
            )
        )
        first = json.loads(command(code, project, "build", str(path), "--json"))  # makes the image
        rendered = json.loads(command(code, project, "status", "--json"))[0]["id"]
        image = image_of(project, rendered, first)
        plan, source = Plan.read(path), code / "farm/recipes/canary/src"
        rows = []
        for _ in range(args.rounds):
            hand = by_hand(plan, image, source)
            wall, inside = by_farm(code, project, path)
            rows.append((hand, wall, inside, wall - inside))
    table = Table(title=f"the canary with {args.files} more sources; seconds")
    for column in (
        "round",
        "by hand",
        "farm",
        "farm/by hand",
        "of it python3 -m build",
        "the farm's own",
    ):
        table.add_column(column, justify="right")
    for number, (hand, wall, inside, own) in enumerate(rows, 1):
        table.add_row(
            str(number),
            f"{hand:.1f}",
            f"{wall:.1f}",
            f"{wall / hand:.3f}",
            f"{inside:.1f}",
            f"{own:.2f}",
        )
    console = Console(width=100)
    console.print(table)
    ratio = statistics.median(wall / hand for hand, wall, _, _ in rows)
    own = statistics.median(own for *_, own in rows)
    console.print(
        f"median ratio {ratio:.3f}; the farm's own {own:.2f} s, the same for a longer build:",
        highlight=False,
    )
    console.print(
        f"{own / TORCH_BUILD_S:.2%} of PyTorch's {TORCH_BUILD_S:.0f} s on 16 cores (goal: 1 %)",
        highlight=False,
    )


def image_of(project: Path, run: str, first: dict[str, Any]) -> str:
    """The toolchain image that the first build used."""
    (step,) = [step for step in first["steps"] if step["step"] == "image"]
    return str(step["result"]).partition(",")[0]


if __name__ == "__main__":
    main()
