"""What people really asked for and lost days over, each by its own name."""

import pytest

from farm import catalog
from farm.plan.compat import check, solve
from farm.plan.compat.host import parse_msvc
from farm.plan.variant import Variant

RTX_5070 = 120


def test_rtx_5070_with_cuda_12_3_needs_12_8(stack, told):
    asked = stack("sm120-avx2-py311", cuda="12.3", torch="2.7.1", gpu=RTX_5070, gpu_name="RTX 5070")
    reason = told(asked, "cuda-sm")
    assert "CUDA 12.3 cannot compile for sm120 (Blackwell, GeForce RTX 5070)" in reason.text
    assert "CUDA 12.8 to 13.5 can" in reason.text
    assert (reason.severity, reason.nearest) == ("error", "--cuda 12.8")


def test_arch_list_8_9_is_the_wrong_architecture_for_an_rtx_5070(stack, told):
    asked = stack("sm120-avx2-py311", cuda="12.8", torch="2.7.1", gpu=RTX_5070, gpu_name="RTX 5070", arch_list="8.9")
    reason = told(asked, "arch-list-gpu")
    assert "RTX 5070 (sm_120)" in reason.text
    assert (reason.severity, reason.nearest) == ("error", "--arch-list '12.0'")


def test_ptx_of_8_9_would_run_on_an_rtx_5070(stack, silent):
    assert silent(stack("sm120-avx2-py311", cuda="12.8", torch="2.7.1", arch_list="8.9+PTX"), "arch-list-gpu")


def test_a_wheel_for_sm89_has_nothing_for_an_rtx_5070(stack, told):
    reason = told(stack("sm89-avx2-py311", cuda="12.8", torch="2.7.1", gpu=RTX_5070), "arch-list-gpu")
    assert reason.nearest == "--variant sm120-avx2-py311"


@pytest.mark.parametrize("msvc", ["2022", "VS2022", "14.44", "19.40"])
def test_visual_studio_2022_with_cuda_12_3(stack, told, msvc):
    reason = told(stack("sm89-avx512-py311", "windows", cuda="12.3", torch="2.5.1", msvc=parse_msvc(msvc)), "cuda-msvc")
    assert "1910 to 1939" in reason.fact
    assert (reason.severity, reason.nearest) == ("error", "--msvc 14.39")


def test_visual_studio_2022_before_17_10_with_cuda_12_3(stack, silent):
    assert silent(stack("sm89-avx512-py311", "windows", cuda="12.3", torch="2.5.1", msvc=1939), "cuda-msvc")


def test_msvc_19_40_with_cuda_11_8(stack, told):
    reason = told(
        stack("sm86-avx512-py311", "windows", cuda="11.8", torch="2.0.1", msvc=parse_msvc("19.40")), "cuda-msvc"
    )
    assert "MSVC 19.40 (VS 2022, toolset 14.40)" in reason.text
    assert reason.nearest == "--msvc 14.39"


def test_msvc_19_40_with_cuda_11_8_for_avx2_goes_back_to_2019(stack, told):
    """VS 2022 before 17.9.4 leaks AVX-512 into AVX2 code: 14.39 would only trade one trouble for another."""
    asked = stack("sm35-avx2-py311", "windows", cuda="11.8", torch="2.0.1", msvc=parse_msvc("19.40"))
    assert told(asked, "cuda-msvc").nearest == "--msvc 14.29"


def test_visual_studio_2022_with_cuda_11_4_is_in_doubt(stack, told):
    reason = told(stack("sm35-avx-py311", "windows", cuda="11.4", torch="2.0.1", msvc=1935), "cuda-msvc")
    assert reason.severity == "warning"
    assert "unconfirmed" in reason.fact


def test_the_whole_rtx_5070_log_needs_two_changes(stack, told):
    asked = stack(
        "sm120-avx2-py311",
        "windows",
        cuda="12.3",
        torch="2.7.1",
        gpu=RTX_5070,
        arch_list="8.9",
        msvc=parse_msvc("2022"),
    )
    errors = {reason.rule for reason in check(asked) if reason.severity == "error"}
    assert errors == {"cuda-sm", "arch-list-gpu", "cuda-msvc"}
    assert told(asked, "cuda-msvc").nearest == "--cuda 12.8"  # an older compiler would leave the card without code
    solved = solve(asked)
    assert (solved.cuda, solved.arch_list, solved.msvc, solved.torch) == ("12.8", "12.0", 1944, "2.7.1")


def test_nearest_prefers_what_helps_the_other_errors_too(stack, told):
    """Upstream built 2.7.1 with 11.8 and 12.6 as well, but neither compiles for the card."""
    asked = stack("sm120-avx2-py311", cuda="12.3", torch="2.7.1")
    assert told(asked, "torch-official").nearest == "--cuda 12.8"


@pytest.mark.parametrize("cudnn", ["8.8.0", "8.9.7", "9.10.2"])
def test_k40_with_cudnn_8_9(stack, told, cudnn):
    reason = told(stack("sm35-avx-py311", cuda="11.7", torch="2.0.1", cudnn=cudnn), "cudnn-sm")
    assert "sm35 (Kepler, Tesla K40)" in reason.text
    assert (reason.severity, reason.nearest) == ("error", "--cudnn 8.7.0")


def test_gtx_1080_with_cudnn_9_11_goes_back_to_9_10(stack, told):
    reason = told(stack("sm61-avx2-py313", cuda="12.8", torch="2.8.0", cudnn="9.13.0"), "cudnn-sm")
    assert reason.nearest == "--cudnn 9.10.2"


def test_sm35_with_cuda_12(stack, told):
    asked = stack("sm35-avx-py311", cuda="12.1", torch="2.0.1")
    assert told(asked, "cuda-sm").nearest == "--cuda 11.8"
    twice = told(asked, "cuda-driver-gpu")
    assert (twice.severity, twice.nearest) == ("error", "--cuda 11.8")
    assert "525" in twice.fact
    assert "470" in twice.fact


def test_sm35_with_cuda_12_and_torch_2_9_changes_both(stack, told):
    reason = told(stack("sm35-avx-py311", cuda="12.6", torch="2.9.1"), "cuda-sm")
    assert reason.nearest == "--cuda 11.8 --torch 2.7.1"


def test_3_5_ptx_alone_on_a_470_driver_is_dead_weight_for_a_k40(stack, told):
    """The SASS of the same entry runs on the card, so this is a warning."""
    asked = stack("sm35-avx-py311", cuda="11.7", torch="2.0.1", driver="470.82.01", arch_list="3.5+PTX")
    reason = told(asked, "ptx-driver")
    assert "cannot compile the PTX" in reason.text
    assert "only the SASS of the list runs" in reason.text
    assert "515.48.07" in reason.fact
    assert (reason.severity, reason.nearest) == ("warning", "--arch-list '3.5'")


def test_3_5_ptx_alone_on_a_470_driver_is_nothing_for_a_gtx_980(stack, told):
    asked = stack("sm52-avx-py311", cuda="11.7", torch="2.0.1", driver="470", arch_list="3.5+PTX")
    reason = told(asked, "ptx-driver")
    assert "sm52 (Maxwell, GeForce GTX 980) gets nothing to run" in reason.text
    assert (reason.severity, reason.nearest) == ("error", "--arch-list '5.2'")


def test_ptx_of_cuda_11_4_is_compiled_by_a_470_driver(stack, silent):
    asked = stack("sm52-avx-py311", cuda="11.4", torch="2.0.1", driver="470", arch_list="3.5+PTX")
    assert silent(asked, "ptx-driver")


def test_ptx_of_cuda_11_7_for_kepler_warns_without_a_driver(stack, told, silent):
    """No Kepler has a driver newer than 470."""
    assert told(stack("sm35-avx-py311", cuda="11.7", torch="2.0.1", ptx=True), "ptx-driver").nearest == "--no-ptx"
    assert silent(stack("sm86-avx-py311", cuda="11.7", torch="2.0.1", ptx=True), "ptx-driver")


def test_torch_2_0_1_with_numpy_2(stack, told):
    reason = told(stack("sm35-avx-py311", cuda="11.7", torch="2.0.1", numpy="2.0.2"), "torch-numpy")
    assert "Numpy is not available" in reason.text
    assert (reason.severity, reason.nearest) == ("error", "--numpy 1.26.4")


def test_torch_2_3_1_with_numpy_2(stack, silent):
    assert silent(stack("sm70-avx-py311", cuda="11.8", torch="2.3.1", numpy="2.0.2"), "torch-numpy")


def test_10_0_in_the_arch_list_of_torch_2_5(stack, told):
    reason = told(stack("sm100-avx512-py312", cuda="12.8", torch="2.5.1", arch_list="10.0"), "arch-list")
    assert "torch 2.5.1 does not read '10.0'" in reason.text
    assert "torch 2.6.0 is the first that does" in reason.text
    # CUDA 12.8 is the first for the card, and 2.7.1 the first release that upstream built with it.
    assert (reason.severity, reason.nearest) == ("error", "--torch 2.6.0")
    for changed in ("2.6.0", "2.7.1"):
        after = check(stack("sm100-avx512-py312", cuda="12.8", torch=changed, arch_list="10.0"))
        assert not [found for found in after if found.severity == "error"]


def test_9_0a_is_read_from_2_5_on(stack, told, silent):
    assert told(stack("sm90-avx512-py312", cuda="12.1", torch="2.3.1", arch_list="9.0a"), "arch-list")
    assert silent(stack("sm90-avx512-py312", cuda="12.1", torch="2.5.1", arch_list="9.0a"), "arch-list")


def test_sse41_under_msvc_is_sse2(stack, told, silent):
    reason = told(stack("sm35-sse41-py311", "windows", cuda="11.4", torch="2.0.1"), "msvc-cpu")
    assert "MSVC has no switch for sse41: the wheel is really SSE2" in reason.text
    assert (reason.severity, reason.nearest) == ("warning", "--variant sm35-avx-py311")
    assert silent(stack("sm35-sse41-py311", cuda="11.7", torch="2.0.1"), "msvc-cpu")


@pytest.mark.parametrize("cpu", ["avx512vnni", "avx512bf16"])
def test_avx512vnni_is_no_switch_of_pytorch(stack, told, cpu):
    asked = stack(f"sm86-{cpu}-py312", cuda="12.6", torch="2.7.1")
    reason = told(asked, "torch-cpu")
    assert f"-m{cpu}" in reason.text
    assert "it builds, but only the host compiler's" in reason.text
    assert (reason.severity, reason.nearest) == ("warning", "--variant sm86-avx512-py312")
    assert [found for found in check(asked) if found.severity == "error"] == []


def test_torch_2_9_with_cuda_11_8(stack, told):
    reason = told(stack("sm75-avx2-py312", cuda="11.8", torch="2.9.1"), "torch-cuda")
    assert "torch 2.9.1 needs CUDA 12.0 or newer, not 11.8" in reason.text
    assert (reason.severity, reason.nearest) == ("error", "--cuda 12.6")


def test_torch_2_9_with_cuda_11_8_and_its_cudnn_changes_one_thing_rather_than_two(stack, told):
    """CUDA 12 would need another cuDNN too; the closest torch that takes 11.8 needs nothing else."""
    reason = told(stack("sm75-avx2-py312", cuda="11.8", torch="2.9.1", cudnn="8.7.0"), "torch-cuda")
    assert reason.nearest == "--torch 2.8.0"


def test_python_3_13_with_torch_2_0_1(stack, told):
    reason = told(stack("sm75-avx2-py313", cuda="11.7", torch="2.0.1"), "torch-python")
    assert "py38, py39, py310, py311" in reason.fact
    assert (reason.severity, reason.nearest) == ("error", "--variant sm75-avx2-py311")


def test_python_3_13_with_torch_2_5_1_is_for_linux_alone(stack, told, silent):
    assert silent(stack("sm75-avx2-py313", cuda="11.8", torch="2.5.1"), "torch-python")
    assert told(stack("sm75-avx2-py313", "windows", cuda="11.8", torch="2.5.1"), "torch-python")


FLASH = frozenset({"USE_FLASH_ATTENTION"})


def test_flash_attention_on_windows(stack, told):
    reason = told(
        stack("sm86-avx2-py311", "windows", cuda="12.6", torch="2.7.1", switches=FLASH), "switch-flash-attention"
    )
    assert "FLASH_ATTENTION is not for windows" in reason.text
    assert (reason.severity, reason.nearest) == ("error", "--no-flash-attention")


def test_flash_attention_below_sm80(stack, told, silent):
    reason = told(stack("sm75-avx2-py311", cuda="12.6", torch="2.7.1", switches=FLASH), "switch-flash-attention")
    assert "needs sm_80 or newer, not sm75" in reason.text
    assert (reason.severity, reason.nearest) == ("error", "--no-flash-attention")
    assert silent(stack("sm86-avx2-py311", cuda="12.6", torch="2.7.1", switches=FLASH), "switch-flash-attention")


@pytest.mark.parametrize("switch", ["USE_FBGEMM", "USE_NNPACK"])
def test_fbgemm_and_nnpack_are_off_for_avx_only(stack, told, silent, switch):
    rule, flag = f"switch-{switch[4:].lower()}", f"--no-{switch[4:].lower()}"
    reason = told(stack("sm61-avx-py313", cuda="12.8", torch="2.8.0", switches=frozenset({switch})), rule)
    assert "needs avx2 or newer, avx CPUs have less" in reason.text
    assert (reason.severity, reason.nearest) == ("error", flag)
    assert silent(stack("sm61-avx2-py313", cuda="12.8", torch="2.8.0", switches=frozenset({switch})), rule)


def test_onednn_is_on_at_every_level(stack, silent):
    """It chooses its code at run time, from SSE4.1 on."""
    asked = frozenset({"USE_MKLDNN"})
    assert silent(stack("cpu-sse41-py311", torch="2.6.0", switches=asked), "switch-mkldnn")


def test_sm35_with_torch_2_3_is_in_doubt(stack, told):
    reason = told(stack("sm35-avx-py311", cuda="11.8", torch="2.3.1"), "torch-sm")
    assert reason.severity == "warning"
    assert "no build of this release for sm_35 is known" in reason.fact


def test_kepler_2_7_1_with_cuda_11_4_is_reported_to_fail(stack, told):
    reason = told(stack("sm35-avx-py311", cuda="11.4", torch="2.7.1"), "torch-cuda-reported")
    assert reason.severity == "warning"


def test_drivers_of_a_k40(stack, told, silent):
    asked = stack("sm35-avx-py311", cuda="11.7", torch="2.0.1", driver="535.104")
    assert told(asked, "driver-gpu").nearest == "--driver 470"
    limited = told(stack("sm35-avx-py311", cuda="11.7", torch="2.0.1", driver="470.82.01"), "driver-limited")
    assert (limited.severity, limited.nearest) == ("warning", None)
    old = told(stack("sm35-avx-py311", "windows", cuda="11.4", torch="2.0.1", driver="441.22"), "driver-cuda")
    assert old.severity == "error"
    assert silent(stack("sm35-avx-py311", cuda="11.4", torch="2.0.1", driver="470"), "driver-limited")


def test_gcc_for_cuda_and_for_torch(stack, told, silent):
    assert told(stack("sm35-avx-py311", cuda="11.8", torch="2.0.1", gcc=13), "cuda-gcc").nearest == "--gcc 11"
    assert told(stack("sm50-avx-py311", cuda="11.8", torch="2.6.0", gcc=8), "torch-gcc").nearest == "--gcc 9"
    assert silent(stack("sm50-avx-py311", cuda="11.8", torch="2.6.0", gcc=11), "cuda-gcc")


def test_sm87_with_cuda_11_4_is_in_doubt(stack, told):
    reason = told(stack("sm87-avx2-py311", cuda="11.4", torch="2.0.1"), "cuda-sm")
    assert reason.severity == "warning"
    assert "is not known to compile" in reason.text


def test_numpy_without_wheels_for_the_python(stack, told):
    assert told(stack("sm75-avx2-py313", cuda="12.6", torch="2.7.1", numpy="1.26.4"), "numpy-python").nearest == (
        "--numpy 2.3.2"
    )
    assert told(stack("sm75-avx2-py39", cuda="12.6", torch="2.7.1", numpy="2.3.2"), "numpy-python")


def test_what_the_demo_builds_is_clean(stack):
    asked = stack("sm35-avx-py311", base="debian-bookworm", toolkit="debian", cuda="11.8")
    assert check(asked) == []
    assert solve(asked) == asked


def test_the_kepler_stack_is_clean(stack):
    asked = stack(
        "kepler-avx-py311", base="debian-bookworm", toolkit="nvidia", cuda="11.7", torch="2.0.1", cudnn="8.7.0"
    )
    assert check(asked) == []


def test_a_cuda_that_is_not_known(stack, told):
    assert told(stack("sm86-avx2-py311", cuda="12.7", torch="2.5.1"), "cuda").nearest == "--cuda 12.4"
    assert told(stack("sm86-avx2-py311", cuda="abc"), "cuda").severity == "error"


def test_nothing_is_suggested_that_was_not_asked(stack, told):
    """A stack without cuDNN, driver and compiler gets none in a suggestion."""
    nearest = told(stack("sm35-avx-py311", cuda="12.6", torch="2.9.1"), "cuda-sm").nearest
    assert set(nearest.split()[::2]) <= {"--cuda", "--torch"}


def test_sets_of_gpus_are_judged_by_each(stack, told):
    asked = stack("legacy-avx-py311", cuda="12.1", torch="2.0.1")
    found = [reason.text for reason in check(asked) if reason.rule == "cuda-sm"]
    assert len(found) == len([sm for sm in Variant.parse("legacy-avx-py311").sms if sm < 50]) == 2
    assert told(asked, "cuda-sm").nearest == "--cuda 11.8"


def test_the_debian_toolkit_has_one_cudnn_and_no_nvml(stack, told):
    def asked(cudnn, *parts):
        known = {"base": "debian-bookworm", "toolkit": "debian", "cuda": "11.8"}
        return stack("sm50-avx-py311", cudnn=cudnn, components=("nvcc", "headers", "cudart", *parts), **known)

    reason = told(asked("8.9.7", "nvml"), "toolkit-components")
    assert "has no nvml, cuDNN 8.9.7" in reason.text
    assert reason.nearest == "--toolkit nvidia"
    assert "has no nvml," in told(asked("8.7.0", "nvml"), "toolkit-components").text
    assert not [reason for reason in check(asked("8.7.0")) if reason.rule == "toolkit-components"]


def test_the_debian_toolkit_has_what_canary_needs(stack, silent):
    parts = ("nvcc", "headers", "cudart")
    assert silent(
        stack("sm35-avx-py311", base="debian-bookworm", toolkit="debian", cuda="11.8", components=parts),
        "toolkit-components",
    )


@pytest.mark.parametrize("name", catalog.architectures().architectures)
def test_every_branch_around_a_cards_own_is_judged(stack, name):
    """Too old below the first branch that knows the card, an early one below the one that guides ask for, else fine."""
    card = catalog.architectures().architectures[name]
    first, wanted, last = card.first_driver or 0, card.wanted_driver or 0, card.last_driver or 10_000
    for branch in {first - 1, first, wanted - 1, wanted, wanted + 1, last, last + 30} & set(range(300, 1000)):
        cpu = "armv9" if name in {"sm53", "sm62", "sm72", "sm87", "sm110", "sm121"} else "avx2"
        said = {reason.rule for reason in check(stack(f"{name}-{cpu}-py311", driver=f"{branch}.10"))}
        assert ("driver-gpu-old" in said) == (branch < first), branch
        assert ("driver-gpu-early" in said) == (first <= branch < wanted), branch
        assert ("driver-gpu" in said) == (branch > last), branch


def test_ptx_of_a_set_may_meet_the_driver_of_its_newest_card(stack, silent):
    """580 is the last driver for Volta, not for Turing, which the set has too."""
    newest = [name for name, cuda in catalog.toolkits().items() if cuda.driver("linux")][-1]
    assert not silent(stack("sm70-avx2-py311", cuda=newest, ptx=True), "ptx-driver")
    assert silent(stack("legacy-avx2-py311", cuda=newest, ptx=True), "ptx-driver")
