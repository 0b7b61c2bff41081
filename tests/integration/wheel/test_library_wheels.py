"""A wheel that needs NVIDIA's wheels instead of holding their libraries: RPATHs and requirements, written by repair."""

import pytest

from farm.wheel.archive import Archive
from farm.wheel.library import read_needs
from farm.wheel.library_wheels import LibraryWheel, point_at, without_wheel_libraries

BLAS = LibraryWheel("nvidia-cublas-cu11==11.11.3.6", "nvidia/cublas/lib", ("libcublas.so.11", "libcublasLt.so.11"))
FFT = LibraryWheel("nvidia-cufft-cu11==10.9.0.58", "nvidia/cufft/lib", ("libcufft.so.10",))
NVRTC = LibraryWheel("nvidia-cuda-nvrtc-cu11==11.8.89", "nvidia/cuda_nvrtc/lib", ("libnvrtc.so.11.2",))


@pytest.fixture
def pointed(tmp_path, compiled):
    """Writes a wheel with these libraries, points it at `wheels`; returns (wheels that it needs, search paths)."""

    def run(wheels, opens=()):
        source = compiled
        dest = tmp_path / "out" / source.name
        dest.parent.mkdir()
        found = point_at(source, dest, wheels, opens)
        with Archive(dest) as archive:
            libraries = read_needs(archive, {}).libraries
        return found, {library.path: library.search_path for library in libraries}

    return run


@pytest.fixture
def compiled(tmp_path, make_wheel, make_elf):
    files = {
        "torch/lib/libtorch_cuda.so": make_elf(needed=["libcublas.so.11", "libc.so.6"], runpath="$ORIGIN"),
        "torch/lib/libtorch.so": make_elf(needed=["libtorch_cuda.so"], runpath="$ORIGIN"),
        "torch.libs/libsleef.so.3": make_elf(soname="libsleef.so.3", needed=["libc.so.6"], runpath="$ORIGIN"),
    }
    return make_wheel(tmp_path / "in", files, name="torch", version="2.6.0", tag="cp311-cp311-manylinux_2_17_x86_64")


def test_wheels_that_no_library_needs_are_left_out(pointed):
    found, _ = pointed([BLAS, FFT, NVRTC])
    assert found == [BLAS]


def test_a_wheel_whose_library_is_opened_by_name_is_needed(pointed):
    found, _ = pointed([FFT, BLAS, NVRTC], opens=["libnvrtc.so.*"])
    assert found == [BLAS, NVRTC]


def test_every_library_beside_one_that_needs_them_finds_them_and_vendored_ones_keep_theirs(pointed):
    _, search = pointed([BLAS, FFT])
    assert search["torch/lib/libtorch_cuda.so"] == ("$ORIGIN", "$ORIGIN/../../nvidia/cublas/lib")
    assert search["torch/lib/libtorch.so"] == ("$ORIGIN", "$ORIGIN/../../nvidia/cublas/lib")
    assert search["torch.libs/libsleef.so.3"] == ("$ORIGIN",)


def test_folders_of_the_machine_that_built_a_library_are_taken_out(tmp_path, make_wheel, make_elf):
    """CMake's RUNPATH of libcaffe2_nvrtc.so names the folder of libcuda's stub; seen in torch 2.6.0 for sm_35."""
    stubs = "/usr/lib/x86_64-linux-gnu/stubs"
    files = {
        "torch/lib/libcaffe2_nvrtc.so": make_elf(needed=["libcublas.so.11"], runpath=f"$ORIGIN:{stubs}"),
        "torch/_C.so": make_elf(needed=["libc.so.6"], runpath=f"$ORIGIN/lib:{stubs}:$ORIGIN/../.."),
        "torch/bin/alone.so": make_elf(needed=["libc.so.6"], runpath=stubs),
        "torch/right.so": make_elf(needed=["libc.so.6"], runpath="$ORIGIN/lib"),
    }
    source = make_wheel(tmp_path / "in", files, name="torch", version="2.6.0", tag="cp311-cp311-manylinux_2_17_x86_64")
    (tmp_path / "out").mkdir()
    point_at(source, tmp_path / "out" / source.name, [BLAS], ())
    with Archive(tmp_path / "out" / source.name) as archive:
        found = {each.path: (each.search_path, each.has_runpath) for each in read_needs(archive, {}).libraries}
    assert found == {
        "torch/lib/libcaffe2_nvrtc.so": (("$ORIGIN", "$ORIGIN/../../nvidia/cublas/lib"), False),
        "torch/_C.so": (("$ORIGIN/lib",), True),
        "torch/bin/alone.so": ((), False),
        "torch/right.so": (("$ORIGIN/lib",), True),
    }


def test_a_wheel_with_nothing_to_change_is_not_written(tmp_path, compiled):
    assert point_at(compiled, tmp_path / "out.whl", [FFT], ()) == []
    assert not (tmp_path / "out.whl").exists()


def test_what_other_wheels_hold_is_not_looked_for_here():
    assert without_wheel_libraries(["libnvrtc.so.*", "libcublasLt.so.*", "libgomp.so.*"], [BLAS, NVRTC]) == [
        "libgomp.so.*"
    ]


def test_what_a_needed_wheel_needs_in_turn_is_needed_and_pinned_too(pointed):
    """NVIDIA's wheel of cuSPARSE requires nvJitLink's without a version: pip would take the newest."""
    sparse = LibraryWheel("nvidia-cublas-cu11==1", "nvidia/cusparse/lib", BLAS.libraries, ("nvidia-nvjitlink-cu12",))
    jit = LibraryWheel("nvidia-nvjitlink-cu12==12.4.127", "nvidia/nvjitlink/lib", ("libnvJitLink.so.12",))
    found, search = pointed([FFT, jit, sparse])
    assert found == [jit, sparse]
    assert "$ORIGIN/../../nvidia/nvjitlink/lib" in search["torch/lib/libtorch_cuda.so"]


def test_what_an_unneeded_wheel_needs_is_left_out(pointed):
    jit = LibraryWheel("nvidia-nvjitlink-cu12==12.4.127", "nvidia/nvjitlink/lib", ("libnvJitLink.so.12",))
    sparse = LibraryWheel("nvidia-cusparse-cu12==1", "nvidia/cusparse/lib", ("libcusparse.so.12",), (jit.package,))
    assert pointed([BLAS, sparse, jit])[0] == [BLAS]
