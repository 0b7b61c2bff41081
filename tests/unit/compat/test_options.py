"""Every option that is given is used or refused: the option table, and every command."""

import ast
from pathlib import Path

import pytest

from farm.cli import main as command_line
from farm.cli.main import COMMANDS, main, module, parser
from farm.plan.options import OPTIONS

PROJECT = Path(__file__).parents[3]
SAMPLES = {"cuda": "11.8", "torch": "2.6.0", "cudnn": "8.7.0", "toolkit": "nvidia", "blas": "openblas"}
UPSTREAM = {"torch", "cuda"}


def words(option):
    value = SAMPLES.get(option.name) or (option.choices or ("1",))[0]
    return [option.flag] if option.kind is bool else [option.flag, str(value)]


@pytest.fixture
def farm(capsys):
    def run(*given):
        code = main(["--project", str(PROJECT), *given])
        return code, capsys.readouterr()

    return run


@pytest.mark.parametrize("option", OPTIONS.values(), ids=lambda option: option.name)
def test_a_plan_takes_an_option_or_refuses_it(farm, option):
    for variant in ("sm35-avx-py311", "cpu-avx-py311"):
        for package in ("torch", "canary"):
            given = ("plan", "--variant", variant, "--package", package, "--platform", "linux", *words(option))
            code, said = farm(*given, "--json")
            used = code == 0 and option.flag in said.out
            assert used or (code in (2, 3) and option.flag in said.err) or code == 3, (variant, package, said.err)


@pytest.mark.parametrize("option", OPTIONS.values(), ids=lambda option: option.name)
def test_a_question_about_upstreams_wheels_uses_an_option_or_refuses_it(farm, option):
    code, said = farm("why", "--official", "--gpu", "V100", *words(option))
    if option.name in UPSTREAM:
        assert (code in (0, 3), said.err) == (True, "")
        assert words(option)[1] in said.out
    else:
        assert (code, option.flag in said.err) == (2, True)


@pytest.mark.parametrize(
    "given",
    [("--numpy", "2"), ("--package", "canary"), ("--channel", "main"), ("--mkldnn",), ("--arch-list", "8.6")],
)
def test_what_is_not_asked_of_upstreams_wheels_is_refused(farm, given):
    code, said = farm("why", "--official", "--gpu", "V100", *given)
    assert (code, given[0] in said.err) == (2, True)


@pytest.mark.parametrize(
    ("given", "code", "says"),
    [
        (("--gpu", "GTX 1080", "--torch", "2.8", "--cuda", "12.8"), 3, "with CUDA 12.8 in the catalogue has code for"),
        (("--gpu", "V100", "--torch", "2.10", "--cuda", "13.0"), 3, "with CUDA 13.0 in the catalogue has code for"),
        (("--gpu", "GTX 1080", "--torch", "2.8.0+cu128"), 3, "of torch 2.8.0 with CUDA 12.8"),
        (("--gpu", "GTX 1080", "--torch", "2.8.0+cu126"), 0, "whl/cu126"),
        (("--gpu", "GTX 1080", "--cuda", "banana"), 2, "CUDA 'banana' is not in the catalogue"),
        (("--gpu", "GTX 1080", "--cuda", "10.0"), 2, "it begins at CUDA 10.2"),
        (("--gpu", "GTX 1080", "--torch", "1.7.1"), 2, "it begins at torch 1.12.0"),
        (("--gpu", "GTX 1080", "--torch", "3.0"), 2, "newer ones: tools/refresh-catalogue"),
        (("--gpu", "GTX 1080", "--torch", "2.8.0+cpu"), 2, "+cpu runs on no card"),
        (("--gpu", "GTX 1080", "--torch", "2.8.0+cu128", "--cuda", "12.6"), 2, "name two CUDAs"),
        (("--gpu", "V100", "--gpu", "RTX 5090"), 0, "torch 2.10.0 with CUDA 12.8 runs on V100 (sm_70) and RTX 5090"),
        (("--gpu", "K40", "--gpu", "RTX 5090"), 3, "leaves out sm_35"),
        (("--gpu", "V100", "--gpu", "GH200"), 2, "no machine has all of"),
        (("--gpu", "K80", "--driver", "470"), 0, "without cuDNN on sm_37"),
    ],
)
def test_the_answers_about_upstreams_wheels(farm, given, code, says):
    got, said = farm("why", "--official", *given)
    assert (got, says in said.out + said.err) == (code, True), said


def _read(tree):
    """The names that a file reads of `args`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_no_command_has_an_option_that_nothing_reads():
    read = set(OPTIONS) | {"tools"}  # repair: the other word for no --into
    read |= {"project", "traceback", "command", "words", "help", "version"}
    for path in (PROJECT / "farm" / "cli").rglob("*.py"):
        read |= set(_read(ast.parse(path.read_text(encoding="utf-8"))))
    for name in COMMANDS:
        for action in command_line.command_parser(parser((name,)), name)._actions:
            plain = action.dest.replace("_", "-")
            assert action.dest in read or plain in read, (name, action.dest, module(name))
