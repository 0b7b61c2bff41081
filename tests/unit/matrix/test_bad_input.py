"""A wrong ci/matrix.yaml: the error names the file, the line and the likely intended key or word."""

import pytest

from farm.base.errors import UsageError
from farm.plan.matrix import load_matrix


@pytest.mark.parametrize(
    ("old", "new", "line", "text"),
    [
        # wrong types
        ("gpus: [cpu, sm80, sm90]", "gpus: sm80", 10, "channels.one.gpus: a list is needed here, such as [one, two]"),
        ("gpus: [cpu, sm80, sm90]", "gpus: []", 10, "channels.one.gpus: List should have at least 1 item"),
        (
            "cpus: [avx2, avx512]",
            "cpus: [avx2, 512]",
            11,
            "channels.one.cpus.1: unknown CPU '512'; did you mean 'avx512'",
        ),
        ('cuda: ["12.9", "12.8"]', "cuda: 12.9", 8, 'channels.one.cuda: write versions in quotes: "12.9"'),
        ('cuda: ["12.9", "12.8"]', "cuda: ['12.9', 12.8]", 8, 'channels.one.cuda: write versions in quotes: "12.8"'),
        ('cuda: ["12.9", "12.8"]', 'cuda: ["12.9.1"]', 8, "channels.one.cuda.0: '12.9.1' is not a version of CUDA"),
        (
            "toolkit: nvidia",
            "toolkit: conda",
            7,
            "channels.one.toolkit: unknown word 'conda'; known: debian, nvidia, wheels",
        ),
        ("summary: a channel", "summary: [a]", 3, "channels.one.summary: text is needed here"),
        ("  one:\n", "  One:\n", 2, "channels.One: 'One' is not a name for a channel"),
        # unknown keys and words
        ("gpus:", "gpu:", 10, "unknown key 'channels.one.gpu'; did you mean 'gpus'?"),
        ("pythons:", "python:", 12, "unknown key 'channels.one.python'; did you mean 'pythons'?"),
        ("channels:", "chanels:", 1, "unknown key 'chanels'; did you mean 'channels'?"),
        ("sm90]", "sm09]", 10, "channels.one.gpus.2: unknown GPU 'sm09'; did you mean 'sm90'"),
        ("sm90]", "9.0]", 10, "channels.one.gpus.2: unknown GPU '9.0'; did you mean 'sm90'?"),
        ("sm90]", "K40]", 10, "channels.one.gpus.2: unknown GPU 'K40'; did you mean 'sm35'?"),
        ("sm90]", "GT 730]", 10, "channels.one.gpus.2: unknown GPU 'GT 730'; did you mean 'sm35'?"),
        ("py312]", "3.12]", 12, "channels.one.pythons.1: unknown Python '3.12'; did you mean 'py312'?"),
        ("avx512]", "avx521]", 11, "channels.one.cpus.1: unknown CPU 'avx521'; did you mean 'avx512'"),
        ("py312]", "py3.12]", 12, "channels.one.pythons.1: unknown Python 'py3.12'; did you mean 'py312'"),
        ("[torch]", "[tourch]", 5, "channels.one.packages: no recipe for package 'tourch'; did you mean 'torch'?"),
        (
            "base: debian-bookworm",
            "base: debian-bookwrm",
            6,
            "channels.one.base: unknown base image 'debian-bookwrm'; did you mean 'debian-bookworm' or 'debian-forky'?",
        ),
        # a key that is needed
        ("    pythons: [py311, py312]\n", "", 2, "channels.one: the channel has no pythons"),
        ('    torch: "2.9.1"\n', "", 2, "channels.one: the channel has no torch"),
        # duplicates
        ("sm90]", "sm80]", 10, "channels.one.gpus.2: 'sm80' is there twice: a duplicate variant"),
        ("    toolkit: nvidia\n", "    base: debian-bookworm\n", 7, "key 'base' appears twice (first on line 6)"),
        # inheritance
        (
            "summary: a channel",
            "summary: a channel\n    extends: onne",
            4,
            "channels.one.extends: unknown channel 'onne'; did you mean 'one'?",
        ),
        (
            "summary: a channel",
            "summary: a channel\n    extends: one",
            4,
            "channels.one.extends: a cycle of inheritance: one -> one",
        ),
    ],
)
def test_wrong_channel(read, channels, tmp_path, old, new, line, text):
    assert channels.count(old) == 1
    with pytest.raises(UsageError) as caught:
        read(channels.replace(old, new))
    assert f"{tmp_path}/ci/matrix.yaml:{line}: {text}" in str(caught.value)


@pytest.mark.parametrize(
    ("rules", "line", "text"),
    [
        ("include:\n      - {gpu: [sm80]}", 14, "unknown key 'channels.one.include.0.gpu'; did you mean 'gpus'?"),
        ("exclude:\n      - {}", 14, "channels.one.exclude.0: the rule names no axis: it would take in everything"),
        (
            "exclude:\n      - gpus: [sm80]\n      - cpus: [avx]",
            15,
            "channels.one.exclude.1.cpus.0: the channel has no 'avx' to match; its cpus: avx2, avx512",
        ),
        ('exclude:\n      - {gpus: [cpu], cuda: "12.8"}', 14, "channels.one.exclude.0: the rule excludes nothing"),
        (
            "include:\n      - {gpus: [sm80, sm100]}",
            14,
            "channels.one.include.0: duplicate variant: pytorch-python311-cuda12_8-sm80-avx2 is offered without",
        ),
        (
            "include:\n      - {gpus: [sm100]}\n      - {gpus: [sm100], cpus: [avx2]}",
            15,
            "channels.one.include.1: duplicate variant: pytorch-python311-cuda12_8-sm100-avx2",
        ),
        (
            "include:\n      - {gpus: [sm100, sm100]}",
            14,
            "channels.one.include.0.gpus.1: 'sm100' is there twice: a duplicate variant",
        ),
        (
            "include:\n      - {gpus: [sm100]}\n    exclude:\n      - {gpus: [sm100]}",
            14,
            "channels.one.include.0: the rule adds nothing: all of it is excluded",
        ),
        (
            "exceptions:\n      - {gpus: [sm80]}",
            14,
            "channels.one.exceptions.0: the exception sets no option: name cudnn or blas",
        ),
        ("exceptions:\n      - {cudnn: null}", 14, "channels.one.exceptions.0: the rule names no axis"),
        (
            "exceptions:\n      - {gpus: [sm80], cuddn: null}",
            14,
            "unknown key 'channels.one.exceptions.0.cuddn'; did you mean 'cudnn'?",
        ),
        (
            "exceptions:\n      - {gpus: [sm80], cudnn: null}\n    exclude:\n      - {gpus: [sm80]}",
            14,
            "channels.one.exceptions.0: the rule matches no build",
        ),
    ],
)
def test_wrong_rule(read, channels, tmp_path, rules, line, text):
    with pytest.raises(UsageError) as caught:
        read(f"{channels}    {rules}\n")
    assert f"{tmp_path}/ci/matrix.yaml:{line}: {text}" in str(caught.value)


def test_cycle_over_several_channels(read, tmp_path):
    text = "channels:\n" + "".join(
        f"  {name}:\n    summary: {name}\n    extends: {parent}\n" for name, parent in ("ab", "bc", "ca")
    )
    with pytest.raises(UsageError) as caught:
        read(text)
    expected = f"{tmp_path}/ci/matrix.yaml:10: channels.c.extends: a cycle of inheritance: a -> b -> c -> a"
    assert str(caught.value) == expected


def test_fault_of_an_inherited_rule_is_shown_where_it_is_written(read, channels, tmp_path):
    heir = "  two:\n    extends: one\n    summary: without sm90\n    gpus: [cpu, sm80]\n"
    with pytest.raises(UsageError) as caught:
        read(f"{channels}    exclude:\n      - {{gpus: [sm90]}}\n{heir}")
    assert str(caught.value).startswith(
        f"{tmp_path}/ci/matrix.yaml:14: channels.one.exclude.0.gpus.0, inherited by two: the channel has no 'sm90'"
    )


def test_a_project_without_the_file_has_the_channels_that_the_farm_ships(shipped, tmp_path):
    assert list(load_matrix(tmp_path).channels) == list(shipped.channels)


def test_an_empty_file(read):
    with pytest.raises(UsageError, match=r"ci/matrix\.yaml: empty"):
        read("")
    with pytest.raises(UsageError, match=r"ci/matrix\.yaml:1: channels: Dictionary should have at least 1 item"):
        read("channels: {}\n")


def test_a_changed_file_is_read_again(read, channels):
    assert len(read(channels).channel("one").builds) == 4 + 16
    assert len(read(channels.replace(", py312", "")).channel("one").builds) == 2 + 8
