"""Compatibility as public sources state it (`public_cases.yaml`)."""

from pathlib import Path

import pytest
import yaml

from farm import catalog
from farm.plan.compat.compilers import parse_msvc
from farm.plan.compat.rules import check

CASES = yaml.safe_load(Path(__file__).with_name("public_cases.yaml").read_text())
CONVERTED = {"msvc": parse_msvc, "switches": frozenset}


def rules(stack, variant, platform="linux", **fields):
    fields = {
        name: CONVERTED.get(name, lambda value: value)(value) for name, value in fields.items()
    }
    python = fields.pop("python", None)
    name = "-".join([*variant.split("-")[:2], python]) if python else variant
    return {reason.rule: reason.severity for reason in check(stack(name, platform, **fields))}


def on_each(kind):
    """(platform, case) of a kind of answer."""
    return [("linux", *case) for case in CASES[kind]] + [
        ("windows", *case) for case in CASES[f"{kind} on windows"]
    ]


@pytest.mark.parametrize(("platform", "variant", "fields", "rule"), on_each("refused"))
def test_refused_public_cases_name_their_rule(stack, platform, variant, fields, rule):
    assert rules(stack, variant, **{"platform": platform, **fields}).get(rule) == "error"


@pytest.mark.parametrize(("platform", "variant", "fields"), on_each("taken"))
def test_possible_public_cases_have_no_error(stack, platform, variant, fields):
    assert "error" not in rules(stack, variant, **{"platform": platform, **fields}).values()


@pytest.mark.parametrize(("variant", "fields"), CASES["limited"])
def test_minor_version_compatibility(stack, variant, fields):
    found = rules(stack, variant, **fields)
    assert "error" not in found.values()
    assert "driver-limited" in found


@pytest.mark.parametrize(("cuda", "drivers"), CASES["drivers"].items())
def test_drivers_are_those_of_nvidias_table(cuda, drivers):
    toolkit = catalog.toolkits()[cuda]
    assert [toolkit.driver_linux, toolkit.driver_windows] == drivers


def test_windows_needs_580_for_cuda_13(stack):
    assert (
        rules(stack, "sm86-avx2-py312", "windows", cuda="13.0", driver="572.16", gpu=86)[
            "driver-cuda"
        ]
        == "error"
    )
    assert "driver-cuda" not in rules(
        stack, "sm86-avx2-py312", "windows", cuda="13.0", driver="581.15", gpu=86
    )


def test_visual_studio_2026_from_cuda_13_2_on(stack):
    """crt/host_config.h: _MSC_VER below 1960 since 13.2, below 1950 before."""
    assert (
        rules(stack, "sm86-avx2-py312", "windows", cuda="13.0", msvc="2026")["cuda-msvc"] == "error"
    )
    assert "cuda-msvc" not in rules(stack, "sm86-avx2-py312", "windows", cuda="13.2", msvc="2026")


def test_mkl_is_not_in_linux_images(stack):
    assert rules(stack, "cpu-avx2-py311", words=(("blas", "mkl"),))["blas"] == "error"
    assert "blas" not in rules(stack, "cpu-avx2-py311", "windows", words=(("blas", "mkl"),))
