"""Every option that is given is used or refused: the option table, and every command."""

import ast
import io
from pathlib import Path

import pytest
import yaml

from farm.cli import main as command_line
from farm.cli.main import COMMANDS, main, parser
from farm.plan.options import OPTIONS

CASES = yaml.safe_load(Path(__file__).with_name("options.yaml").read_text(encoding="utf-8"))

PROJECT = Path(__file__).parents[3]
SAMPLES = {
    "cuda": "11.8",
    "torch": "2.6.0",
    "cudnn": "8.7.0",
    "toolkit": "nvidia",
    "blas": "openblas",
}
UPSTREAM = {"torch", "cuda"}


def words(option):
    value = SAMPLES.get(option.name) or (option.choices or ("1",))[0]
    return [option.flag] if option.kind is bool else [option.flag, str(value)]


@pytest.mark.parametrize("option", OPTIONS.values(), ids=lambda option: option.name)
def test_a_plan_takes_an_option_or_refuses_it(farm, option):
    for variant in ("sm35-avx-py311", "cpu-avx-py311"):
        for package in ("torch", "canary"):
            given = (
                "plan",
                "--variant",
                variant,
                "--package",
                package,
                "--platform",
                "linux",
                *words(option),
            )
            code, output = farm(*given, "--json")
            used = code == 0 and option.flag in output.out
            assert used or (code in (2, 3) and option.flag in output.err) or code == 3, (
                variant,
                package,
                output.err,
            )


@pytest.mark.parametrize("option", OPTIONS.values(), ids=lambda option: option.name)
def test_a_question_about_upstreams_wheels_uses_an_option_or_refuses_it(farm, option):
    code, output = farm("why", "--official", "--gpu", "V100", *words(option))
    if option.name in UPSTREAM:
        assert (code in (0, 3), output.err) == (True, "")
        assert words(option)[1] in output.out
    else:
        assert (code, option.flag in output.err) == (2, True)


@pytest.mark.parametrize(
    ("variable", "value", "words", "code", "says"), CASES["a_variable_is_used_or_refused_too"]
)
def test_a_variable_is_used_or_refused_too(farm, monkeypatch, variable, value, words, code, says):
    monkeypatch.setenv(variable, value)
    got, output = farm(*words)
    assert (got, says in output.out + output.err) == (code, True), output


def test_an_unknown_value_in_the_projects_file_is_refused_also_where_it_means_nothing(
    farm, tmp_path, monkeypatch
):
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / "farm.yaml").write_text('options: {cudnn: "9.99"}\n')
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "--variant", "cpu-avx-py311"]) == 2


@pytest.mark.parametrize(
    "given",
    [
        ("--numpy", "2"),
        ("--package", "canary"),
        ("--channel", "main"),
        ("--mkldnn",),
        ("--arch-list", "8.6"),
    ],
)
def test_what_is_not_asked_of_upstreams_wheels_is_refused(farm, given):
    code, output = farm("why", "--official", "--gpu", "V100", *given)
    assert (code, given[0] in output.err) == (2, True)


@pytest.mark.parametrize(("given", "code", "says"), CASES["the_answers_about_upstreams_wheels"])
def test_the_answers_about_upstreams_wheels(farm, given, code, says):
    got, output = farm("why", "--official", *given)
    assert (got, says in " ".join((output.out + output.err).split())) == (code, True), output


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        (
            (
                "GPU 0: Tesla V100-PCIE-16GB (UUID: GPU-1)\nGPU 1: NVIDIA GeForce RTX 5090 (UUID: "
                "GPU-2)"
            ),
            0,
            "torch 2.10.0",
        ),
        (
            "Driver Version   : 470.256.02\n  Product Name   : NVIDIA A100-SXM4-40GB",
            0,
            "torch 2.7.1 with CUDA 11.8",
        ),
        ("user@h100:~$ ls /opt/v100", 2, "no card is named"),
        ("No devices were found", 2, "The driver sees no card"),
    ],
)
def test_pasted_text_is_asked_about_with_its_driver(farm, monkeypatch, text, code, says):
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    got, output = farm("why", "--official", "--gpu", "-")
    assert (got, says in output.out + output.err) == (code, True), output


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
            assert action.dest in read or plain in read, (name, action.dest)
