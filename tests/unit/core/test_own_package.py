"""A package of one's own by data alone: a project of `farm init`, its channels and recipes."""

import subprocess

import pytest

from farm import shipped
from farm.cli.main import main
from farm.errors import UsageError
from farm.matrix import load_matrix
from farm.options import Choice
from farm.plan import Selectors, resolve
from farm.recipe import names, recipe, use_project
from farm.render import render
from farm.variant import Variant


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
    return resolve(project, Selectors(Variant.parse(variant), package, options=choices))


def test_init_writes_nothing_where_a_file_would_be_replaced(tmp_path, capsys):
    (tmp_path / "README.md").write_text("mine")
    assert main(["init", str(tmp_path)]) == 2
    assert "README.md is already there: nothing was written" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]


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
    file = own / "recipes" / "hello" / "recipe.yaml"
    file.write_text(file.read_text().replace("device_code: false", "device_code: true"))
    use_project(own.parent)
    plan = plan_of(own, "sm35-avx-py311", ptx=True)
    assert (list(plan.verify.sass), list(plan.verify.ptx)) == ([35], [35])


def test_the_projects_own_recipe_stands_before_the_farms(own):
    folder = own / "recipes" / "canary"
    folder.mkdir()
    text = (own / "recipes" / "hello" / "recipe.yaml").read_text()
    (folder / "recipe.yaml").write_text(text.replace("package: hello", "package: canary"))
    use_project(own)
    assert "hello" in names()
    assert recipe("canary").summary == "An example of an extension module"
    use_project(own.parent)
    assert "hello" not in names()
    assert recipe("canary").summary.startswith("C++ and CUDA matmul")


def test_a_package_without_a_recipe_is_named_with_the_nearest(own):
    file = own / "ci" / "matrix.yaml"
    file.write_text(file.read_text().replace("packages: [hello]", "packages: [helo]"))
    with pytest.raises(
        UsageError, match=r"matrix.yaml:\d+: channels.mine.packages: no recipe for package 'helo'; did you"
    ):
        load_matrix(own)


def test_the_projects_own_templates_stand_before_the_farms(own):
    target = own / "dockerfiles" / "linux"
    target.mkdir(parents=True)
    for file in (shipped.ROOT / "dockerfiles" / "linux").iterdir():
        (target / file.name).write_text(file.read_text() + ("# mine\n" if file.name == "build.sh.j2" else ""))
    assert render(own, plan_of(own)).job["build.sh"].endswith("# mine\n")


WHEEL = "{package: Cython, file: cython-3.1.8-py2.py3-none-any.whl, sha256: " + "a" * 64 + "}"


def requiring(own, apt):
    file = own / "recipes" / "hello" / "recipe.yaml"
    text = file.read_text().replace("apt: [python3-dev", f"apt: [{apt}python3-dev")
    file.write_text(f"{text}build_requires: [{WHEEL}]\n")
    use_project(own.parent)


def test_wheels_of_the_python_index_are_installed_for_the_build(own):
    before = plan_of(own)
    assert "pip install" not in render(own, before).job["build.sh"]
    assert "build_requires" not in before.to_json()  # plans without it keep their digests
    requiring(own, "python3-pip, ")
    plan = plan_of(own)
    assert plan.installs == ["cython==3.1.8"]
    assert plan.digest != before.digest
    script = render(own, plan).job["build.sh"]
    assert '--no-index --no-deps --find-links "$FARM_ROOT/needs"' in script
    assert '--target "$FARM_ROOT/needs/site" cython==3.1.8' in script
    assert 'export PYTHONPATH="$FARM_ROOT/needs/site" PATH="$FARM_ROOT/needs/site/bin:$PATH"' in script
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_what_is_installed_with_pip_needs_pip_in_the_image(own):
    requiring(own, "")
    with pytest.raises(UsageError, match=r"recipe\.yaml:.*add python3-pip to apt"):
        plan_of(own)


def test_no_packages_name_stands_in_the_code(root):
    done = subprocess.run(
        ["grep", "-rnE", r"\"(canary|torchvision|torchaudio)\"", "farm", "--include=*.py", "--exclude-dir=recipes"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""
