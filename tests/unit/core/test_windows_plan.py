"""Plans for Windows: what reaches the compilers."""

import pytest

from farm.platforms.windows import windows_tools
from tests.plans import plan_of


def test_nvcc_is_told_to_keep_the_environment_of_the_toolset():
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
