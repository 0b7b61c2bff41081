"""Packages that nobody here wrote, by data alone: the tutorial's every line, one with CUDA, one
that needs torch.

In an empty folder with the farm from a clone, by `uv tool install`. Measured on two cores that
others used too (load 12), with toolchain images at hand: 2.6 minutes for the tutorial, 1.7 for
CUDA, 6 for torch, of which 2.4 compile its one source. Two images are made the first time, 1.4
minutes each.
"""

import base64
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import docker
import pytest

from farm.smoke.environment import make_environment
from tests.e2e.conftest import ROOT, TIMEOUT_S, containers_of
from tests.schemas import valid

PAGE = ROOT / "docs" / "tutorials" / "your-package.md"
RECIPES = Path(__file__).parent / "recipes"
TORCH = "2.13.0"


@dataclass(frozen=True)
class Own:
    """A user's project, and the farm on the PATH as the tutorial's first line installs it."""

    folder: Path
    environ: dict[str, str]

    def run(self, *command: str) -> str:
        """What the command prints.

        Raises:
            AssertionError: It fails.
        """
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def add(self, recipe: str, channel: str) -> None:
        """A recipe folder, and a channel of ci/matrix.yaml."""
        shutil.copytree(RECIPES / recipe, self.folder / "recipes" / recipe)
        with (self.folder / "ci" / "matrix.yaml").open("a") as file:
            file.write(channel)

    def installed(self, pip: str, into: Path) -> Path:
        """A fresh environment with what a printed pip line installs; returns its Python."""
        python = make_environment(into, Path(sys.executable))
        self.run(sys.executable, "-m", "pip", "--python", str(python), *shlex.split(pip)[1:])
        return python


def lines(page: str) -> list[str]:
    """What a reader types, block after block."""
    found = []
    for kind, block in re.findall(r"^```(\w+)\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        if kind == "console":
            found += [line.removeprefix("$ ") for line in block.splitlines()]
    return found


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, client: docker.DockerClient):
    """The project in which every line of the tutorial was typed into one shell, which ends at the
    first that fails.
    """
    empty = tmp_path_factory.mktemp("own")
    tools, home = empty.with_name("own-tools"), empty.with_name("own-home")
    subprocess.run(["git", "clone", "-q", str(ROOT), str(home / "torch-farm")], check=True)
    named = ("FARM_", "PYTHONPATH", "VIRTUAL_ENV", "PIP_TARGET")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(named)} | {
        "CI": "true",
        "PATH": f"{tools / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "UV_TOOL_DIR": str(tools / "tools"),
        "UV_TOOL_BIN_DIR": str(tools / "bin"),
        "HOME": str(home),
        "UV_PYTHON": sys.executable,
    }
    outside = Own(empty, environ)
    script = empty.with_name("own-tutorial.sh")
    script.write_text("set -ex\n" + "\n".join(lines(PAGE.read_text())) + "\n")
    made = Own(empty / "my-wheels", environ)
    try:
        printed = outside.run("bash", str(script))
        assert (tools / "bin" / "farm").is_file()
        (empty / "printed").write_text(printed)
        yield made
    finally:
        for run in made.folder.glob("artifacts/runs/*"):
            for container in containers_of(client, run.name):
                client.containers.get(container).remove(force=True)


def test_every_line_of_the_tutorial(own, tmp_path):
    printed = (own.folder.parent / "printed").read_text()
    pip = [line for line in printed.splitlines() if line.startswith("pip install 'levenshtein @ ")]
    assert len(pip) == 2  # without the smoke test, and with it
    python = own.installed(pip[-1], tmp_path / "env")
    shown = own.run(
        str(python), "-c", "import Levenshtein; print(Levenshtein.distance('kitten', 'sitting'))"
    )
    assert shown == "3\n"
    plan = own.folder.parent / "plan.json"
    plan.write_text(
        own.run("farm", "plan", "--variant", "cpu-avx-py311", "--package", "levenshtein", "--json")
    )
    built = valid("build", own.run("farm", "build", str(plan), "--json"))
    assert [step["step"] for step in built["steps"]][-1] == "build"
    runs = valid("status", own.run("farm", "status", "--json"))
    assert {run["result"] for run in runs} == {"success"}
    valid("status", own.run("farm", "status", runs[0]["id"], "--json"))
    smoke = ("farm", "smoke", "--variant", "cpu-avx-py311", "--package", "levenshtein", "--json")
    assert valid("smoke", own.run(*smoke))["reports"]


@pytest.mark.parametrize(
    ("change", "shown", "steps"),
    [
        (
            ("python3-dev", "python3-dve"),
            r"Unable to locate package python3-dve",
            ["fetch", "render", "image"],
        ),
        (("sha256: 2202", "sha256: 3303"), "has sha256 22021caf", ["fetch"]),
    ],
    ids=["a package that Debian does not have", "a wrong hash"],
)
def test_a_mistake_in_a_recipe(own, change, shown, steps):
    """Which only Debian's lists or the file itself can show: exit code 5, before anything else is
    made.
    """
    name = f"mistaken-{steps[-1]}"
    right = (own.folder / "recipes" / "levenshtein" / "recipe.yaml").read_text()
    (own.folder / "recipes" / name).mkdir()
    (own.folder / "recipes" / name / "recipe.yaml").write_text(right.replace(*change))
    with (own.folder / "ci" / "matrix.yaml").open("a") as file:
        file.write(f"\n  {name}:\n    extends: mine\n    summary: wrong\n    packages: [{name}]\n")
    command = (
        "farm",
        "submit",
        "--variant",
        "cpu-avx-py311",
        "--package",
        name,
        "--no-publish",
        "--json",
    )
    done = subprocess.run(
        command, cwd=own.folder, env=own.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 5, done.stderr
    assert re.search(shown, done.stderr), done.stderr
    newest = json.loads(own.run("farm", "status", "--json", "--limit", "1"))[0]["id"]
    events = json.loads(own.run("farm", "status", newest, "--json"))["events"]
    assert [event["data"]["name"] for event in events if event["kind"] == "step"] == steps


def test_cuda_built_by_setuptools(own, tmp_path):
    own.add(
        "kage-cucounter",
        """
  counters:
    extends: mine
    summary: "CUDA"
    packages: [kage-cucounter]
    gpus: [sm35]
""",
    )
    submit = ("farm", "submit", "--variant", "sm35-avx-py311", "--package", "kage-cucounter")
    own.run(*submit, "--no-smoke")
    result = valid("submit", own.run(*submit, "--json"))
    assert "smoke" in [step["step"] for step in result["steps"] if step["outcome"] == "done"]
    wheel = next(own.folder.glob("artifacts/index/**/kage*.whl"))
    shown = valid("inspect", own.run("farm", "inspect", str(wheel), "--json"))
    assert [code["sass"] for library in shown["libraries"] for code in library["fatbins"]] == [[35]]
    python = own.installed(result["pip"], tmp_path / "env")
    own.run(str(python), "-c", "import cucounter_backend; cucounter_backend.HashTable")


def test_an_extension_that_needs_torch(own, tmp_path):
    """The farm's own torch takes hours: PyTorch's wheel for CPUs is given the farm's version, and
    adopted.
    """
    own.add(
        "torchsort",
        f"""
  with-torch:
    extends: mine
    summary: "Extensions of PyTorch"
    packages: [torchsort]
    torch: "{TORCH}"
    gpus: [cpu]
""",
    )
    submit = ("farm", "submit", "--variant", "cpu-avx2-py311", "--package", "torchsort")
    refused = subprocess.run(
        submit, cwd=own.folder, env=own.environ, capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert f"torchsort is built against torch=={TORCH}+cpu.avx2" in refused.stderr
    own.run("farm", "publish", str(torch_of_the_farm(tmp_path)), "--to", "cpu-avx2")
    own.run(*submit, "--no-smoke")
    result = valid("submit", own.run(*submit, "--json"))
    assert "smoke" in [step["step"] for step in result["steps"] if step["outcome"] == "done"]


def torch_of_the_farm(folder: Path) -> Path:
    """PyTorch's own wheel for CPUs as if the farm had built it: under the farm's version, not
    compressed, for speed.
    """
    command = [
        sys.executable,
        "-m",
        "pip",
        "-q",
        "download",
        "--no-deps",
        "--dest",
        str(folder / "theirs"),
    ]
    done = subprocess.run(
        [*command, f"torch=={TORCH}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    (theirs,) = (folder / "theirs").iterdir()
    old, new = theirs.name.split("-")[1], f"{TORCH}+cpu.avx2"
    ours = folder / f"torch-{new}-cp311-cp311-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(theirs) as source, zipfile.ZipFile(ours, "w") as target:
        rows = []
        for member in source.infolist():
            name = member.filename.replace(f"torch-{old}.dist-info/", f"torch-{new}.dist-info/")
            content = source.read(member)
            if name.endswith(".dist-info/METADATA"):
                content = content.replace(
                    f"\nVersion: {old}\n".encode(), f"\nVersion: {new}\n".encode()
                )
            if name.endswith(".dist-info/RECORD"):
                record = name
                continue
            digest = (
                base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            )
            rows.append(f'"{name}",sha256={digest},{len(content)}')
            target.writestr(name, content)
        target.writestr(record, "\n".join([*rows, f"{record},,"]) + "\n")
    theirs.unlink()
    return ours
