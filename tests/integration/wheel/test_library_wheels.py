"""A wheel that needs NVIDIA's wheels instead of holding their libraries: RPATHs and requirements,
written by repair.
"""

import pytest

from farm.wheel.archive import Archive
from farm.wheel.library import read_contents
from farm.wheel.library_wheels import LibraryWheel, without_wheel_libraries
from farm.wheel.metadata import read_dist_info
from farm.wheel.repair import RepairOptions, vendor

BLAS = LibraryWheel(
    "nvidia-cublas-cu11==11.11.3.6", "nvidia/cublas/lib", ("libcublas.so.11", "libcublasLt.so.11")
)
FFT = LibraryWheel("nvidia-cufft-cu11==10.9.0.58", "nvidia/cufft/lib", ("libcufft.so.10",))
NVRTC = LibraryWheel(
    "nvidia-cuda-nvrtc-cu11==11.8.89", "nvidia/cuda_nvrtc/lib", ("libnvrtc.so.11.2",)
)
JIT = LibraryWheel(
    "nvidia-nvjitlink-cu12==12.4.127", "nvidia/nvjitlink/lib", ("libnvJitLink.so.12",)
)
SPARSE = LibraryWheel(
    "nvidia-cublas-cu11==1", "nvidia/cusparse/lib", BLAS.libraries, (JIT.package,)
)
SPARSE_ALONE = LibraryWheel(
    "nvidia-cusparse-cu12==1", "nvidia/cusparse/lib", ("libcusparse.so.12",), (JIT.package,)
)
THEIRS = ("$ORIGIN/../../nvidia/nvjitlink/lib", "$ORIGIN/../../nvidia/cusparse/lib")


@pytest.fixture
def repaired(tmp_path):
    """Repairs a wheel with these wheels of libraries; returns (Requires-Dist, (search path, is
    RUNPATH) by path).
    """

    def run(wheel, wheels, opens=()):
        (tmp_path / "out").mkdir()
        options = RepairOptions(library_wheels=wheels, opens=opens, exclude=["*"])
        result = vendor(wheel, tmp_path / "out", options, "torch/lib", ())
        with Archive(result.wheel) as archive:
            libraries = read_contents(archive, device=False).libraries
            found = read_dist_info(archive).requires_dist
        return list(found), {each.path: (each.search_path, each.has_runpath) for each in libraries}

    return run


@pytest.fixture
def compiled(tmp_path, make_wheel, make_elf):
    files = {
        "torch/lib/libtorch_cuda.so": make_elf(
            needed=["libcublas.so.11", "libc.so.6"], runpath="$ORIGIN"
        ),
        "torch/lib/libtorch.so": make_elf(needed=["libtorch_cuda.so"], runpath="$ORIGIN"),
        "torch.libs/libsleef.so.3": make_elf(
            soname="libsleef.so.3", needed=["libc.so.6"], runpath="$ORIGIN"
        ),
    }
    return make_wheel(
        tmp_path / "in",
        files,
        name="torch",
        version="2.6.0",
        tag="cp311-cp311-manylinux_2_17_x86_64",
    )


@pytest.mark.parametrize(
    ("wheels", "opens", "needed"),
    [
        ([BLAS, FFT, NVRTC], [], [BLAS]),
        ([FFT, BLAS, NVRTC], ["libnvrtc.so.*"], [BLAS, NVRTC]),  # opened by name
        # NVIDIA's wheel of cuSPARSE requires nvJitLink's without a version: pip would take the
        # newest.
        ([FFT, JIT, SPARSE], [], [JIT, SPARSE]),
        ([BLAS, SPARSE_ALONE, JIT], [], [BLAS]),
        ([FFT], [], []),
    ],
)
def test_the_wheels_that_libraries_need_are_required(repaired, compiled, wheels, opens, needed):
    assert repaired(compiled, wheels, opens)[0] == [wheel.requirement for wheel in needed]


def test_libraries_in_the_folder_of_their_user_are_found_and_vendored_ones_keep_their_runpath(
    repaired, compiled
):
    assert repaired(compiled, [JIT, SPARSE])[1] == {
        "torch/lib/libtorch_cuda.so": (("$ORIGIN", *THEIRS), False),
        "torch/lib/libtorch.so": (("$ORIGIN", *THEIRS), False),
        "torch.libs/libsleef.so.3": (("$ORIGIN",), True),
    }


def test_folders_of_the_machine_that_built_a_library_are_taken_out(
    repaired, tmp_path, make_wheel, make_elf
):
    """CMake's RUNPATH of libcaffe2_nvrtc.so names the folder of libcuda's stub; seen in torch 2.6.0
    for sm_35.
    """
    stubs = "/usr/lib/x86_64-linux-gnu/stubs"
    files = {
        "torch/lib/libcaffe2_nvrtc.so": make_elf(
            needed=["libcublas.so.11"], runpath=f"$ORIGIN:{stubs}"
        ),
        "torch/_C.so": make_elf(needed=["libc.so.6"], runpath=f"$ORIGIN/lib:{stubs}:$ORIGIN/../.."),
        "torch/bin/alone.so": make_elf(needed=["libc.so.6"], runpath=stubs),
        "torch/right.so": make_elf(needed=["libc.so.6"], runpath="$ORIGIN/lib"),
        "torch.libs/libown.so.1": make_elf(
            needed=["libc.so.6"], runpath="torch.libs"
        ),  # as openturns 1.22 has it
    }
    source = make_wheel(
        tmp_path / "in",
        files,
        name="torch",
        version="2.6.0",
        tag="cp311-cp311-manylinux_2_17_x86_64",
    )
    assert repaired(source, [BLAS])[1] == {
        "torch/lib/libcaffe2_nvrtc.so": (("$ORIGIN", "$ORIGIN/../../nvidia/cublas/lib"), False),
        "torch/_C.so": (("$ORIGIN/lib",), True),
        "torch/bin/alone.so": ((), False),
        "torch/right.so": (("$ORIGIN/lib",), True),
        "torch.libs/libown.so.1": ((), False),
    }


def test_what_other_wheels_hold_is_not_looked_for_here():
    assert without_wheel_libraries(
        ["libnvrtc.so.*", "libcublasLt.so.*", "libgomp.so.*"], [BLAS, NVRTC]
    ) == ["libgomp.so.*"]
