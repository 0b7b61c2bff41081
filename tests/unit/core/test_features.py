"""The features of PyTorch in a plan: which are on, which are missing beside the official wheel, and
why.
"""

from pathlib import Path

import pytest

from farm.plan.build_variables import feature_rows
from tests.plans import plan_of
from tools.features_page import OUT, page

PROJECT = Path(__file__).parents[3]


def test_a_whole_pytorch_for_kepler():
    plan = plan_of("sm35-avx-py311", channel="debian-2.6.0")
    assert {"onednn", "mkl", "gloo", "tensorpipe", "nccl", "kineto", "xnnpack", "qnnpack"} <= set(
        plan.features
    )
    [_, (_, without)] = feature_rows(plan.features, plan.without)
    assert {"FBGEMM (needs AVX2)", "memory-efficient attention (needs sm_50)"} <= set(
        without.split("; ")
    )
    page = " ".join(
        (PROJECT / "docs" / "tutorials" / "k40-in-ten-minutes.md")
        .read_text(encoding="utf-8")
        .split()
    )
    assert all(
        f"{what}: {text}." in page for what, text in feature_rows(plan.features, plan.without)
    )
    assert plan.env["USE_NCCL"] == "1"
    assert plan.env["USE_FBGEMM"] == "0"
    nccl = next(part for part in plan.parts if part.into == "third_party/nccl")
    assert nccl.source.package == "nvidia-nccl-cu11"
    assert "nvidia-nccl-cu11" in {wheel.package for wheel in plan.library_wheels}


def test_the_page_of_features_is_current():
    assert OUT.read_text(encoding="utf-8") == page(), "run `make generate`"


def test_a_wheel_for_the_cpu_misses_nothing_of_cuda():
    plan = plan_of("cpu-sse41-py311", channel="debian-2.6.0")
    assert "onednn" in plan.features
    assert not {"nccl", "magma", "flash-attention"} & {*plan.features, *plan.without}
    assert not any(part.into == "third_party/nccl" for part in plan.parts)
    assert (
        plan_of("cpu-sse41-py311", channel="debian-2.6.0", without="nccl,magma").digest
        == plan.digest
    )


def test_nccl_needs_code_for_the_card():
    plan = plan_of("sm90-avx-py311", channel="debian-2.6.0")
    assert plan.without["nccl"].startswith("nvidia-nccl-cu11 2.21.5 has no code for sm90")
    assert plan.env["USE_NCCL"] == "0"


def test_only_what_the_official_wheel_for_the_same_kind_of_machine_has_counts_as_lacking():
    arm = plan_of("cpu-armv8_2-py311", channel="debian-2.6.0-arm").without
    assert "acl" in arm
    assert not {"mkl", "itt", "fbgemm"} & {*arm}
    assert "acl" not in plan_of("cpu-avx2-py311", channel="debian-2.6.0").without


@pytest.mark.parametrize(
    "words",
    [
        "kineto,nccl|NCCL , Kineto,magma,nccl|kineto,nccl",
        "distributed|torch.distributed,gloo|distributed,gloo,nccl",
    ],
)
def test_without_leaves_features_out_in_any_spelling_and_what_needs_them(words):
    first, second, gone = words.split("|")
    plan, other = (
        plan_of("sm35-avx-py311", channel="debian-2.6.0", without=names)
        for names in (first, second)
    )
    assert set(gone.split(",")) <= set(plan.without) - set(plan.features)
    assert (other.digest, other.features) == (plan.digest, plan.features)
    assert plan.options["without"] == first


def test_the_channels_for_vllm_have_torch_distributed():
    plan = plan_of("sm90-avx512-py313", channel="pytorch-2.9-vllm-0.15.1")
    assert {"distributed", "gloo", "nccl"} <= set(plan.features)
