"""Plans for Windows: what reaches the compilers."""

import pytest

from farm.base.errors import UsageError
from farm.plan.platforms.windows import windows_tools
from tests.plans import plan_of


def test_nvcc_keeps_the_environment_of_the_toolset():
    plan = plan_of("sm35-avx-py311", channel="kepler-2.0.1", platform="windows")
    assert plan.env["NVCC_APPEND_FLAGS"] == "--use-local-env"


def test_host_code_of_cuda_files_gets_the_define_that_other_host_code_gets():
    plan = plan_of("sm120-avx2-py311", channel="rtx50-windows", platform="windows")
    assert "/D_DISABLE_CONSTEXPR_MUTEX_CONSTRUCTOR" in plan.env["CXXFLAGS"].split()
    assert plan.env["NVCC_APPEND_FLAGS"].split() == [
        "--use-local-env",
        "-D_DISABLE_CONSTEXPR_MUTEX_CONSTRUCTOR",
    ]


@pytest.mark.parametrize("name", windows_tools().visual_studio)
def test_a_least_build_of_a_toolset_has_its_reason(name):
    product = windows_tools().visual_studio[name]
    assert bool(product.cuda_build) == bool(product.cuda_build_reason)


@pytest.mark.parametrize("channel", ["kepler-2.0.1", "kepler-2.7.1"])
def test_the_first_build_has_the_features_of_builds_that_are_known(channel):
    """Both public recipes of such wheels turn kineto off (pytorch/kineto#356)."""
    plan = plan_of("sm35-avx-py311", channel=channel, platform="windows")
    assert plan.env["USE_KINETO"] == "0"
    assert "--with kineto" in plan.without["kineto"]


def test_with_builds_what_the_channel_leaves_out():
    options = {"with": "kineto"}
    plan = plan_of("sm35-avx-py311", channel="kepler-2.0.1", platform="windows", **options)
    assert plan.env["USE_KINETO"] == "1"
    assert "kineto" not in plan.without


def test_without_leaves_out_more_than_the_channel_does():
    options = {"without": "itt"}
    plan = plan_of("sm35-avx-py311", channel="kepler-2.0.1", platform="windows", **options)
    assert {"kineto", "itt"} <= set(plan.without)


def test_an_unknown_feature_is_refused():
    options = {"with": "kinetto"}
    with pytest.raises(UsageError, match=r"kinetto \(from --with\)"):
        plan_of("sm35-avx-py311", channel="kepler-2.0.1", platform="windows", **options)
