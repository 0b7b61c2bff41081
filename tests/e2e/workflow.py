"""The scripts of the project's workflows, as GitHub's runner starts them: bash, a checkout, a file
for the outputs.
"""

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.conftest import ROOT, TIMEOUT_S, make_project


def scripts(workflow: str, job: str) -> list[str]:
    """What the steps of a job run, in their order."""
    steps = yaml.safe_load((ROOT / ".github" / "workflows" / workflow).read_text())["jobs"][job][
        "steps"
    ]
    return [step["run"] for step in steps if "run" in step]


def checkout(folder: Path, index: Path, before: Mapping[str, Path] | None = None) -> Path:
    """A fresh checkout whose index is `index`, with `before` (name -> folder) copied in, as
    artifacts are.
    """
    made = make_project(folder)
    shutil.copytree(ROOT / "tools", made / "tools")
    farm_yaml = made / "ci" / "farm.yaml"
    farm_yaml.write_text(farm_yaml.read_text().replace("index: artifacts/index", f"index: {index}"))
    for target, source in (before or {}).items():
        shutil.copytree(source, made / target)
    return made


def carry_out(
    workflow: str,
    job: str,
    where: Path,
    *,
    path: Path,
    fails: bool = False,
    environ: Mapping[str, str],
    **env: str,
) -> str:
    """Runs the scripts of a job in a checkout, with the `farm` of the folder `path`; returns what
    they printed.
    """
    outside = {
        name: value for name, value in environ.items() if not name.startswith(("FARM_", "GITHUB_"))
    }
    outside |= {
        "PATH": f"{path}:{outside['PATH']}",
        "CI": "true",
        "RUNNER_TEMP": str(where.parent),
        "GITHUB_OUTPUT": str(where / "outputs"),
        "GITHUB_STEP_SUMMARY": str(where / "summary"),
        **env,
    }
    output = ""
    for script in scripts(workflow, job):
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
            cwd=where,
            env=outside,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        output += done.stdout + done.stderr
    return output


def outputs(where: Path) -> dict[str, Any]:
    """What a job told the jobs after it; every one of ours is JSON."""
    lines = (where / "outputs").read_text().splitlines()
    return {name: json.loads(value) for name, value in (line.split("=", 1) for line in lines)}


def of_entry(entry: Mapping[str, str]) -> dict[str, str]:
    """The environment of a job of the matrix."""
    return {name.upper(): entry[name] for name in ("variant", "package", "platform", "channel")} | {
        "FARM_CUDA": entry["cuda"]
    }


def command(folder: Path, line: str) -> Path:
    """A folder for PATH in which `farm` is this line of a shell script."""
    folder.mkdir(parents=True)
    (folder / "farm").write_text(f"#!/bin/sh\n{line}\n")
    (folder / "farm").chmod(0o755)
    return folder
