"""What cannot be built, and why."""

import itertools

import pytest
from packaging.version import Version

from farm import catalog
from farm.compat import Reason, Stack, reasons
from farm.errors import NotBuildableError, UsageError
from farm.plan import Selectors, judge, resolve
from farm.variant import Variant


def select(variant, package="canary", channel=None, **options):
    return Selectors(
        variant=Variant.parse(variant),
        package=package,
        channel=channel,
        options={name: (value, f"--{name}") for name, value in options.items()},
    )


def rules(root, *args, **kwargs):
    return {reason.rule: reason for reason in judge(root, select(*args, **kwargs))}


def test_kepler_and_cuda_12_8_gives_both_reasons(root):
    found = rules(root, "sm35-avx-py311", cuda="12.8")
    assert set(found) == {"cuda-sm", "toolkit-cuda"}
    assert found["cuda-sm"].text == "CUDA 12.8 cannot compile for sm35 (Kepler, Tesla K40)"
    assert found["cuda-sm"].fact.startswith("nvcc of CUDA 12.8.1 targets sm 50, 52,")
    assert found["cuda-sm"].nearest == "nearest that can: CUDA 11.8 (of 11.4, 11.7, 11.8)"
    assert "CUDA 11.8, not 12.8" in found["toolkit-cuda"].text
    with pytest.raises(NotBuildableError) as caught:
        resolve(root, select("sm35-avx-py311", cuda="12.8"))
    assert caught.value.exit_code == 3
    assert all(reason.text in str(caught.value) for reason in found.values())
    assert "--toolkit nvidia" in caught.value.hint


def test_every_sm_of_a_set_is_judged(root):
    found = [r.text for r in judge(root, select("kepler-avx-py311", cuda="12.1", toolkit="nvidia"))]
    assert [text for text in found if "cannot compile" in text] == [
        "CUDA 12.1 cannot compile for sm35 (Kepler, Tesla K40)",
        "CUDA 12.1 cannot compile for sm37 (Kepler, Tesla K80)",
    ]


def test_cudnn_without_kepler_code(root):
    found = rules(root, "sm35-avx-py311", "torch", cudnn="8.9.7")
    assert set(found) == {"cudnn-sm"}
    assert "sm_50" in found["cudnn-sm"].text
    assert found["cudnn-sm"].nearest == "nearest that can: --cudnn 8.7.0"
    assert not judge(root, select("sm50-avx-py311", "torch", cudnn="8.9.7"))


def test_another_python(root):
    found = rules(root, "sm35-avx-py313", "torch")
    assert set(found) == {"base-python", "torch-python"}
    assert {r.nearest for r in found.values()} == {"nearest that can: sm35-avx-py311"}


def test_a_card_that_is_newer_than_the_toolkit(root):
    found = rules(root, "sm120-avx-py311", channel="kepler-debian")
    assert set(found) == {"cuda-sm"}
    assert found["cuda-sm"].nearest == "nearest that can: CUDA 12.8 (of 12.8, 12.9, 13.0)"


@pytest.mark.parametrize(
    ("args", "options", "expected"),
    [
        (("sm35-armv9-py311",), {}, {"machine"}),
        (("mps-arm64-py311",), {}, {"machine", "channel"}),
        (("mps-avx-py311",), {}, {"channel"}),
        (
            ("sm35-avx-py311",),
            {"channel": "kepler-debian", "package": "torch"},
            {"channel", "toolkit-components", "torch"},
        ),
        (("sm35-avx-py311",), {"cuda": "99.1"}, {"cuda", "toolkit-cuda"}),
        (("sm35-avx-py311", "torch"), {"cuda": "not a version"}, {"cuda"}),
        (("sm35-avx-py311", "torch"), {"torch": "9.9"}, {"torch"}),
        (("sm35-avx-py311", "torch"), {"cudnn": "0.1"}, {"cudnn"}),
        (("sm75-avx-py311", "torch"), {"cuda": "12.1"}, {"cudnn-cuda"}),
        (("sm35-avx-py311", "torch"), {"toolkit": "debian"}, {"toolkit-cuda", "toolkit-components"}),
        (("sm75-avx-py311", "torch"), {"cuda": "13.0", "cudnn": "9.10.2"}, {"toolkit-components", "cudnn-cuda"}),
    ],
)
def test_each_rule(root, args, options, expected):
    assert set(rules(root, *args, **options)) == expected


@pytest.mark.parametrize(
    ("table", "name", "change", "rule", "text"),
    [
        ("debian_releases", "debian-bookworm", {"gcc": 12}, "cuda-gcc", "CUDA 11.8 takes gcc up to 11"),
        ("torch_releases", "2.0.1", {"cuda_min": "11.10"}, "torch-cuda", "needs CUDA 11.10 or newer, not 11.8"),
        ("torch_releases", "2.0.1", {"sm_min": 60}, "torch-sm", "starts at sm_60, not sm_50"),
    ],
)
def test_rules_that_no_entry_of_the_catalogue_breaks_today(monkeypatch, table, name, change, rule, text):
    stack = Stack("torch", Variant.parse("sm50-avx-py311"), "linux", "debian-bookworm", "nvidia", "11.8", "2.0.1", None)
    assert reasons(stack) == []
    known = getattr(catalog, table)()
    changed = {**known, name: known[name].model_copy(update=change)}
    monkeypatch.setattr(catalog, table, lambda: changed)
    [found] = reasons(stack)
    assert found.rule == rule
    assert text in found.text


def test_torch_and_cudnn_of_a_build_without_cuda_are_not_held_against_it(root):
    assert judge(root, select("cpu-avx-py311", cuda="12.8", cudnn="8.9.7", toolkit="nvidia")) == []


def test_unknown_words_are_usage_errors_with_the_nearest(root):
    for options, hint in (({"toolkit": "debain"}, "debian"), ({"blas": "openblass", "package": "torch"}, "openblas")):
        with pytest.raises(UsageError) as caught:
            resolve(root, select("sm35-avx-py311", **options))
        assert hint in caught.value.hint
    with pytest.raises(UsageError, match="unknown channel") as caught:
        resolve(root, select("sm35-avx-py311", channel="kepler-debain"))
    assert caught.value.hint == "nearest: kepler-debian"
    with pytest.raises(UsageError, match="unknown package 'canry'") as caught:
        resolve(root, select("sm35-avx-py311", "canry"))
    assert caught.value.hint == "nearest: canary"


def test_a_reason_says_what_to_do():
    assert str(Reason("r", "text", "fact", "source")) == "text"
    assert str(Reason("r", "text", "fact", "source", "nearest that can: x")) == "text; nearest that can: x"


def test_the_catalogue_holds_together():
    """Facts that the rules and the nearest names rely on."""
    known, toolkits = catalog.architectures(), catalog.toolkits()
    assert list(toolkits) == sorted(toolkits, key=Version)
    for name, toolkit in toolkits.items():
        assert toolkit.release.startswith(name + ".")
        assert toolkit.sm == sorted(set(toolkit.sm))
        assert {f"sm{sm}" for sm in toolkit.sm} <= set(known.architectures)
    for names in known.sets.values():
        assert list(names) == sorted(names, key=lambda n: int(n[2:]))
        assert set(names) <= set(known.architectures)
    for name, arch in known.architectures.items():
        assert "sm" + arch.arch_list.replace(".", "") == name
    able = {sm for toolkit in toolkits.values() for sm in toolkit.sm}
    assert able == {int(name[2:]) for name in known.architectures}
    versions = list(itertools.chain(catalog.cudnn_releases(), catalog.torch_releases()))
    assert all(Version(v) for v in versions)
