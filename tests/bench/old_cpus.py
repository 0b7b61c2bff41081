"""The probe's CPU part on emulated old CPUs: seconds and results, for canary wheels of three levels and a real torch.

Needs a Docker engine (canary is built by the main job), qemu-x86_64, and an index that has torch. The time of the
same probe on this machine's own CPU stands in front; the ratio is what emulation costs.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from farm.smoke.environment import make_environment
from farm.smoke.report import SmokeReport
from farm.smoke.runner import Expectation, run_probe

ROOT = Path(__file__).parents[2]
MODELS = (None, "Nehalem", "SandyBridge", "Haswell")
TORCH = "2.13.0"
LEVELS = ("sse41", "avx", "avx2")


def canary(level: str, folder: Path) -> Path:
    """The interpreter of an environment with the canary wheel of a CPU level, built by the farm."""
    command = [sys.executable, "-m", "farm.cli.main", "--project", str(ROOT), "submit", "--json", "--no-publish"]
    command += ["--variant", f"cpu-{level}-py311", "--package", "canary"]
    built = subprocess.run(command, check=True, stdout=subprocess.PIPE, env={**os.environ, "CI": "true"})
    return environment(folder / level, json.loads(built.stdout)["wheel"])


def environment(folder: Path, *requirements: str) -> Path:
    python = make_environment(folder, Path(sys.executable))
    command = [sys.executable, "-m", "pip", "-q", "--python", str(python), "install", "--disable-pip-version-check"]
    subprocess.run([*command, *requirements], check=True, stdout=sys.stderr)
    return python


def cell(report: SmokeReport, base: float) -> str:
    counts = {status: sum(check.status == status for check in report.checks) for status in ("passed", "failed")}
    capability = next((f" {c.seen}" for c in report.checks if c.name == "CPU capability" and c.seen), "")
    took = f"{report.seconds:.1f} s"
    if base:
        took += f" ({report.seconds / base:.0f} x)"
    said = report.signal or f"{counts['passed']} passed" + (f", {counts['failed']} failed" if counts["failed"] else "")
    return f"{took}\n{said}{capability}"


def main() -> None:
    table = Table(title="the probe's CPU part: seconds (times this machine's), results, torch's own word for the CPU")
    for column in ("wheel", *(model or "this machine" for model in MODELS)):
        table.add_column(column)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [(f"canary cpu-{level}", "canary", canary(level, folder)) for level in LEVELS]
        rows.append((f"torch {TORCH}", "torch", environment(folder / "torch", f"torch=={TORCH}", "numpy")))
        for title, module, python in rows:
            cells, base = [], 0.0
            for model in MODELS:
                report = run_probe(python, module=module, expect=Expectation(), timeout_s=1800, emulate=model)
                cells.append(cell(report, base))
                base = base or report.seconds
            table.add_row(title, *cells)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
