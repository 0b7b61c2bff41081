"""The rules, by subject: `gpus`, `toolchain` (the machine that builds), `pytorch`, `features`.

A rule is a function that yields its objections to a stack; no objection is a yes. `check` asks all
of them.
"""

from functools import lru_cache

from farm.plan.compat.reason import Reason, Rule
from farm.plan.compat.rules.features import switches_work
from farm.plan.compat.rules.gpus import (
    a_driver_runs_both,
    cuda_is_known,
    cuda_targets_gpu,
    driver_knows_gpu,
    driver_runs_cuda,
    driver_sees_gpu,
    machine_has_gpu,
    ptx_needs_driver,
    toolkit_is_for_jetson,
    wheel_has_code,
)
from farm.plan.compat.rules.pytorch import (
    arch_list_is_read,
    cudnn_fits,
    numpy_fits,
    torch_is_known,
    torch_makes_of_cpu,
    torch_takes_compiler,
    torch_takes_cuda,
    torch_takes_cudnn,
    torch_takes_gpu,
    torch_takes_python,
    upstream_left_gpu_behind,
)
from farm.plan.compat.rules.toolchain import (
    gcc_has_level,
    machine_of_cpu,
    msvc_has_level,
    msvc_keeps_avx2,
    nvcc_takes_gcc,
    nvcc_takes_msvc,
    platform_has_gpu,
    python_of_base,
    toolkit_has_components,
    toolkit_has_cuda,
    toolkit_is_pinned,
    words_have_their_feature,
)
from farm.plan.compat.stack import Stack

RULES: tuple[Rule, ...] = (
    cuda_is_known,
    machine_has_gpu,
    toolkit_is_for_jetson,
    driver_sees_gpu,
    cuda_targets_gpu,
    a_driver_runs_both,
    driver_knows_gpu,
    driver_runs_cuda,
    wheel_has_code,
    ptx_needs_driver,
    platform_has_gpu,
    machine_of_cpu,
    toolkit_has_cuda,
    toolkit_has_components,
    toolkit_is_pinned,
    words_have_their_feature,
    nvcc_takes_gcc,
    gcc_has_level,
    nvcc_takes_msvc,
    msvc_has_level,
    msvc_keeps_avx2,
    python_of_base,
    torch_is_known,
    torch_takes_cuda,
    upstream_left_gpu_behind,
    torch_takes_python,
    torch_takes_gpu,
    torch_takes_compiler,
    cudnn_fits,
    torch_takes_cudnn,
    arch_list_is_read,
    numpy_fits,
    torch_makes_of_cpu,
    switches_work,
)

CHANNEL_KEYS = {
    "cuda": "cuda",
    "cuda-sm": "gpus",
    "gpu-machine": "gpus",
    "mps": "gpus",
    "cuda-macos": "gpus",
    "machine": "cpus",
    "toolkit-platform": "platforms",
    "toolkit-cuda": "cuda",
    "toolkit-machine": "cpus",
    "toolkit-components": "toolkit",
    "toolkit-unpinned": "cuda",
    "free-threaded": "pythons",
    "base-python": "pythons",
    "torch": "torch",
    "torch-cuda": "cuda",
    "torch-python": "pythons",
    "cudnn": "cudnn",
    "arch-list": "gpus",
}
"""What no channel of ci/matrix.yaml may offer, by rule, and the key that is then at fault."""


@lru_cache(maxsize=1 << 14)  # the search for the nearest stack checks the same ones again and again
def _check(stack: Stack) -> tuple[Reason, ...]:
    return tuple(reason for rule in RULES for reason in rule(stack))


def check(stack: Stack) -> list[Reason]:
    """The reasons of the rules against the stack, in their order, without a nearest stack."""
    return list(_check(stack))
