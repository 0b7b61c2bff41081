"""Over all combinations: no rule raises, every reason is complete, and what is called nearest
really is.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm import catalog
from farm.base.errors import UsageError
from farm.catalog.gpus import is_integrated, without_variant
from farm.plan.compat.nearest import difference, nearest, solve
from farm.plan.compat.rules import check
from farm.plan.compat.stack import Stack
from farm.plan.variant import PYTHONS, Variant, cpu_words, gpu_words
from tests.examples import examples

PLATFORMS = ("linux", "windows", "macos")


def optional(known):
    return st.none() | st.sampled_from(sorted(known))


variants = st.builds(
    Variant,
    gpu=st.sampled_from(gpu_words()),
    cpu=st.sampled_from(cpu_words()),
    python=st.sampled_from(PYTHONS),
)
stacks = st.builds(
    Stack,
    package=st.sampled_from(["torch", "torchvision", "canary"]),
    variant=variants,
    platform=st.sampled_from(PLATFORMS),
    base=optional(catalog.debian_releases()),
    toolkit=optional(["debian", "nvidia", "wheels"]),
    cuda=optional([*catalog.toolkits(), "12.7", "x"]),
    torch=optional([*catalog.torch_releases(), "2.16.0", "main"]),
    cudnn=optional([*catalog.cudnn_releases(), "8.4.0"]),
    ptx=st.booleans(),
    gpu=st.none() | st.sampled_from([30, 35, 37, 50, 61, 75, 86, 87, 90, 101, 110, 120, 121, 999]),
    gpu_name=st.none(),
    arch_list=st.none()
    | st.lists(
        st.sampled_from(
            ["3.5", "3.5+PTX", "8.9", "9.0a", "12.0f", "Kepler", "Volta+Tegra", "8.6(8.0)", "x"]
        ),
        max_size=20,
    ).map(";".join),
    msvc=st.none() | st.integers(1900, 1999),
    gcc=st.none() | st.integers(4, 16),
    driver=optional(["390", "441.22", "470", "470.82.01", "535.104.05", "580", "999"]),
    numpy=optional(["1", "1.19.5", "1.26.4", "2", "2.0.2", "2.3.2", "3.0"]),
    switches=st.frozensets(st.sampled_from(sorted(catalog.switches()))),
    standalone=st.sampled_from([None, (), ("build", "numpy", "pyyaml")]),
)


@examples(400)
@given(stacks)
def test_no_rule_raises_and_every_reason_is_complete(stack):
    for reason in check(stack):
        assert reason.rule
        assert reason.text
        assert reason.fact
        assert reason.source
        assert reason.severity in {"error", "unpinned", "warning", "note"}
        assert "None" not in reason.text + reason.fact


@examples(60)
@given(stacks)
def test_nearest_does_away_with_the_reason_and_brings_no_new_error(stack):
    before = check(stack)
    errors = {reason.rule for reason in before if reason.severity == "error"}
    for reason in before:
        other = nearest(stack, reason, before)
        if other is None:
            continue
        after = check(other)
        assert reason.rule not in {found.rule for found in after}
        assert {found.rule for found in after if found.severity == "error"} <= errors
        only_the_base = replace(stack, base=other.base) == other  # which a plan chooses by itself
        assert difference(stack, other) or only_the_base
        assert (other.gpu, other.platform, other.package) == (
            stack.gpu,
            stack.platform,
            stack.package,
        )


@examples(60)
@given(stacks)
def test_a_solved_stack_has_no_errors(stack):
    solved = solve(stack)
    if solved is not None:
        assert not [reason for reason in check(solved) if reason.severity == "error"]


def test_what_upstream_built_has_no_errors():
    """Every official combination of the catalogue, for every SM that its CUDA and cuDNN have code
    for.
    """
    judged = 0
    by_version = {release.version: name for name, release in catalog.cudnn_releases().items()}
    for name, release in catalog.torch_releases().items():
        for official in release.official:
            if official.cuda not in catalog.toolkits():
                continue
            cudnn = by_version[official.cudnn] if official.cudnn else None
            lowest = catalog.cudnn_releases()[cudnn].sm_min if cudnn else release.sm_min
            python = [python for python in release.pythons.linux if python in PYTHONS][-1]
            for sm in catalog.toolkits()[official.cuda].sm:
                known = (
                    f"sm{sm}" in catalog.architectures().architectures
                    and without_variant(sm) is None
                )
                # Upstream's wheels for 64-bit Arm are for servers: none is for a Jetson board.
                known = known and not is_integrated(sm)
                if not known or sm < max(lowest, release.sm_min) or (sm >= 100 and name < "2.6"):
                    continue
                variant = Variant(f"sm{sm}", "avx2", python)
                stack = Stack(
                    "torch", variant, "linux", cuda=official.cuda, torch=name, cudnn=cudnn
                )
                assert [found for found in check(stack) if found.severity == "error"] == []
                judged += 1
    assert judged > 100


def test_malformed_facts_are_usage_errors():
    good = Stack("torch", Variant.parse("sm35-avx-py311"), "linux", cuda="11.7")
    for wrong in (
        {"driver": "new"},
        {"numpy": ">=2"},
        {"switches": frozenset({"USE_X"})},
        {"arch_list": "1" * 301},
    ):
        with pytest.raises(UsageError):
            replace(good, **wrong)
