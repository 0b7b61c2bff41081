"""Which code the BLAS takes on a CPU, from what it says itself; older code than the CPU has is a
warning.
"""

import pytest

from farm.smoke.probe.features import check_openblas, mkl_code, openblas_code
from farm.smoke.probe.recorder import FailedError, NotRunError, Warned

MKL = (
    "MKL_VERBOSE oneMKL 2024.0 Update 2 Product build 20240823 for Intel(R) 64 architecture {}, "
    "Lnx lp64 gnu_thread"
)
ISA = "onednn_verbose,v1,info,cpu,isa:{}"
CALLED = "MKL_VERBOSE SGEMM(N,N,128,128,128) 61.61us CNR:OFF Dyn:1 FastMM:1 TID:0  NThr:2"
# As the whole builds of 2.6.0 printed them on an emulated Sandy Bridge, on AMD's Zen and on
# Sapphire Rapids; AVX2: not seen.
SSE4 = "Intel(R) Streaming SIMD Extensions 4.2 (Intel(R) SSE4.2) enabled processors"
AVX2 = "Intel(R) Advanced Vector Extensions 2 (Intel(R) AVX2) enabled processors"
OTHER_MAKER = "Intel(R) Architecture processors"
AVX512 = "Intel(R) Advanced Vector Extensions 512 (Intel(R) AVX-512) with support for INT8, BF16"


@pytest.mark.parametrize(
    ("isa", "taken", "has"),
    [
        ("Intel AVX", SSE4, "AVX"),
        ("Intel AVX2", SSE4, "AVX2"),
        ("Intel AVX-512 with float16, Intel DL Boost and bfloat16 support", AVX2, "AVX-512"),
        ("Intel SSE4.1", SSE4, None),
        ("Intel AVX-512 with Intel DL Boost and bfloat16 support", OTHER_MAKER, None),
        ("Intel AVX2", AVX2, None),
        ("Intel AVX-512 with float16, Intel DL Boost and bfloat16 support", AVX512, None),
    ],
)
def test_mkl_that_takes_older_code_than_the_cpu_has_is_a_warning(isa, taken, has):
    code = mkl_code("\n".join([MKL.format(taken), ISA.format(isa), CALLED]))
    assert taken in code
    assert getattr(code, "warning", None) == (
        f"MKL takes older code on this CPU, which has {has}: products are slower" if has else None
    )


def test_mkl_that_does_nothing_is_a_failure():
    with pytest.raises(FailedError):
        mkl_code(ISA.format("Intel AVX2"))


@pytest.mark.parametrize(
    ("core", "capability", "warned"),
    [
        ("Prescott", "AVX512", True),
        ("Nehalem", "AVX2", True),
        ("Prescott", "DEFAULT", False),
        ("Zen", "AVX2", False),
    ],
)
def test_openblas_that_does_not_know_the_cpu_is_a_warning(core, capability, warned):
    code = openblas_code(core, capability)
    assert (code, isinstance(code, Warned)) == (core, warned)


def test_openblas_is_not_mentioned_without_openblas():
    with pytest.raises(NotRunError, match="no OpenBLAS is loaded"):
        check_openblas(None)
