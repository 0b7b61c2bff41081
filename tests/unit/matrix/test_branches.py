"""The channels against the text that they express: an excerpt, as published, of build-pytorch's
README (MIT).
"""

import re
from collections import Counter
from pathlib import Path

import pytest
from packaging.version import Version

from farm import catalog
from farm.plan.variant import Variant

SEED = (Path(__file__).parent / "seed004.txt").read_text(encoding="utf-8")
NAME = re.compile(r"\b(?:pytorch|torchvision|torchaudio)-python3\d+-[a-z0-9_-]+[a-z0-9](?![-*\w])")


def section(start: str, end: str) -> str:
    found = re.search(
        rf"^{re.escape(start)}\n(.*?)(?=^{re.escape(end)})", SEED, re.MULTILINE | re.DOTALL
    )
    assert found, start
    return found[1]


def rows(start: str, end: str) -> dict[str, str]:
    """The rest of each table line by the name of its branch."""
    lines = re.findall(
        r"^(main|pytorch-2[\w.-]+)(?: \S*[^\w\s.]\S*)? (\d.*)$", section(start, end), re.MULTILINE
    )
    return dict(lines)


BRANCHES = rows("Branch PyTorch CUDA Python Variants Key Additions", "Version Matrix")
PINS = rows("Branch PyTorch CUDA cuDNN Python Min Driver Nixpkgs Pin", "Build Matrix")
WORDS = rows("Branch PyTorch CUDA Architectures Variants", "Companion Libraries")
LISTED = NAME.findall(section("Complete Variant Matrix", "Variants on Other Branches"))
COMPANIONS = NAME.findall(section("Companion Libraries (Torchvision & Torchaudio)", "Architecture"))


def minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def test_excerpt_is_read_whole():
    assert list(BRANCHES) == list(PINS)
    assert len(BRANCHES) == 8
    assert set(WORDS) == set(BRANCHES) - {"main", "pytorch-2.8-python312"}
    assert (len(LISTED), len(COMPANIONS)) == (58, 4)
    assert len(set(LISTED + COMPANIONS)) == 62


def test_every_published_name_of_main_and_no_other(shipped):
    aliases = [build.alias for build in shipped.builds("main")]
    assert sorted(aliases) == sorted(LISTED + COMPANIONS)


def test_tree_of_files_of_main(shipped):
    """`├── pytorch-python313-cuda12_8-sm61-*.nix  # 2 SM61 variants (Pascal)`."""
    tree = re.findall(r"── (\S+-)(?:\*)?(\S*)\.nix\s+# (\d+)? ?(\S+)", SEED)
    assert len(tree) == 12
    aliases = [build.alias for build in shipped.builds("main")]
    for prefix, suffix, count, _ in tree:
        found = [alias for alias in aliases if alias.startswith(prefix) and alias.endswith(suffix)]
        assert len(found) == int(count or 1), prefix


@pytest.mark.parametrize("branch", BRANCHES)
def test_count_torch_cuda_and_python_of_each_branch(shipped, branch):
    torch, cuda, python, count, _ = re.fullmatch(
        r"(\S+) (\S+(?: / \S+)?) (3\.\d+) (\d+) (.*)", BRANCHES[branch]
    ).groups()
    channel = shipped.channel(branch)
    assert len(channel.builds) == int(count)
    assert Version(channel.text.torch) == Version(torch)
    assert list(channel.cuda) == [minor(version) for version in cuda.split(" / ")]
    assert {build.variant.python_version for build in channel.builds} == {python}
    assert len({build.alias for build in channel.builds}) == int(count)


@pytest.mark.parametrize("branch", PINS)
def test_cudnn_where_the_table_names_one(shipped, branch):
    named = re.fullmatch(r"\S+ \S+(?: / \S+)? (\S+) 3\.\d+ .*", PINS[branch])[1]
    cudnn = shipped.channel(branch).text.cudnn
    if named[0].isdigit() and "x" not in named:
        assert cudnn == named
    else:
        assert named == "TBD" or cudnn.startswith(named.removesuffix("x"))


@pytest.mark.parametrize("branch", WORDS)
def test_words_of_each_other_branch(shipped, branch):
    words, builds = WORDS[branch], shipped.channel(branch).builds
    torch_builds = [build for build in builds if build.package == "torch"]
    gpus = {build.variant.gpu for build in torch_builds}
    first, last = (int(sm) for sm in re.search(r"SM(\d+)\u2013SM(\d+)", words).groups())
    sms = {int(gpu.removeprefix("sm")) for gpu in gpus if gpu.startswith("sm")}
    named = {int(sm) for sm in re.findall(r"SM(\d+)", words)}
    assert (min(sms), max(sms)) == (first, last)
    assert named <= sms
    for only in re.finditer(r"SM(\d+) \((\S+) only\)", words):
        assert {b.cuda for b in builds if b.variant.gpu == f"sm{only[1]}"} == {only[2]}
    if "AVX-only" in words:
        assert any(b.variant.group == "cpu-avx" for b in torch_builds)
    assert [b.alias for b in builds if b.platform == "macos"] == [
        f"pytorch-{builds[0].variant.python.replace('py', 'python')}-darwin-mps"
    ]


def test_names_of_other_branches_in_the_examples(shipped):
    examples = re.findall(r"git checkout (\S+) && flox build (\S+)", SEED)
    assert len(examples) == 2
    for branch, alias in examples:
        assert alias in {build.alias for build in shipped.builds(branch)}


def test_two_cuda_versions_double_the_builds_with_an_sm_and_only_those(shipped):
    builds = shipped.channel("pytorch-2.9-vllm-0.14.0").builds
    count = Counter(build.variant for build in builds)
    for variant, times in count.items():
        assert times == (2 if variant.sms and variant.gpu != "sm103" else 1), variant


def test_parts_of_each_count(shipped):
    """The sums beside the channels: builds by GPU word."""
    seven = {f"sm{sm}": 7 for sm in (75, 80, 86, 89, 90, 100, 120)}
    both = dict.fromkeys(seven, 14)
    expected = {
        "main": seven | {"cpu": 6, "sm61": 2 + 2, "sm75": 7 + 2, "mps": 1},
        "pytorch-2.9-python313": seven | {"cpu": 7, "sm61": 2, "sm103": 7, "mps": 1},
        "pytorch-2.9-vllm-0.15.1": both | {"cpu": 7, "sm61": 4, "sm103": 7, "mps": 1},
        "pytorch-2.9-vllm-0.14.0": both | {"cpu": 7, "sm61": 4, "sm70": 14, "sm103": 7, "mps": 1},
        "pytorch-2.10-python313": seven | {"cpu": 7, "sm103": 7, "sm110": 2, "sm121": 2, "mps": 1},
    }
    for branch, parts in expected.items():
        assert Counter(build.variant.gpu for build in shipped.builds(branch)) == parts, branch
        assert sum(parts.values()) == len(shipped.channel(branch).builds)


def test_macos_variant_has_its_own_blas_and_no_cuda(shipped):
    build = next(b for b in shipped.builds("main") if b.platform == "macos")
    pins = shipped.channel("main").pins("torch", build.variant, "macos")
    assert str(build.variant) == "mps-arm64-py313"
    assert (pins.base, pins.options["cuda"], pins.options["blas"]) == (None, None, None)


@pytest.mark.parametrize("gpu", ["sm61", "sm70"])
def test_cudnn_is_left_out_where_it_has_no_code(shipped, gpu):
    """cuDNN 9.11 and newer have no code below sm_75; main's 9.10.2 has."""
    channel = shipped.channel("pytorch-2.9-vllm-0.14.0")
    assert channel.pins("torch", Variant(gpu, "avx2", "py312"), "linux").options["cudnn"] is None
    assert (
        channel.pins("torch", Variant("sm75", "avx2", "py312"), "linux").options["cudnn"]
        == "9.13.0"
    )
    assert (
        shipped.channel("main")
        .pins("torch", Variant("sm61", "avx2", "py313"), "linux")
        .options["cudnn"]
        == "9.10.2"
    )


def test_everything_pinned_is_in_the_catalogue(shipped):
    for channel in shipped.channels.values():
        assert set(channel.cuda) <= set(catalog.toolkits()), channel.name
        assert channel.text.torch is None or channel.text.torch in catalog.torch_releases(), (
            channel.name
        )
        assert channel.text.cudnn is None or channel.text.cudnn in catalog.cudnn_releases(), (
            channel.name
        )
        toolkits = catalog.toolkits()
        for build in channel.builds:
            if build.cuda:
                assert set(build.variant.sms) <= set(toolkits[build.cuda].sm), build
