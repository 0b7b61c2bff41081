"""The table of options: what follows from it, and that a new option is a new entry there and
nothing else.
"""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
import yaml

from farm.plan.options import Choice, from_arguments
from tools.options_page import OUT, PAGE, markdown

NEW = """
    Option(
        "lto",
        "link-time optimisation",
        choices=("thin", "full"),
        in_matrix="null: without it",
        environment=lambda value: {"USE_LTO": value, "CMAKE_BUILD_TYPE": "Lto"} if value else {},
        packages=lambda value: ["lld"] if value else [],
    ),
    Option("linker", "the linker", choices=("default", "mold"), default="default"),
    Option("split_debug", "debug symbols in files of their own", kind=bool, default=False),
)

OPTIONS: Mapping"""


@pytest.fixture(scope="module")
def extended(root, tmp_path_factory):
    """A copy of the project in which one entry was added to one file."""
    copy = tmp_path_factory.mktemp("extended")
    for name in ("farm", "ci", "dockerfiles", "tools"):
        shutil.copytree(root / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    table = copy / "farm" / "plan" / "options.py"
    text = table.read_text(encoding="utf-8")
    assert text.count("\n)\n\nOPTIONS: Mapping") == 1
    table.write_text(text.replace("\n)\n\nOPTIONS: Mapping", NEW), encoding="utf-8")
    return copy


@pytest.fixture
def extended_farm(extended, clean_environment):
    def run(*words, module="farm.cli.main", **variables):
        environ = {**os.environ, "PYTHONPATH": str(extended), **variables}
        command = [sys.executable, "-P", "-m", module, *words]
        return subprocess.run(
            command,
            check=False,
            cwd=extended,
            env=environ,
            capture_output=True,
            text=True,
            timeout=600,
        )

    return run


def planned(answer):
    assert answer.returncode == 0, answer.stderr
    plan = json.loads(answer.stdout)
    return {
        name: (plan[part][name], plan["origins"][key])
        for part, name, key in KEYS
        if name in plan[part]
    }


KEYS = (("options", "lto", "lto"), ("env", "USE_LTO", "env.USE_LTO"))
PLAN = ("plan", "--variant", "sm35-avx-py311", "--package", "canary", "--json")


def test_a_new_option_is_on_the_command_line_in_the_environment_and_in_the_plan(extended_farm):
    assert planned(extended_farm(*PLAN)) == {}
    by_word = planned(extended_farm(*PLAN, "--lto", "thin", FARM_LTO="full"))
    assert by_word == {"lto": ("thin", "--lto"), "USE_LTO": ("thin", "--lto")}
    by_variable = planned(extended_farm(*PLAN, FARM_LTO="full"))
    assert by_variable["USE_LTO"] == ("full", "environment FARM_LTO")
    wrong = extended_farm(*PLAN, "--lto", "thn")
    assert wrong.returncode == 2
    assert "unknown lto 'thn' (from --lto)" in wrong.stderr
    assert "nearest: thin" in wrong.stderr
    assert "--lto thin|full" in extended_farm("plan", "--help").stdout


def test_a_new_option_brings_its_packages_and_the_plan_says_what_it_replaces(
    extended, extended_farm
):
    recipe = extended / "farm" / "recipes" / "canary" / "recipe.yaml"
    text = recipe.read_text(encoding="utf-8")
    recipe.write_text(
        text.replace("\nenv:\n", "\nenv:\n  CMAKE_BUILD_TYPE: Release\n"), encoding="utf-8"
    )
    try:
        plan = json.loads(extended_farm(*PLAN, "--lto", "thin").stdout)
        assert "lld" in plan["apt"]
        assert "lld" not in json.loads(extended_farm(*PLAN).stdout)["apt"]
        shown = extended_farm(*PLAN[:-1], "--all", "--lto", "thin").stdout
        assert re.search(r"^env USE_LTO +thin +--lto$", shown, re.MULTILINE)
        assert "--lto, in place of 'Release' of recipe canary" in shown
    finally:
        recipe.write_text(text, encoding="utf-8")


def test_a_new_option_changes_no_plan_that_does_not_set_it(farm, extended_farm):
    """Else every published wheel would be built again: it is found by the digest of its plan."""
    before = farm(*PLAN).stdout
    assert extended_farm(*PLAN).stdout == before
    assert (
        json.loads(extended_farm(*PLAN, "--lto", "thin").stdout)["digest"]
        != json.loads(before)["digest"]
    )


def test_a_new_option_is_a_key_of_a_channel_in_the_schema_and_in_the_docs(extended, extended_farm):
    path = extended / "ci" / "matrix.yaml"
    written = yaml.safe_load(path.read_text())
    written["channels"]["kepler-debian"]["lto"] = "full"
    path.write_text(yaml.safe_dump(written, sort_keys=False))
    assert planned(extended_farm(*PLAN))["USE_LTO"] == ("full", "channel kepler-debian")
    for module, name in (
        ("tools.matrix_schema", "matrix.schema.json"),
        ("tools.options_page", "options.md"),
    ):
        made = extended_farm("--out", str(extended / name), module=module)
        assert made.returncode == 0, made.stderr
        assert "lto" in (extended / name).read_text(encoding="utf-8")
    page = (extended / "options.md").read_text(encoding="utf-8")
    assert "| `--split-debug` | `--no-split-debug` for false |" in page


def test_the_page_of_the_docs_is_the_table():
    assert OUT.read_text(encoding="utf-8") == PAGE.format(table=markdown()), "run `make generate`"


@pytest.mark.parametrize("package", ["torch", "torchvision", "canary"])
def test_an_unknown_word_is_refused_also_where_it_would_mean_nothing(farm, package):
    answer = farm("plan", "--variant", "sm35-avx-py311", "--package", package, "--blas", "opnblas")
    assert answer.returncode == 2
    assert "unknown blas 'opnblas' (from --blas)" in answer.stderr
    assert "nearest: openblas" in answer.stderr


def test_what_was_not_given_is_no_choice():
    assert from_arguments({"cuda": None, "ptx": False, "variant": "x"}) == {
        "ptx": Choice(False, "--ptx")
    }
