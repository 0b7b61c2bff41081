"""The steps of the release workflow, run here as GitHub runs them, but for what needs GitHub: what
is made is installed and used outside of the tree, on each Python that this machine has.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

import farm
from tools.release import section

ROOT = Path(__file__).parents[3]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))
PYTHONS = WORKFLOW["jobs"]["try"]["strategy"]["matrix"]["python"]


def script(job, name):
    (step,) = [step for step in WORKFLOW["jobs"][job]["steps"] if step.get("name") == name]
    return step["run"]


def run(text, folder, ref="main", python=sys.executable):
    """A step's script in bash as GitHub starts it; `python` is the one that the job has set up."""
    programs = folder / ".programs"
    programs.mkdir(exist_ok=True)
    (programs / "python").unlink(missing_ok=True)
    (programs / "python").write_text(f'#!/bin/sh\nexec "{python}" "$@"\n')
    (programs / "python").chmod(0o755)
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text],
        cwd=folder,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "GITHUB_REF_NAME": ref},
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """The tracked files and no others, with the environment of this checkout."""
    folder = tmp_path_factory.mktemp("checkout")
    command = ["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    return folder


@pytest.fixture(scope="module")
def made(checkout):
    done = run(script("make", "Make sdist, wheel, notes and list of parts"), checkout)
    assert done.returncode == 0, done.stderr
    return checkout


def test_a_branch_is_ready_and_a_tag_needs_its_version_and_a_date(checkout):
    ready = script("make", "Is it ready")
    assert run(ready, checkout).returncode == 0
    done = run(ready, checkout, "v99.0.0")
    assert done.returncode == 2
    assert f"the tag is v99.0.0, farm/__init__.py says {farm.__version__}" in done.stderr
    changelog = checkout / "CHANGELOG.md"
    text = changelog.read_text()
    changelog.write_text(re.sub(r"^## (\S+), .*$", r"## \1, 2026-12-01", text, flags=re.MULTILINE))
    assert run(ready, checkout, f"v{farm.__version__}").returncode == 0
    changelog.write_text(text.replace(f"## {farm.__version__}, ", f"## {farm.__version__}, not "))
    done = run(ready, checkout, f"v{farm.__version__}")
    assert done.returncode == 2
    assert "in place of a date" in done.stderr
    changelog.write_text(text)


def test_sdist_and_wheel_have_the_same_files_and_the_metadata_of_this_version(made):
    (wheel,) = (made / "dist").glob("*.whl")
    (sdist,) = (made / "dist").glob("*.tar.gz")
    assert wheel.name == f"torch_farm-{farm.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    for path in made.glob("farm/**/*.py"):
        name = path.relative_to(made).as_posix()
        assert name in names
        assert name in inside
    assert {"farm/_shipped/ci/matrix.yaml", "farm/catalog/torch.yaml"} <= names
    assert {"CHANGELOG.md", "LICENSE", "requirements.lock", "docs/index.md"} <= inside


def test_the_notes_are_the_changelogs_section(made):
    _, text = section((ROOT / "CHANGELOG.md").read_text(), farm.__version__)
    assert (made / "notes.md").read_text() == text
    assert text.startswith("The first release")


def test_the_list_of_parts_has_every_locked_dependency_with_its_hashes(made):
    document = json.loads((made / "sbom.cdx.json").read_text())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    lock = (ROOT / "requirements.lock").read_text()
    locked = re.findall(r"^([a-z0-9._-]+)(?:\[\S*\])?==(\S+)", lock, re.MULTILINE)
    assert [(part["name"], part["version"]) for part in document["components"]] == locked
    hashes = [
        entry["value"]
        for part in document["components"]
        for entry in part["properties"]
        if entry["name"] == "farm:sha256"
    ]
    assert sorted(hashes) == sorted(re.findall(r"sha256:([0-9a-f]{64})", lock))
    references = {part["bom-ref"] for part in document["components"]}
    assert set(document["dependencies"][0]["dependsOn"]) < references
    assert "pkg:pypi/pydantic@" in " ".join(document["dependencies"][0]["dependsOn"])


def interpreter(version):
    versions = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))
    candidates = (*versions, shutil.which(f"python{version}"))
    for candidate in candidates:
        if candidate and subprocess.run([candidate, "-V"], check=False).returncode == 0:
            return candidate
    return None


@pytest.mark.parametrize("version", PYTHONS)
def test_wheel_and_sdist_are_installed_and_used_outside_of_the_tree(made, version):
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    done = run(
        script("try", "Install and use wheel and sdist outside of the tree"), made, python=python
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("installed: passed") == 2
