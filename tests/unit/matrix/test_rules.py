"""What axes, include, exclude and extends mean: against a brute-force reading of the same rules."""

from itertools import product

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from farm.plan.channel import Channel, RuleError
from farm.plan.channel_text import AXES, ChannelText
from farm.plan.variant import SPECIAL_GPUS, Variant
from tests.examples import examples

WORDS = {
    "packages": ["torch", "torchvision"],
    "platforms": ["linux", "windows"],
    "gpus": ["cpu", "sm80", "sm89", "sm90"],
    "cpus": ["avx2", "avx512"],
    "pythons": ["py311", "py312"],
    "cuda": ["12.8", "12.9"],
}
UNIVERSE = [
    key
    for key in product(*(WORDS[axis] for axis in AXES[:-1]), [None, *WORDS["cuda"]])
    if (key[2] in SPECIAL_GPUS) == (key[5] is None)
]


def some(axis):
    return st.lists(st.sampled_from(WORDS[axis]), min_size=1, unique=True)


AXES_OF_CHANNEL = st.fixed_dictionaries({axis: some(axis) for axis in AXES})
NAMED = st.lists(st.sampled_from(AXES), min_size=1, unique=True)
RULES = st.lists(
    NAMED.flatmap(lambda axes: st.fixed_dictionaries({axis: some(axis) for axis in axes})),
    max_size=3,
)


def make(axes, include, exclude):
    text = ChannelText.model_validate(
        {"summary": "x", "base": "debian-bookworm", "toolkit": "nvidia", "torch": "2.9.1"}
        | axes
        | {"include": include, "exclude": exclude}
    )
    return Channel("x", text)


def holds(rule, key):
    """Every axis that the rule names holds the key's word."""
    return all(word in rule[axis] for axis, word in zip(AXES, key, strict=True) if axis in rule)


def in_product(axes, key):
    return all(word is None or word in axes[axis] for axis, word in zip(AXES, key, strict=True))


def sensible(axes, include, exclude):
    """The rules without most of those that a channel refuses: random ones nearly always repeat a
    build.
    """
    blocks = [axes]
    for rule in include:
        block = {**axes, **rule}
        if not any(
            in_product(block, key) and in_product(other, key)
            for other in blocks
            for key in UNIVERSE
        ):
            blocks.append(block)
    known = {axis: {word for block in blocks for word in block[axis]} for axis in AXES}
    exclude = [
        {axis: words for axis, words in rule.items() if set(words) <= known[axis]}
        for rule in exclude
    ]
    return [rule for rule in include if {**axes, **rule} in blocks[1:]], [
        rule for rule in exclude if rule
    ]


@examples(300)
@given(AXES_OF_CHANNEL, RULES, RULES, st.sampled_from([True, True, False]))
def test_offered_is_axes_and_includes_without_excludes(axes, include, exclude, tidy):
    if tidy:
        include, exclude = sensible(axes, include, exclude)
    blocks = [axes, *({**axes, **rule} for rule in include)]
    everything = [[key for key in UNIVERSE if in_product(block, key)] for block in blocks]
    offered = [
        [k for k in keys if not any(holds(rule, k) for rule in exclude)] for keys in everything
    ]
    flat = [key for keys in offered for key in keys]
    idle = any(not keys for keys in offered[1:])
    loose = any(not any(holds(rule, k) for keys in everything for k in keys) for rule in exclude)
    known = {axis: {word for block in blocks for word in block[axis]} for axis in AXES}
    foreign = any(set(words) - known[axis] for rule in exclude for axis, words in rule.items())
    refused = len(set(flat)) != len(flat) or idle or loose or foreign
    event(f"refused: {refused}, with include: {bool(include)}, with exclude: {bool(exclude)}")
    if refused:
        with pytest.raises(RuleError):
            make(axes, include, exclude)
        return
    channel = make(axes, include, exclude)
    builds = [
        (b.package, b.platform, b.variant.gpu, b.variant.cpu, b.variant.python, b.cuda)
        for b in channel.builds
    ]
    assert len(builds) == len(flat)
    assert set(builds) == set(flat)
    for package, platform, gpu, cpu, python, cuda in UNIVERSE:
        versions = channel.cudas(package, Variant(gpu, cpu, python), platform)
        assert (cuda in versions) == ((package, platform, gpu, cpu, python, cuda) in set(flat))


def axes(**given_axes):
    return {axis: words[:1] for axis, words in WORDS.items()} | {"gpus": ["sm80"]} | given_axes


def test_builds_are_in_the_order_of_the_file():
    channel = make(
        axes(cpus=["avx512", "avx2"], cuda=["12.9", "12.8"]),
        [{"gpus": ["cpu"], "cpus": ["avx2"]}],
        [],
    )
    assert [build.alias for build in channel.builds] == [
        "pytorch-python311-cuda12_9-sm80-avx512",
        "pytorch-python311-cuda12_8-sm80-avx512",
        "pytorch-python311-cuda12_9-sm80-avx2",
        "pytorch-python311-cuda12_8-sm80-avx2",
        "pytorch-python311-cpu-avx2",
    ]


def test_exclude_is_stronger_than_include():
    channel = make(axes(), [{"gpus": ["sm90"], "cpus": ["avx2", "avx512"]}], [{"cpus": ["avx512"]}])
    assert [build.variant.group for build in channel.builds] == ["sm80-avx2", "sm90-avx2"]


def test_first_cuda_that_is_offered_is_the_default():
    channel = make(
        axes(gpus=["sm80", "sm90"], cuda=["12.9", "12.8"]), [], [{"gpus": ["sm80"], "cuda": "12.9"}]
    )
    assert channel.cudas("torch", Variant("sm90", "avx2", "py311"), "linux") == ("12.9", "12.8")
    assert (
        channel.pins("torch", Variant("sm80", "avx2", "py311"), "linux").options["cuda"] == "12.8"
    )
    assert (
        channel.pins("torch", Variant("sm80", "avx2", "py311"), "linux", "12.9").options["cuda"]
        == "12.9"
    )
    assert (
        channel.pins("torch", Variant("sm75", "avx2", "py311"), "linux").options["cuda"] == "12.9"
    )
    assert channel.cudas("torch", Variant("sm75", "avx2", "py311"), "linux") == ()


def test_exceptions_go_by_every_axis(read, channels):
    text = f"""{channels}    cudnn: "9.13.0"
    exceptions:
      - {{gpus: [sm80], cuda: "12.8", cudnn: "9.10.2"}}
      - {{gpus: [sm80], pythons: [py312], blas: openblas}}
      - {{gpus: [cpu], cudnn: null}}
"""
    channel = read(text).channel("one")
    sm80, other = Variant("sm80", "avx2", "py312"), Variant("sm80", "avx2", "py311")
    options = channel.pins("torch", sm80, "linux").options
    assert (options["cudnn"], options["blas"]) == ("9.13.0", "openblas")
    assert channel.pins("torch", sm80, "linux", "12.8").options["cudnn"] == "9.10.2"
    assert channel.pins("torch", other, "linux").options["blas"] is None
    assert channel.pins("torch", Variant("cpu", "avx2", "py311"), "linux").options["cudnn"] is None


def test_extends_takes_over_what_is_not_written(read, channels):
    heirs = """\
  two:
    extends: one
    summary: second
    pythons: [py313]
    exclude:
      - {gpus: [cpu]}
  three:
    summary: third
    extends: two
    exclude: []
    ptx: true
"""
    matrix = read(channels + heirs)
    two, three = matrix.channel("two"), matrix.channel("three")
    assert (two.text.summary, two.text.torch, two.cuda) == ("second", "2.9.1", ("12.9", "12.8"))
    assert {build.variant.python for build in two.builds} == {"py313"}
    assert len(two.builds) == 2 * 2 * 2
    assert three.text.ptx
    assert len(three.builds) == len(two.builds) + 2
    assert list(matrix.channels) == ["one", "two", "three"]
    assert [b.channel for b in matrix.builds()] == ["one"] * 20 + ["two"] * 8 + ["three"] * 10


def test_a_parent_may_stand_after_its_heir(read, channels):
    heir = "  zero:\n    extends: one\n    summary: before\n    pythons: [py310]\n"
    matrix = read(channels.replace("channels:\n", "channels:\n" + heir))
    assert {build.variant.python for build in matrix.builds("zero")} == {"py310"}
    assert list(matrix.channels) == ["zero", "one"]
