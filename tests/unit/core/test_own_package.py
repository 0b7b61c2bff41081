"""A package of one's own by data alone: a project of `farm init`, its channels and recipes."""

import argparse
import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from farm.base import resources
from farm.base.errors import InfrastructureError, UsageError
from farm.base.hashes import tree_files
from farm.cli import selection
from farm.cli.main import main
from farm.cli.selection import workspace_of
from farm.machine import doctor
from farm.machine.doctor import GB, HostFacts
from farm.plan.compat.stack import Stack
from farm.plan.materials import build_requires
from farm.plan.matrix import load_matrix
from farm.plan.options import OPTIONS, Choice, Option
from farm.plan.recipe import names, recipe, use_project
from farm.plan.render import render
from farm.plan.request import BuildRequest
from farm.plan.resolve import resolve
from farm.plan.settings import Settings
from farm.plan.variant import Variant
from farm.platforms.facts import facts
from farm.run.needs import published_needs
from farm.run.sources import _pack
from farm.run.workspace import Watcher, Workspace, open_journal
from tests.faults.disk import full_at
from tests.schemas import valid

CASES = yaml.safe_load(Path(__file__).with_name("own_package.yaml").read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def _other_tests_see_the_farms_own_recipes(tmp_path):
    yield
    use_project(tmp_path / "none")


@pytest.fixture
def own(tmp_path, capsys):
    folder = tmp_path / "own"
    assert main(["init", str(folder)]) == 0
    capsys.readouterr()
    return folder


def plan_of(project, variant="cpu-avx-py311", package="hello", **options):
    choices = {name: Choice(value, "test") for name, value in options.items()}
    return resolve(project, BuildRequest(Variant.parse(variant), package, options=choices))


RECIPE = "recipes/hello/recipe.yaml"


def edit(own, *changes, file=RECIPE, more=""):
    """Changes the example's recipe, or another file of the project, as its user would; `more` comes
    at its end.
    """
    text = (own / file).read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (own / file).write_text(text + more)
    use_project(own.parent)


def tree(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(
    ("there", "make", "message"), CASES["init_writes_nothing_where_something_is_in_the_way"]
)
def test_init_writes_nothing_if_a_file_is_in_the_way(tmp_path, capsys, there, make, message):
    own = tmp_path / "own"
    path = own / there
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine") if make == "file" else path.symlink_to(tmp_path / "elsewhere")
    before = tree(tmp_path)
    assert main(["init", str(own)]) == 2
    assert message.format(own=own) + ": nothing was written" in capsys.readouterr().err
    assert tree(tmp_path) == before


def test_init_in_a_repository_keeps_its_readme(tmp_path):
    (tmp_path / "README.md").write_text("mine")
    assert main(["init", str(tmp_path)]) == 0
    assert (tmp_path / "README.md").read_text() == "mine"
    assert (tmp_path / "ci" / "matrix.yaml").is_file()


def test_a_failed_init_removes_what_it_wrote(tmp_path, monkeypatch, capsys):
    own = tmp_path / "own"
    (own / "ci").mkdir(parents=True)
    write, written = Path.write_bytes, []

    def full(path, data):
        written.append(path.name)
        if len(written) == 4:
            write(path, b"h")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    assert main(["init", str(own)]) == 9
    assert capsys.readouterr().err == f"farm: {own}/ci/{written[-1]}: No space left on device\n"
    assert tree(tmp_path) == ["own", "own/ci"]
    assert main(["init", str(tmp_path / "new" / "er")]) == 0  # the fifth and later are written


@pytest.mark.parametrize("name", ["my wheels", "a;b", "-x", "it's"])
def test_the_next_line_of_init_can_be_typed(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    assert main(["init", f"./{name}"]) == 0
    typed = capsys.readouterr().out.splitlines()[-1].removeprefix("next: ").split(" && ")[0]
    shown = subprocess.run(
        ["sh", "-c", f"{typed} && pwd"], capture_output=True, text=True, check=False
    )
    assert shown.stdout == f"{tmp_path / name}\n"


def test_the_example_builds_and_torch_comes_from_the_farms_channels(own):
    matrix = load_matrix(own)
    assert next(iter(matrix.channels)) == "mine"
    assert "kepler-2.0.1" in matrix.channels
    assert plan_of(own).version == "0.1.0+cpu.avx"
    assert plan_of(own, "sm35-avx-py311", "torch").channel == matrix.default_channel(
        "torch", Variant.parse("sm35-avx-py311"), "linux"
    )
    assert render(own, plan_of(own)).job["build.sh"].startswith("#!/bin/bash\n# Builds hello")


def test_a_package_without_device_code_promises_none(own):
    plan = plan_of(own, "sm35-avx-py311", ptx=True)
    assert (list(plan.verify.sass), list(plan.verify.ptx)) == ([], [])
    assert "--sm" not in render(own, plan).image["Dockerfile"]  # the image has no nvcc to be tried
    edit(own, ("device_code: false", "device_code: true"))
    assert list(plan_of(own).verify.sass) == []
    with pytest.raises(
        UsageError, match=r"recipe\.yaml:7: components: .* sm35-avx-py311: nvcc is missing"
    ):
        plan_of(own, "sm35-avx-py311")
    edit(own, ("components: []", "components: [nvcc, headers, cudart]"))
    plan = plan_of(own, "sm35-avx-py311", ptx=True)
    assert "--sm 35" in render(own, plan).image["Dockerfile"]
    assert (list(plan.verify.sass), list(plan.verify.ptx)) == ([35], [35])


def test_the_projects_recipe_takes_precedence_over_the_farms(own):
    folder = own / "recipes" / "canary"
    folder.mkdir()
    text = (own / "recipes" / "hello" / "recipe.yaml").read_text()
    text = text.replace("package: hello", "package: canary").replace(
        "path: src", "path: ../hello/src"
    )
    (folder / "recipe.yaml").write_text(text.replace(", script: smoke.py", ""))
    use_project(own)
    assert "hello" in names()
    assert recipe("canary").summary == "An example of an extension module"
    use_project(own.parent)
    assert "hello" not in names()
    assert recipe("canary").summary.startswith("C++ and CUDA matmul")


def test_a_recipe_in_place_of_the_farms_may_be_for_less_than_the_farms_channels(own, root):
    """Those channels were not written for it, and it may not have them as a file; the plan judges
    it.
    """
    text = (
        (own / "recipes/hello/recipe.yaml")
        .read_text()
        .replace("package: hello", "package: torch", 1)
    )
    shutil.copytree(own / "recipes/hello", own / "recipes/torch")
    (own / "recipes/torch/recipe.yaml").write_text(text)
    assert "platforms: [linux]" in text
    path = own / "ci/matrix.yaml"
    path.write_text((root / "ci/matrix.yaml").read_text())
    use_project(own)
    assert "windows" in load_matrix(own).channels["kepler-2.0.1"].text.platforms


def test_a_command_about_runs_knows_the_projects_recipes(own):
    """`farm retry` and `farm dispatch` read no matrix: the plans are in the journal."""
    workspace_of(argparse.Namespace(project=own))
    assert recipe("hello").version == "0.1.0"


@pytest.mark.parametrize("folder", ["yaml-c", "rclib"])
def test_a_package_that_is_called_as_pip_calls_it_is_named_by_its_folder(own, folder):
    (own / "recipes" / "hello").rename(own / "recipes" / folder)
    edit(own, ("package: hello", "package: Ruamel.yaml_clib"), file=f"recipes/{folder}/recipe.yaml")
    (own / "recipes" / "broken").mkdir()
    (own / "recipes" / "broken" / "recipe.yaml").write_text(
        "package: ["
    )  # another recipe's mistake is not in the way
    use_project(own)
    with pytest.raises(UsageError, match="unknown package 'ruamel-yaml-clib'") as caught:
        recipe("ruamel-yaml-clib")
    assert caught.value.hint == f"nearest: {folder}"
    edit(own, ("packages: [hello]", "packages: [ruamel.yaml.clib]"), file="ci/matrix.yaml")
    with pytest.raises(UsageError, match=f"'ruamel.yaml.clib'; did you mean '{folder}'"):
        load_matrix(own)


def test_a_version_may_have_an_epoch(own):
    edit(own, ('version: "0.1.0"', 'version: "2!0.1.0"'))
    plan = plan_of(own)
    assert plan.version == "2!0.1.0+cpu.avx"
    assert "export FARM_VERSION='2!0.1.0+cpu.avx'" in render(own, plan).job["build.sh"]


def test_the_projects_own_templates_stand_before_the_farms(own):
    target = own / "dockerfiles" / "linux"
    target.mkdir(parents=True)
    for file in (resources.ROOT / "dockerfiles" / "linux").iterdir():
        (target / file.name).write_text(
            file.read_text() + ("# mine\n" if file.name == "build.sh.j2" else "")
        )
    assert render(own, plan_of(own)).job["build.sh"].endswith("# mine\n")


WHEEL = "{package: Cython, file: cython-3.1.8-py2.py3-none-any.whl, sha256: " + "a" * 64 + "}"


def requiring(own):
    edit(own, more=f"build_requires: [{WHEEL}]\n")


def test_wheels_of_the_python_index_are_installed_for_the_build(own):
    before = plan_of(own)
    assert "pip install" not in render(own, before).job["build.sh"]
    assert "build_requires" not in before.to_json()  # plans without it keep their digests
    requiring(own)
    plan = plan_of(own)
    assert plan.installs == ["cython==3.1.8"]
    assert plan.digest != before.digest
    script = render(own, plan).job["build.sh"]
    assert '--no-index --no-deps --find-links "$FARM_ROOT/needs"' in script
    assert '--target "$FARM_ROOT/needs/site" cython==3.1.8' in script
    assert (
        'export PYTHONPATH="$FARM_ROOT/needs/site" PATH="$FARM_ROOT/needs/site/bin:$PATH"' in script
    )
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_what_is_installed_with_pip_needs_pip_in_the_image(own):
    requiring(own)
    edit(own, ("python3-pip, ", ""))
    with pytest.raises(UsageError, match=r"recipe\.yaml:.*add python3-pip to apt"):
        plan_of(own)


def test_wheels_for_the_build_are_refused_where_nothing_installs_them(own):
    requiring(own)
    use_project(own)
    with pytest.raises(UsageError, match=r"hello/recipe\.yaml: build_requires: .* not on macos"):
        build_requires(
            "hello", recipe("hello"), Stack("hello", Variant.parse("mps-neon-py311"), "macos"), None
        )
    stack = Stack("hello", Variant.parse("cpu-avx-py311"), "linux")
    assert len(build_requires("hello", recipe("hello"), stack, None)) == 1


@pytest.mark.parametrize(
    ("tags", "taken"), CASES["a_wheel_for_the_build_is_for_its_python_and_machine"]
)
def test_a_wheel_for_the_build_is_for_its_python_and_machine(own, tags, taken):
    requiring(own)
    edit(own, ("py2.py3-none-any", tags))
    if taken:
        assert len(plan_of(own).build_requires) == 1
    else:
        with pytest.raises(
            UsageError,
            match=r"recipe\.yaml:18: build_requires\.0\.file: .* is not for Python 3\.11 on linux",
        ):
            plan_of(own)


@pytest.mark.parametrize(
    ("old", "new", "line", "text"),
    CASES["a_mistake_in_a_recipe_is_named_with_its_line_and_nothing_is_written"],
)
def test_a_mistake_in_a_recipe_is_named_with_its_line_and_nothing_is_written(
    own, capsys, old, new, line, text
):
    file = own / RECIPE
    edit(own, (old, new))
    before = tree(own)
    assert (
        main(["--project", str(own), "submit", "--variant", "cpu-avx-py311", "--package", "hello"])
        == 2
    )
    stderr = capsys.readouterr().err
    assert stderr.startswith(f"farm: {file}:{line}: ")
    assert text in stderr
    assert tree(own) == before


def test_a_python_that_the_base_image_lacks_is_had_without_the_base(own):
    edit(own, ("pythons: [py311]", "pythons: [py311, py313]"), file="ci/matrix.yaml")
    with pytest.raises(
        UsageError, match=r"debian-bookworm has py311, not py313.*; without `base` in the channel"
    ):
        plan_of(own, "cpu-avx-py313")
    edit(own, ("    base: debian-bookworm\n", ""), file="ci/matrix.yaml")
    assert [plan_of(own, f"cpu-avx-{python}").base for python in ("py311", "py313")] == [
        "debian-bookworm",
        "debian-trixie",
    ]


def named(own, folder, package, source=None):
    """The example's recipe under another name, in the channel."""
    there, here = own / "recipes" / folder, own / "recipes" / "hello"
    shutil.copytree(here, there)
    text = (here / "recipe.yaml").read_text().replace("package: hello", f"package: {package}")
    (there / "recipe.yaml").write_text(
        text.replace("{kind: path, path: src}", source or "{kind: path, path: src}")
    )
    edit(own, ("packages: [hello]", f"packages: [hello, {folder}]"), file="ci/matrix.yaml")


@pytest.mark.parametrize(
    ("folder", "package"),
    [
        ("levenshtein", "Levenshtein"),
        ("ruamel", "ruamel.yaml.clib"),
        ("_2to", "2to3-x"),
        ("Other", "Other"),
    ],
)
def test_a_distributions_name_may_differ_from_its_folder(own, folder, package):
    if folder.startswith("_"):
        folder = "x" + folder
    named(own, folder, package)
    plan = plan_of(own, package=folder)
    assert (plan.package, plan.recipe, plan.verify.name) == (package, folder, package)
    assert f"# Builds {package} 0.1.0+cpu.avx" in render(own, plan).job["build.sh"]


def needing(own, *needed):
    """The example, whose build imports other packages of the farm."""
    edit(own, more=f"needs: [{', '.join(needed)}]\n")


def test_a_build_may_need_any_package_of_the_farm(own):
    named(own, "base_lib", "Base.Lib")
    edit(own, ('version: "0.1.0"', 'version: "3.1"'), file="recipes/base_lib/recipe.yaml")
    needing(own, "base_lib", "canary")
    plan = plan_of(own, "sm35-avx-py311")
    assert plan.needs == ["Base.Lib==3.1+cu118.sm35.avx", "canary==0.1.0+cu118.sm35.avx"]
    assert "Base.Lib==3.1+cu118.sm35.avx" in render(own, plan).job["build.sh"]
    settings = Settings(artifacts="artifacts", index="artifacts/index")
    with pytest.raises(
        UsageError, match=r"built against Base\.Lib==3\.1.*no such wheel"
    ) as refused:
        published_needs(Workspace(own, settings, Watcher()), plan)
    assert str(refused.value.hint).endswith("--package base_lib --platform linux --channel mine")


def test_what_a_build_needs_may_come_from_another_channel(own):
    needing(own, "torch")
    edit(own, ('cuda: "11.8"', 'cuda: "11.8"\n    torch: "2.6.0"'), file="ci/matrix.yaml")
    plan = plan_of(own)
    assert plan.needs == ["torch==2.6.0+cpu.avx"]
    with pytest.raises(UsageError) as refused:
        published_needs(Workspace(own, Settings(), Watcher()), plan)
    words = str(refused.value.hint).split("farm submit ")[1].split()
    chosen = dict(zip(words[::2], words[1::2], strict=True))
    choices = {"torch": Choice(chosen["--torch"], "test")}
    made = resolve(
        own, BuildRequest(Variant.parse(chosen["--variant"]), chosen["--package"], options=choices)
    )
    assert f"{made.package}=={made.version}" == plan.needs[0]


OFFICIAL = """
    official:
      - {package: torch, file: torch-2.6.0+cpu-cp311-cp311-linux_x86_64.whl, sha256: AA, index: "https://w.example/cpu"}
      - {package: torch, file: torch-2.6.0-cp310-cp310-manylinux1_x86_64.whl, sha256: BB}
      - {package: torch, file: torch-2.6.0+cu118-cp311-cp311-linux_x86_64.whl, sha256: CC}
      - {package: filelock, file: filelock-3.0-py3-none-any.whl, sha256: DD}
"""


@pytest.mark.parametrize(
    ("variant", "digits"),
    CASES["a_package_is_built_against_pytorchs_own_wheel_where_that_knows_the_card"],
)
def test_a_package_is_built_against_pytorchs_own_wheel_where_that_knows_the_card(
    own, capsys, variant, digits
):
    needing(own, "torch")
    file = own / "ci" / "matrix.yaml"
    hashes = re.sub(r"\b([A-D])\1\b", lambda match: 32 * match[0].lower(), OFFICIAL)
    gpus = "    gpus: [cpu, sm35, sm80]"
    text = re.sub(r"^    gpus: .*$", gpus, file.read_text(), count=1, flags=re.MULTILINE)
    file.write_text(
        text.replace('cuda: "11.8"', f'cuda: "11.8"\n    torch: "2.6.0"{hashes.rstrip()}')
    )
    edit(own, more='requires: ["torch=={torch_version}"]\n')
    plan = plan_of(own, variant)
    found = [
        wheel.sha256[0].upper()
        for wheel in plan.build_requires
        if wheel.package != "nvidia-nccl-cu11"
    ]
    assert (found, len(plan.build_requires) - len(found)) == (list(digits), 0 if digits else 1)
    farms = f"torch==2.6.0+{'cpu' if variant.startswith('cpu') else 'cu118.' + variant.split('-')[0]}.avx"
    assert (plan.needs, plan.requires) == (([], ["torch==2.6.0"]) if digits else ([farms], [farms]))
    assert main(["--project", str(own), "plan", "--variant", variant, "--package", "hello"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert (" torch PyTorch's own" in printed) == bool(digits), printed
    first = f" first {farms}: not in the index; about 9.2 CPU hours: farm submit "
    assert (first in printed) == (not digits), printed


@pytest.mark.parametrize(
    ("needed", "fault"), [("heloo", "no recipe for package 'heloo'"), ("hello", "need itself")]
)
def test_an_impossible_requirement_is_named_with_its_file(own, needed, fault):
    needing(own, needed)
    with pytest.raises(UsageError, match=rf"hello/recipe\.yaml:18: needs: .*{fault}"):
        plan_of(own)


@pytest.mark.parametrize(
    ("needed", "first", "circle"),
    [
        (
            {"hello": "one", "one": "two", "two": "hello"},
            "hello",
            "hello needs one, one needs two, two needs hello",
        ),
        ({"hello": "one", "one": "two", "two": "one"}, "one", "one needs two, two needs one"),
    ],
)
def test_a_circle_of_needs_is_named_before_anything_is_built(own, needed, first, circle):
    for name in ("one", "two"):
        named(own, name, name)
        edit(own, (f"[hello, {name}]", "[hello]"), file="ci/matrix.yaml")
    for name, other in needed.items():
        edit(own, file=f"recipes/{name}/recipe.yaml", more=f"needs: [{other}]\n")
    with pytest.raises(UsageError, match=rf"{first}/recipe\.yaml:\d+: needs: a cycle.*: {circle}$"):
        plan_of(own)


def test_the_variants_gpus_stand_in_variables_as_builds_want_them(own):
    wanted = (
        '{A: "{arch_list}", CUDAARCHS: "{cmake_architectures}", NVCC_APPEND_FLAGS: "{gencode}"}'
    )
    edit(own, ('env: {FARM_VERSION: "{version}"}', f"env: {wanted}"))
    env = plan_of(own, "sm35-avx-py311", ptx=True).env
    assert (env["A"], env["CUDAARCHS"]) == ("3.5+PTX", "35-real;35-virtual")
    assert env["NVCC_APPEND_FLAGS"] == (
        "-gencode=arch=compute_35,code=sm_35 -gencode=arch=compute_35,code=compute_35"
    )
    assert plan_of(own).env["CUDAARCHS"] == ""


def test_a_recipe_with_patch_files_has_patch_in_its_image(own):
    before = plan_of(own)
    folder = own / "recipes" / "hello" / "job" / "patches"
    folder.mkdir(parents=True)
    (folder / "one.patch").write_text("--- a/hello.cpp\n+++ b/hello.cpp\n")
    plan = plan_of(own)
    assert set(plan.apt) - set(before.apt) == {"patch"}
    script = render(own, plan).job["build.sh"]
    # The step before it: of several patches, the log says which one does not apply.
    assert "echo source patches/one.patch\n" in script
    assert "\npatches/one.patch)\n    patch --strip=1" in script


@pytest.mark.parametrize("name", ["patches/one.patch", "prepare.sh"])
def test_what_changes_the_source_is_refused_where_nothing_applies_it(own, name):
    for file in ("ci/matrix.yaml", "recipes/hello/recipe.yaml"):
        text = (own / file).read_text().replace("platforms: [linux]", "platforms: [linux, windows]")
        text = text.replace("toolkit: debian", "toolkit: nvidia").replace(
            "    base: debian-bookworm\n", ""
        )
        (own / file).write_text(text)
    wanted = BuildRequest(Variant.parse("cpu-avx-py311"), "hello", "windows")
    assert resolve(own, wanted).platform == "windows"
    file = own / "recipes" / "hello" / "job" / name
    file.parent.mkdir(parents=True)
    file.write_text("x")
    with pytest.raises(
        UsageError, match=f"hello: job/{name}: only builds in Linux images .* not those on windows"
    ):
        resolve(own, wanted)
    assert plan_of(own).platform == "linux"


@pytest.mark.parametrize(
    ("written", "carried"),
    [
        (
            b"--- a/x\r\n+++ b/x\r\n@@ -1 +1 @@\r\n-a\r\n+b\r\n",
            b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n",
        ),
        (b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\r\n+b\r\n", None),  # `diff -u` of files with CRLF
        (b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-caf\xe9\n+caf\xe8\n", None),  # a source in Latin-1
    ],
)
def test_a_patch_file_reaches_the_build_as_it_was_written(own, tmp_path, written, carried):
    folder = own / "recipes" / "hello" / "job" / "patches"
    folder.mkdir(parents=True)
    (folder / "one.patch").write_bytes(written)
    render(own, plan_of(own)).write(tmp_path / "context")
    found = (tmp_path / "context" / "job" / "recipe" / "patches" / "one.patch").read_bytes()
    assert found == (carried or written)


@pytest.mark.skipif(os.name == "nt" or sys.platform == "darwin", reason="names there are text")
def test_a_source_may_have_names_that_are_no_text(own):
    source = own / "recipes" / "hello" / "src"
    before = plan_of(own)
    (source / os.fsdecode(b"caf\xe9.txt")).write_text("x")
    plan = plan_of(own)
    assert plan.source.digest != before.source.digest
    target = own / "source.tar"
    _pack(source, target, print)
    with tarfile.open(target) as archive:
        assert os.fsdecode(b"source/caf\xe9.txt") in archive.getnames()


@pytest.mark.parametrize("fails_at", ["image/Dockerfile", "job/plan.json"])
def test_a_context_that_does_not_fit_leaves_the_folder_as_it_was(
    own, tmp_path, monkeypatch, fails_at
):
    disk = full_at(monkeypatch, fails_at)
    rendered = render(own, plan_of(own))
    rendered.write(tmp_path / "old")
    before = {
        path: path.read_bytes() for path in sorted((tmp_path / "old").rglob("*")) if path.is_file()
    }
    disk.append("full")
    for name in ("old", "new/er"):
        with pytest.raises(
            InfrastructureError, match=re.escape(f"{tmp_path / name / fails_at}: No space left")
        ):
            rendered.write(tmp_path / name)
    assert {
        path: path.read_bytes() for path in sorted(tmp_path.glob("old/**/*")) if path.is_file()
    } == before
    assert {path.name for path in tmp_path.iterdir()} == {"own", "old"}
    assert not list(tmp_path.glob("old/.farm-*"))


@pytest.mark.parametrize("why", ["a folder", "a file", "refused", "interrupted"])
def test_a_context_of_which_a_file_cannot_be_put_in_place_leaves_the_older_one(
    own, tmp_path, monkeypatch, why
):
    dest, replace = tmp_path / "context", Path.replace
    for name in ("image/Dockerfile", "image/scripts/mine", "job/build.sh"):
        (dest / name).parent.mkdir(parents=True, exist_ok=True)
        (dest / name).write_text(f"older {name}")
    if why == "a folder":
        (dest / "job/plan.json").mkdir()
    if why == "a file":
        shutil.rmtree(dest / "job")
        (dest / "job").write_text("mine")

    def refused(path, target):
        if target == dest / "job/plan.json":
            raise (
                PermissionError(errno.EPERM, os.strerror(errno.EPERM))
                if why == "refused"
                else KeyboardInterrupt
            )
        return replace(path, target)

    if why in ("refused", "interrupted"):
        monkeypatch.setattr(Path, "replace", refused)
    before = {path: path.is_file() and path.read_text() for path in dest.rglob("*")}
    expected = {"refused": PermissionError, "interrupted": KeyboardInterrupt}.get(why, UsageError)
    with pytest.raises(expected):
        render(own, plan_of(own)).write(dest)
    assert {path: path.is_file() and path.read_text() for path in dest.rglob("*")} == before


@pytest.mark.parametrize(
    "command",
    [
        ["init", "FOLDER"],
        ["render", "--variant", "cpu-avx-py311", "--package", "hello", "-o", "FOLDER"],
        ["render", "--variant", "cpu-avx-py311", "--package", "hello", "--bundle", "FOLDER"],
    ],
)
def test_an_impossible_folder_is_a_usage_error(own, tmp_path, monkeypatch, capsys, command):
    (tmp_path / "file").write_text("")
    words = [str(tmp_path / "file") if word == "FOLDER" else word for word in command]
    assert main(["--project", str(own), *words]) == 2
    # A folder whose system makes none, as /proc.
    make = Path.mkdir

    def nowhere(path, *args, **kwargs):
        if path.name == "new":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        make(path, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", nowhere)
    if "--bundle" not in command:
        words = [str(tmp_path / "new") if word == "FOLDER" else word for word in command]
        assert main(["--project", str(own), *words]) == 2
        assert f"{tmp_path / 'new'}: cannot be made" in capsys.readouterr().err


def test_a_smoke_test_of_a_wheel_for_a_newer_system_was_not_run(own, tmp_path, capsys):
    wheel = tmp_path / "hello-0.1.0+cpu.avx-cp311-cp311-manylinux_2_99_x86_64.whl"
    wheel.write_bytes(b"")
    wanted = ["--variant", "cpu-avx-py311", "--package", "hello", "--wheel", str(wheel)]
    assert main(["--project", str(own), "smoke", *wanted]) == 4
    stderr = capsys.readouterr().err
    assert "nothing was tested: the wheel is for manylinux_2_99_x86_64, this machine for " in stderr
    assert "test on a system that the wheel is for" in stderr


def test_a_smoke_test_of_what_is_not_published_says_how_to_build_it(own, capsys):
    before = sorted(own.rglob("*"))
    assert (
        main(["--project", str(own), "smoke", "--variant", "cpu-avx-py311", "--package", "hello"])
        == 2
    )
    stderr = capsys.readouterr().err
    assert f"hello 0.1.0+cpu.avx is not published in {own / 'artifacts' / 'index'}" in stderr
    assert (
        "farm submit --variant cpu-avx-py311 --package hello --platform linux --channel mine"
        in stderr
    )
    assert sorted(own.rglob("*")) == before


@pytest.mark.parametrize("spelled", [str, Path.as_uri])
def test_a_smoke_test_takes_an_index_in_a_folder_as_other_commands_do(
    own, tmp_path, capsys, spelled
):
    """pip took the path for a malformed URL, and its failure was the wheel's, exit code 8."""
    words = [
        "smoke",
        "--variant",
        "cpu-avx-py311",
        "--package",
        "hello",
        "--index-url",
        spelled(tmp_path / "index"),
    ]
    assert main(["--project", str(own), *words]) == 2
    assert (
        f"hello 0.1.0+cpu.avx is not published in {tmp_path / 'index'}" in capsys.readouterr().err
    )


def test_the_hint_of_a_smoke_test_names_the_package_as_it_was_asked_for(own, capsys, monkeypatch):
    """A channel may build it by another recipe: `torch-debian-2-6`."""
    named(own, "special", "hello")
    recipes = "packages: [hello]\n    recipes: {hello: special}"
    edit(own, ("packages: [hello, special]", recipes), file="ci/matrix.yaml")
    assert plan_of(own).recipe == "special"
    read: list[object] = []
    monkeypatch.setattr(selection, "from_environment", lambda environ: read.append(environ) or {})
    assert (
        main(["--project", str(own), "smoke", "--variant", "cpu-avx-py311", "--package", "hello"])
        == 2
    )
    command = "farm submit --variant cpu-avx-py311 --package hello --platform linux --channel mine"
    assert command in capsys.readouterr().err
    assert len(read) == 1  # the selectors are those of the plan


@pytest.mark.skipif(os.name == "nt", reason="links need a right there")
@pytest.mark.parametrize("name", ["ci/farm.yaml", "ci/matrix.yaml", "ci/runners.yaml"])
def test_a_dangling_configuration_link_is_reported(own, capsys, name):
    """The farm's defaults in its place would publish elsewhere."""
    (own / name).unlink()
    (own / name).symlink_to(own / "not mounted")
    words = (
        ["runners", "check"]
        if "runners" in name
        else ["plan", "--variant", "cpu-avx-py311", "--package", "hello"]
    )
    assert main(["--project", str(own), *words]) == 2
    assert f"{own / name}: cannot be read: No such file or directory" in capsys.readouterr().err


def test_the_doctor_looks_at_the_projects_own_package(own, capsys):
    main(["--project", str(own), "doctor"])
    assert "to build hello 0.1.0+" in capsys.readouterr().out


COMMIT = "c0ffee" + "0" * 34


def test_a_git_source_is_a_tag_and_its_commit(own):
    source = (
        '{kind: git, url: "https://git.example.org/x.git", tag: "v{version}", commit: '
        f"{COMMIT}}}"
    )
    named(own, "fetched", "fetched", source)
    made = plan_of(own, package="fetched").source
    assert (made.kind, made.tag, made.commit) == ("git", "v0.1.0", COMMIT)


@pytest.mark.parametrize(
    "source",
    [
        f'{{kind: git, url: "https://git.example.org/x.git", tag: v1, commit: {COMMIT}}}',
        "{kind: path, path: src}",
    ],
)
@pytest.mark.parametrize(
    ("platform", "script", "start"),
    [
        ("linux", "build.sh", 'python3 "$FARM_ROOT/job/run_build.py"'),
        ("windows", "build.cmd", '"%FARM_PYTHON%"'),
    ],
)
def test_a_project_in_a_folder_of_its_source_is_built_there(own, source, platform, script, start):
    """And a plan without one is what it was before there was the key."""
    (own / "recipes" / "hello" / "src" / "lib" / "python").mkdir(parents=True)
    for file in ("ci/matrix.yaml", "recipes/hello/recipe.yaml"):
        text = (own / file).read_text().replace("platforms: [linux]", f"platforms: [{platform}]")
        text = text.replace("toolkit: debian", "toolkit: nvidia").replace(
            "    base: debian-bookworm\n", ""
        )
        (own / file).write_text(text.replace("{kind: path, path: src}", source))
    for key, place in ((None, "."), ("lib/python", "lib/python")):
        edit(own, more=f"subdirectory: {key}\n" if key else "")
        plan = resolve(own, BuildRequest(Variant.parse("cpu-avx-py311"), "hello", platform))
        assert json.loads(plan.to_json()).get("subdirectory", "none") == (key or "none")
        (line,) = [
            text.strip()
            for text in render(own, plan).job[script].splitlines()
            if " --no-isolation " in text
        ]
        assert line.startswith(start)
        assert line.removesuffix(" || status=$?").endswith(f" {place}")


def test_a_git_source_without_a_commit_is_refused_with_how_to_find_it(own):
    named(own, "fetched", "fetched", '{kind: git, url: "https://git.example.org/x.git", tag: v1}')
    with pytest.raises(UsageError, match=r"fetched/recipe\.yaml:\d+: source.*git rev-list -n 1"):
        plan_of(own, package="fetched")


def test_the_code_contains_no_package_names(root):
    done = subprocess.run(
        [
            "grep",
            "-rnE",
            r"\"(canary|torchvision|torchaudio)\"",
            "farm",
            "--include=*.py",
            "--exclude-dir=recipes",
        ],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""


class Small:
    """A machine with this much memory and free space, in 10**9 bytes."""

    def __init__(self, memory, free):
        self._memory, self._free = memory, free

    def memory(self):
        return int(self._memory * GB), int(self._memory * GB)

    def free(self, path):  # noqa: ARG002 one disk
        return int(self._free * GB)

    def cores(self):
        return 2


@pytest.mark.parametrize(
    ("package", "memory", "free", "expected"), CASES["doctor_asks_for_what_the_package_needs"]
)
def test_doctor_asks_for_what_the_package_needs(own, package, memory, free, expected):
    plan = plan_of(own, "sm35-avx-py311", package)
    host = HostFacts(
        Small(memory, free), SimpleNamespace(os=SimpleNamespace(platform=facts("linux"))), plan
    )
    found = [*doctor.memory(host), *doctor.disk(host)]
    assert {finding.check: finding.state for finding in found} == expected
    advice = "".join(finding.todo for finding in found)
    assert package == "torch" or "PyTorch" not in advice
    assert "missing" not in expected.values() or f"a build of {package}" in advice


@pytest.mark.parametrize(("gpu", "note"), [("sm35", True), ("cpu", False)])
def test_a_package_without_device_code_is_the_same_for_every_card(own, capsys, gpu, note):
    assert (
        main(["--project", str(own), "plan", "--variant", f"{gpu}-avx-py311", "--package", "hello"])
        == 0
    )
    assert (
        "it has no code for a GPU: cpu-avx-py311 is the same code" in capsys.readouterr().out
    ) == note
    assert main(["--project", str(own), "matrix", "--variant", f"{gpu}-*"]) == 0
    assert (
        "hello has no code for a GPU: its builds are the same code for each"
        in capsys.readouterr().out
    ) == note


def test_the_runners_of_a_project_without_github_are_checked(own, monkeypatch, capsys):
    """As its ci/runners.yaml says: no account at GitHub is needed for that."""
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")  # nobody answers there
    assert main(["--project", str(own), "runners", "check", "--json"]) == 4
    found = valid("runners", capsys.readouterr().out)
    assert "no Docker engine answers" in found["runners"]["local"]["why"]
    assert found["settings_missing"] == []


def test_a_project_that_is_the_package_itself_is_what_git_has_of_it(own, tmp_path):
    """What builds leave there changes no plan; what the user writes does, committed or not."""

    def git(*words):
        # As an ordinary user's, whatever this machine is configured to.
        identity = [
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@example.org",
            "-c",
            "protocol.file.allow=always",
        ]
        subprocess.run(["git", "-C", own, *identity, *words], check=True, capture_output=True)

    edit(own, ("path: src}", "path: ../..}"))
    other = tmp_path / "other"
    other.mkdir()
    for command in (
        ["init", "-q"],
        ["-c", "user.name=a", "-c", "user.email=a@e", "commit", "-q", "--allow-empty", "-m", "x"],
    ):
        subprocess.run(["git", "-C", other, *command], check=True, capture_output=True)
    git("init", "-q")
    (own / ".gitignore").write_text("*.o\n")
    git("submodule", "--quiet", "add", str(other), "third party")
    (own / "third party" / "in submodule.c").write_text("1")
    git("-C", "third party", "add", ".")
    (own / "naïve.c").write_text("1")
    files = {path.relative_to(own).as_posix() for path in tree_files(own)}
    assert {"naïve.c", ".gitignore", "ci/farm.yaml", "third party/in submodule.c"} <= files
    assert not any(name.startswith(".git/") for name in files)
    use_project(own)
    first = plan_of(own)

    open_journal(own, Settings()).close()  # `artifacts/` with all that builds leave
    (own / "artifacts" / "index").mkdir()
    (own / "artifacts" / "index" / "x.whl").write_text("1")
    (own / "left.o").write_text("1")
    assert plan_of(own) == first
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_DIR", str(other / ".git"))  # as within a hook
        assert plan_of(own) == first

    changed = []
    for name in ("naïve.c", "new.c", "third party/in submodule.c"):
        (own / name).write_text("2")
        changed.append(plan_of(own).source.digest)
    assert len({first.source.digest, *changed}) == 4

    (own / ".git" / "HEAD").write_text("damaged")
    with pytest.raises(UsageError, match=r"git cannot list the files of .*not a git repository"):
        plan_of(own)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(tmp_path / "none"))
        with pytest.raises(UsageError, match="is a git checkout, and there is no git"):
            plan_of(own)


def test_values_that_no_plan_can_hold_name_their_recipe_line(own):
    file = own / "recipes" / "hello" / "recipe.yaml"
    lines = file.read_text().splitlines()
    (at,) = (number for number, row in enumerate(lines) if row.startswith("env:"))
    lines[at] = 'env:\n  OPTION: "one\\ttwo"'
    file.write_text("\n".join(lines) + "\n")
    line = next(
        number for number, row in enumerate(file.read_text().splitlines(), 1) if "OPTION" in row
    )
    with pytest.raises(
        UsageError, match=rf"recipe\.yaml:{line}: env\.OPTION: 'one\\ttwo' must match "
    ) as caught:
        plan_of(own)
    assert "docs/tutorials/your-package.md" in caught.value.hint


@pytest.mark.parametrize(
    "name", ["alpha", "zeta"]
)  # before and after `mine`, the default, in the alphabet
def test_a_build_that_the_first_channel_does_not_offer_is_of_the_first_that_does(own, name):
    with (own / "ci" / "matrix.yaml").open("a") as file:
        file.write(f"\n  {name}:\n    extends: mine\n    summary: more\n    gpus: [sm70]\n")
    assert plan_of(own, "sm50-avx-py311").channel == "mine"
    assert plan_of(own, "sm70-avx-py311").channel == name


@pytest.mark.parametrize("name", ["CFLAGS", "CXXFLAGS"])
@pytest.mark.parametrize("key", ["env", "env_platform"])
def test_compiler_flags_of_a_recipe_are_added_to_the_variants(own, name, key):
    line = f'{{{name}: "-O2"}}' if key == "env" else f'{{linux: {{{name}: "-O2"}}}}'
    if key == "env":
        edit(own, ('env: {FARM_VERSION: "{version}"}', f"env: {line}"))
    else:
        edit(own, more=f"{key}: {line}\n")
    plan = plan_of(own, "cpu-avx2-py311")
    assert plan.env[name] == "-mavx2 -mfma -mf16c -O2"
    assert plan.origins[f"env.{name}"].startswith("variant: avx2, with '-O2' of ")
    other = {"CFLAGS": "CXXFLAGS", "CXXFLAGS": "CFLAGS"}[name]
    assert plan.env[other] == "-mavx2 -mfma -mf16c"


@pytest.mark.parametrize("name", ["CFLAGS", "CXXFLAGS"])
def test_compiler_flags_of_an_option_are_added_to_the_variants(own, name, monkeypatch):
    lto = Option("lto", "test", environment=lambda value: {name: "-flto"} if value else {})
    monkeypatch.setitem(OPTIONS, "lto", replace(lto, pinned=False))
    plan = plan_of(own, "cpu-avx2-py311", lto="thin")
    assert plan.env[name] == "-mavx2 -mfma -mf16c -flto"


def test_a_recipes_other_variables_replace_those_of_the_platform(own):
    edit(own, ('env: {FARM_VERSION: "{version}"}', 'env: {CC: "clang"}'))
    assert plan_of(own).env["CC"] == "clang"
