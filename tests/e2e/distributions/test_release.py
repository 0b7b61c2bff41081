"""The steps of the release workflow, run here as GitHub runs them, but for what needs GitHub: what
is made is installed and used outside of the tree, on each Python that this machine has.
"""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path

import docker
import pytest
import yaml

import farm
from tests.pythons import python
from tools.release import metadata_problems, section

ROOT = Path(__file__).parents[3]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))
PYTHONS = WORKFLOW["jobs"]["try"]["strategy"]["matrix"]["python"]


def script(job, name):
    (step,) = [step for step in WORKFLOW["jobs"][job]["steps"] if step.get("name") == name]
    return step["run"]


def run(text, folder, ref="main", interpreter=sys.executable, environ=None):
    """A step's script in bash as GitHub starts it; `interpreter` is the Python that the job has set up."""
    programs = folder / ".programs"
    programs.mkdir(exist_ok=True)
    (programs / "python").unlink(missing_ok=True)
    (programs / "python").write_text(f'#!/bin/sh\nexec "{interpreter}" "$@"\n')
    (programs / "python").chmod(0o755)
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "GITHUB_REF_NAME": ref,
            **(environ or {}),
        },
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


def test_an_index_takes_what_both_say_of_themselves(made, tmp_path):
    for file in (made / "dist").iterdir():
        assert list(metadata_problems(file)) == []
    (wheel,) = (made / "dist").glob("*.whl")
    (tmp_path / wheel.name).write_bytes(changed(wheel, b"Requires-Python: >=3.11", b"Dynamic:"))
    command = [sys.executable, "-m", "tools.release", "metadata", str(tmp_path)]
    done = subprocess.run(command, cwd=made, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"release: {wheel.name}: ")
    (tmp_path / wheel.name).write_bytes(changed(wheel, b"text/markdown", b"text/x-rst"))
    assert "would not show README.md" in "".join(metadata_problems(tmp_path / wheel.name))
    (tmp_path / wheel.name).write_bytes(wheel.read_bytes()[:1000])
    assert list(metadata_problems(tmp_path / wheel.name)) == [
        f"{wheel.name}: File is not a zip file"
    ]


def changed(wheel, old, new):
    """A wheel with other words in its METADATA."""
    packed = io.BytesIO()
    with zipfile.ZipFile(wheel) as archive, zipfile.ZipFile(packed, "w") as copy:
        for info in archive.infolist():
            data = archive.read(info)
            if info.filename.endswith("/METADATA"):
                assert old in data
                data = data.replace(old, new)
            copy.writestr(info, data)
    return packed.getvalue()


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


DISTRIBUTIONS = {"3.14": "debian-testing"}
"""Pythons that are tried in a container: no machine has them yet."""


@pytest.mark.parametrize(
    "version", [version for version in PYTHONS if version not in DISTRIBUTIONS]
)
def test_wheel_and_sdist_are_installed_and_used_outside_of_the_tree(made, version):
    done = run(
        script("try", "Install and use wheel and sdist outside of the tree"),
        made,
        interpreter=python(int(version.partition(".")[2])),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("installed: passed") == 2


@pytest.mark.parametrize("version", DISTRIBUTIONS)
def test_wheel_and_sdist_are_installed_and_used_in_a_distribution(client, made, version):
    """As an ordinary user of it."""
    name = DISTRIBUTIONS[version]
    environ = {
        **os.environ,
        "FARM_DISTRIBUTION_TARGETS": "installed FILES=/farm/dist/*",
        "FARM_DISTRIBUTION_USERS": "user",
        "FARM_DISTRIBUTION_DIST": str(made / "dist"),
    }
    done = subprocess.run(
        ["tests/distributions", name],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert done.stdout.startswith(f"{name} as user: passed, Python {version}.")


STAND_IN = "farm/distribution:debian-13"
"""Debian 13 as tests/distributions makes it, in place of the image that GitHub pulls."""
LABEL = "farm.kind=release-test"
DOCKER = """#!/bin/sh
# What the workflow asks of Docker, but for the registry; builds begin with a base that is here.
echo "$@" >>{calls}
case $1 in
build) shift; exec {docker} build --force-rm --network host --build-arg BASE={base} "$@" ;;
login) cat >/dev/null ;;
push) ;;
*) exec {docker} "$@" ;;
esac
"""


@pytest.fixture
def base(client, tmp_path):
    """The base image with what pip needs to know of this machine's network."""
    command = ["tests/distributions", "debian-13"]
    environ = {**os.environ, "FARM_DISTRIBUTION_TARGETS": "help", "FARM_DISTRIBUTION_USERS": "user"}
    subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, check=True, timeout=900)
    lines = [f"FROM {STAND_IN}", f"LABEL {LABEL}", "RUN userdel --remove user"]
    for place in ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt"):
        if Path(place).is_file():
            shutil.copy(place, tmp_path)
            lines.append(f"COPY {Path(place).name} {place}")
    lines.append("ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt")
    (tmp_path / "Dockerfile").write_text("\n".join(lines) + "\n")
    image, _ = client.images.build(path=str(tmp_path), forcerm=True)
    yield image.id
    # Also what a failed build left: newest first, since an image goes after those made from it.
    for left in client.images.list(all=True, filters={"label": LABEL}):
        with suppress(docker.errors.NotFound, docker.errors.APIError):
            client.images.remove(left.id)


def test_the_image_of_the_controller_is_built_and_plans_as_an_ordinary_user(
    client, made, base, tmp_path
):
    image = "ghcr.io/somebody/torch-farm/controller:" + farm.__version__
    programs = made / ".programs"
    programs.mkdir(exist_ok=True)
    calls = tmp_path / "calls"
    (programs / "docker").write_text(
        DOCKER.format(calls=calls, docker=shutil.which("docker"), base=base)
    )
    (programs / "docker").chmod(0o755)
    environ = {"GITHUB_REPOSITORY": "Somebody/torch-farm", "GITHUB_ACTOR": "x", "TOKEN": "secret"}
    try:
        text = script("image", "Build and push the controller")
        done = run(text, made, ref=f"v{farm.__version__}", environ=environ)
        assert done.returncode == 0, done.stdout + done.stderr
        assert calls.read_text().splitlines()[-1] == f"push {image}"
        assert f"farm {farm.__version__}" in done.stdout.splitlines()

        project = tmp_path / "project"
        project.mkdir(mode=0o777)
        project.chmod(0o777)  # whatever the umask is
        volumes = {str(project): {"bind": "/project", "mode": "rw"}}

        def said(*command, **options):
            return client.containers.run(
                image, list(command), remove=True, volumes=volumes, **options
            ).decode()

        assert said("-u", entrypoint="id") == "1000\n"
        assert "torch 2.6.0" in said("plan", "--variant", "sm35-avx-py311", network_mode="none")
        assert "next: " in said("init", ".")
        assert (project / "ci" / "matrix.yaml").stat().st_uid == 1000
        assert "hello 0.1.0" in said("plan", "--variant", "cpu-avx-py311", "--package", "hello")
        assert "pip" in said("why", "--official", "--gpu", "GTX 1080 Ti", user="12345")
    finally:
        (programs / "docker").unlink()
        with suppress(docker.errors.ImageNotFound):
            client.images.remove(image, force=True)
