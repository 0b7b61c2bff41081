"""The wheel for each recorded machine."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from farm import catalog
from farm.machine.cards import compatible
from farm.machine.detect import choose, cpu_levels
from farm.machine.readings import Cpu, Gpu, Missing, Os, Python, Readings
from farm.plan.recommend import FarmBuild, buildable_here, machine_of
from farm.plan.variant import PYTHONS, Variant

NAMES = sorted(path.stem for path in (Path(__file__).parent / "readings").glob("*.json"))
ROOT = Path(__file__).parents[3]

MACHINES = yaml.safe_load(Path(__file__).with_name("machines.yaml").read_text(encoding="utf-8"))


def own(variant: str, channel: str = "a", proved: str = "", **more) -> FarmBuild:
    """A build for a machine, as `buildable_here` finds it."""
    known = {
        "torch": "2.8.0",
        "cuda": "12.8",
        "words": f"--variant {variant} --channel {channel}",
        "cost": "7 CPU hours",
    }
    return FarmBuild(Variant.parse(variant), channel, proved=proved, **known | more)


@pytest.mark.parametrize("name", NAMES)
def test_recorded_machines(recommend, name):
    assert recommend(name).variant == MACHINES["by hardware"][name]


class TestDecisionTreeOfTheSeed:
    """Step 3 of its "Quick Decision Tree": what /proc/cpuinfo shows -> the CPU level."""

    AVX512 = ("avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq")

    @pytest.mark.parametrize(
        ("features", "level"),
        [
            ((*AVX512, "avx512_bf16", "avx512_vnni"), "avx512"),
            (AVX512, "avx512"),
            (("avx", "avx2", "fma", "f16c"), "avx2"),
            (("sse4_1", "avx"), "avx"),
            (("sse4_1",), "sse41"),
        ],
    )
    def test_levels_of_recorded_x86_machines(self, record, replay, features, level):
        data = record("laptop-haswell")
        data["files"]["/proc/cpuinfo"] = f"model name: a CPU\nflags: {' '.join(features)}\n"
        assert choose(replay(data)).variant == f"cpu-{level}-py313"

    @pytest.mark.parametrize(
        ("more", "level"), [("sve sve2", "armv9"), ("", "armv8_2"), ("sve", "armv8_2")]
    )
    def test_levels_of_recorded_arm_machines(self, record, replay, more, level):
        data = record("h100-graviton3")
        data["files"]["/proc/cpuinfo"] = f"Features: fp asimd atomics asimdrdm {more}\n"
        assert choose(replay(data)).variant == f"sm90-{level}-py313"


def test_avx512_without_the_parts_that_the_level_uses_is_not_enough(record, replay):
    """Xeon Phi has avx512f and neither bw, vl nor dq."""
    data = record("laptop-haswell")
    data["files"]["/proc/cpuinfo"] = "flags: avx avx2 fma f16c avx512f avx512cd avx512er avx512pf\n"
    assert choose(replay(data)).variant == "cpu-avx2-py313"


def test_the_k40_gets_its_last_driver_named_and_no_step_up(recommend):
    found = recommend("k40-470-sandybridge")
    assert (
        "470 is the last driver branch for Tesla K40c: do not install a newer one" in found.warnings
    )
    assert "Tesla K40c: sm_35 (by its name, from the catalogue)" in found.reasons
    others = {"kepler-avx-py313", "legacy-avx-py313", "cpu-avx-py313", "sm35-sse41-py313"}
    assert others <= set(found.alternatives)


def test_graviton3_as_it_is_gets_no_sve2_code_and_the_reason(recommend):
    found = recommend("h100-graviton3")
    assert found.variant == "sm90-armv8_2-py313"
    assert any("SVE but not SVE2" in warning and "SIGILL" in warning for warning in found.warnings)
    assert not any("SVE2" in warning for warning in recommend("h100-graviton3-sve2").warnings)


def test_a_card_that_is_too_old_is_named_with_the_reason(recommend):
    found = recommend("gtx680-470")
    assert found.variant == "cpu-avx-py311"
    text = next(warning for warning in found.warnings if "GTX 680" in warning)
    assert "sm_30 (Kepler), too old for every variant: CUDA 10.2 was the last" in text


def test_a_name_with_several_chips_takes_what_the_driver_can_drive(recommend, record, replay):
    found = recommend("gt730-470")
    assert found.variant == "sm35-avx2-py311"
    assert any(
        "sm_21 and sm_30 and sm_35" in warning and "taken for sm_35" in warning
        for warning in found.warnings
    )


def test_several_gpus_share_one_variant(recommend):
    found = recommend("k40-and-gtx1080ti")
    assert (
        found.reasons[0]
        == "Tesla K40c is sm_35; GeForce GTX 1080 Ti is sm_61: the set legacy holds code for all "
        "of them"
    )
    assert {"sm35-avx-py311", "sm61-avx-py311"} <= set(found.alternatives)
    found = recommend("rtx3090-and-rtx4090")
    assert found.variant == "sm86-avx512-py313"
    assert found.reasons[0].endswith(
        "the lowest, sm_86, as no named set holds them all; the others run it too"
    )


def test_the_driver_that_ends_first_is_the_limit(recommend):
    warnings = [
        warning
        for warning in recommend("k40-and-gtx1080ti").warnings
        if "last driver branch" in warning
    ]
    assert warnings == ["470 is the last driver branch for Tesla K40c: do not install a newer one"]
    assert not any(
        "last driver" in warning for warning in recommend("rtx3090-and-rtx4090").warnings
    )


def test_a_driver_beyond_the_last_branch(record, replay):
    data = record("k80-haswell")
    data["nvml"]["driver"] = "535.183.01"
    text = "driver 535.183.01 is newer than 470, the last branch for Tesla K80 (sm_37): install 470"
    assert text in choose(replay(data)).warnings


def test_gpus_that_share_nothing_say_which_is_left_out(record, replay):
    data = record("h100-zen4")
    data["nvml"]["devices"] = [
        ["NVIDIA H100 PCIe", "9.0", 1],
        ["NVIDIA GeForce RTX 3090", "8.6", 1],
    ]
    found = choose(replay(data))
    assert found.variant == "sm86-avx512-py313"
    assert found.reasons[0].endswith(
        "the lowest, sm_86, as no named set holds them all; sm_90 cannot run it"
    )


def test_a_card_without_a_driver_is_not_passed_over(recommend):
    found = recommend("k40-no-driver")
    assert found.warnings[0].startswith("1 NVIDIA display device(s) are on the PCI bus")


def test_unknown_gpus(record, replay):
    data = record("h100-zen4")
    data["nvml"]["devices"] = [["NVIDIA GeForce RTX 5071", None, 1]]
    found = choose(replay(data))
    assert found.variant == "cpu-avx512-py313"
    assert any("nearest names: GeForce RTX 5070" in warning for warning in found.warnings)
    data["nvml"]["devices"] = [["NVIDIA GeForce RTX 6090", "13.0", 1]]
    found = choose(replay(data))
    assert found.variant == "cpu-avx512-py313"
    assert any("sm_130, which no variant is for" in warning for warning in found.warnings)
    data["nvml"]["devices"] = [["NVIDIA Something", "8.8", 1]]
    found = choose(replay(data))
    assert found.variant == "sm86-avx512-py313"
    assert any("it runs sm_86 code" in warning for warning in found.warnings)


def test_the_driver_overrides_the_catalogue(record, replay):
    data = record("h100-zen4")
    data["nvml"]["devices"] = [["NVIDIA GeForce RTX 3090", "8.9", 1]]
    assert choose(replay(data)).variant == "sm89-avx512-py313"


def test_thor_under_its_old_number(record, replay):
    data = record("dgx-spark")
    data["nvml"]["devices"] = [["NVIDIA Thor", "10.1", None]]
    assert choose(replay(data)).variant == "sm110-armv9-py313"


def test_an_armv8_0_board_has_no_variant_and_a_reason(recommend):
    found = recommend("jetson-nano")
    assert (found.variant, found.submit, found.alternatives) == (None, None, ())
    assert found.warnings[0] == "the CPU lacks asimdrdm, atomics, which armv8_2 needs"


@pytest.mark.parametrize(
    "uname",
    [
        ["Windows", "11", "10.0.26100", "ARM64"],
        ["FreeBSD", "14", "x", "amd64"],
        ["Linux", "6", "x", "ppc64le"],
    ],
)
def test_systems_without_a_variant(record, replay, uname):
    data = record("laptop-haswell")
    data["uname"] = uname
    found = choose(replay(data))
    assert found.variant is None
    assert found.warnings[0].startswith("no variant is for ")


def test_intel_macs_have_no_variant(record, replay):
    data = record("m3-macbook")
    data["uname"][3] = "x86_64"
    data["commands"] = {
        "sw_vers -productVersion": [0, "13.6\n"],
        "sysctl -n hw.optional.arm64": [1, ""],
    }
    data["cpuid"]["features"] = ["avx", "avx2", "fma", "f16c"]
    found = choose(replay(data))
    assert found.variant is None
    assert found.warnings[0] == "no variant is for x86_64 on macOS"


def test_obstacles_to_any_wheel(record, replay):
    data = record("m3-macbook")
    data["commands"]["sw_vers -productVersion"] = [0, "12.2\n"]
    data["commands"]["sysctl -n sysctl.proc_translated"] = [0, "1\n"]
    warnings = choose(replay(data)).warnings
    assert any("Rosetta" in warning for warning in warnings)
    assert any(warning.startswith("macOS 12.2 is too old") for warning in warnings)
    data = record("laptop-haswell")
    data["libc"] = {"error": "the C library is not glibc"}
    assert any("manylinux" in warning for warning in choose(replay(data)).warnings)


class TestChannels:
    """Of what the channels offer the first build for the machine is recommended."""

    def test_the_first_build_is_taken_with_its_python_and_its_command(self, recommend):
        builds = [
            own("sm35-avx-py311", "tested", "built and run", lost=(61,)),
            own("kepler-avx-py311", "other"),
        ]
        found = recommend("k40-470-sandybridge", own=builds)
        assert (found.variant, found.channel, found.python) == (
            "sm35-avx-py311",
            "tested",
            "/usr/bin/python3.11",
        )
        assert found.submit == "farm submit --variant sm35-avx-py311 --channel tested"
        reason = (
            "channel tested: torch 2.8.0, CUDA 12.8; tested: built and run; 7 CPU hours; no "
            "code for sm_61"
        )
        assert reason in found.reasons
        assert "other builds for it: torch 2.8.0, CUDA 12.8 (other, never built)" in found.reasons

    def test_a_lower_cpu_level_is_explained_where_nothing_was_tested(self, recommend):
        text = "no channel that fits offers sm90-avx512 for a Python found here"
        assert text in recommend("h100-zen4", own=[own("sm90-avx2-py312")]).reasons
        assert (
            text not in recommend("h100-zen4", own=[own("sm90-avx2-py312", proved="built")]).reasons
        )

    def test_without_a_channel_the_hardware_decides(self, recommend):
        found = recommend("k80-haswell")
        assert (found.variant, found.submit) == ("sm37-avx2-py311", None)
        assert "no channel offers sm37-avx2-py311" in found.warnings


def test_levels_require_what_the_compiler_flags_allow():
    """Each `-m` flag of the catalogue is a feature that the level needs, and the other way
    round.
    """
    needs = {
        level: words
        for machine in catalog.cpu_features().levels.values()
        for level, words in machine.items()
    }
    assert set(catalog.cpu_levels()) - set(needs) == {"avx512bf16", "avx512vnni"}
    for name, level in catalog.cpu_levels().items():
        if level.machine == "x86_64" and name in needs:
            flags = {flag.removeprefix("-m").replace(".", "") for flag in level.gcc}
            assert {word.replace("_", "") for word in needs[name]} == flags, name


def test_binary_compatibility():
    assert compatible("sm37") == ["sm35"]
    assert compatible("sm89") == ["sm86", "sm80"]
    assert compatible("sm61") == ["sm60"]
    assert compatible("sm121") == ["sm120"]
    assert compatible("sm87") == []
    assert compatible("sm90") == []
    assert "sm62" not in compatible("sm61")
    assert "sm53" not in compatible("sm52")


WORDS = st.text(max_size=12)
FEATURES = st.lists(
    st.sampled_from(
        ["sse4_1", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16",
         "avx512_vnni", "sve", "sve2", "atomics", "asimdrdm"]
    ),
    max_size=15,
)  # fmt: skip
NAMES_OF_GPUS = st.sampled_from(
    ["Tesla K40c", "GT 730", "GTX 680", "RTX 5070", "Jetson Orin Nano", "Quadro M5000M"]
)
GPUS = st.builds(
    Gpu,
    name=st.one_of(WORDS, NAMES_OF_GPUS),
    capability=st.one_of(st.none(), st.from_regex(r"\A[0-9]{1,2}\.[0-9]\Z")),
    memory_mb=st.none(),
    source=st.just("nvml"),
)
READINGS = st.builds(
    Readings,
    os=st.builds(
        Os,
        system=st.sampled_from(["linux", "windows", "macos", "other"]),
        name=WORDS,
        version=WORDS,
        libc=st.one_of(st.none(), WORDS),
    ),
    cpu=st.builds(
        Cpu,
        machine=st.sampled_from(["x86_64", "aarch64", "arm64", "ppc64le"]),
        name=st.none(),
        microarchitecture=st.none(),
        features=FEATURES.map(tuple),
    ),
    gpus=st.lists(GPUS, max_size=3).map(tuple),
    driver=st.one_of(
        st.none(), WORDS, st.sampled_from(["470.256.02", "390.157", "550.54.14", "580.95.05"])
    ),
    unclaimed_gpus=st.integers(0, 2),
    pythons=st.lists(st.builds(Python, name=st.sampled_from(PYTHONS), path=WORDS), max_size=3).map(
        tuple
    ),
    running_python=st.sampled_from(PYTHONS),
    translated=st.booleans(),
    missing=st.lists(st.builds(Missing, what=WORDS, why=WORDS), max_size=2).map(tuple),
)


@given(READINGS)
def test_any_machine_gets_a_variant_that_its_cpu_runs_or_a_reason(readings):
    found = choose(readings)
    if found.variant is None:
        assert found.warnings
        assert not cpu_levels(readings.cpu, readings.os.system)
        return
    for name in (found.variant, *found.alternatives):
        variant = Variant.parse(name)
        assert variant.machine == readings.cpu.machine
        assert set(catalog.cpu_features().levels[variant.machine][variant.cpu]) <= set(
            readings.cpu.features
        )
    assert found.reasons
    assert found.variant not in found.alternatives


@pytest.mark.parametrize("builds", [[], [own("cpu-avx-py311")]])
def test_the_python_that_runs_the_farm_need_not_be_on_the_path(builds):
    """As where uv or pipx brought it: no other Python is found then."""
    found = choose(
        Readings(
            os=Os(system="linux", name="", version="", libc=None),
            cpu=Cpu(machine="x86_64", name=None, microarchitecture=None, features=("avx",)),
            gpus=(), driver=None, unclaimed_gpus=0, pythons=(), running_python="py311", translated=False, missing=(),
        ),
        own=builds,
    )  # fmt: skip
    assert found.variant == "cpu-avx-py311"
    assert "Python 3.11 is the one that runs this" in found.reasons


@pytest.mark.parametrize("driver", ["470.82.01", "550.54.14"])
def test_a_channel_with_many_variants_leaves_the_other_channels_their_turn(driver):
    machine = machine_of((70,), "windows-x86_64", driver=driver)
    channels = {build.channel for build in buildable_here(ROOT, machine)}
    assert {"kepler-2.0.1", "kepler-compat"} <= channels
