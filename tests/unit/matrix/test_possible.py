"""A matrix that names what cannot be is refused when it is loaded, with file and line."""

import pytest

from farm.base.errors import UsageError
from farm.plan.matrix import load_matrix

CHANNEL = """channels:
  one:
    summary: "a channel"
    platforms: [{platforms}]
    packages: [{packages}{end}
    toolkit: {toolkit}
    cuda: "{cuda}"
    torch: "{torch}"
    cudnn: "{cudnn}"
    gpus: [{gpus}]
    cpus: [{cpus}]
    pythons: [{pythons}]
"""
GOOD = {
    "platforms": "linux",
    "packages": "torch",
    "end": "]",
    "toolkit": "nvidia",
    "cuda": "12.6",
    "torch": "2.8.0",
    "cudnn": "9.10.2",
    "gpus": "sm75",
    "cpus": "avx2",
    "pythons": "py311",
}


@pytest.mark.parametrize(
    ("change", "line", "text"),
    [
        ({"cuda": "11.9"}, 7, "CUDA 11.9 is not in the catalogue"),
        ({"torch": "2.0.5"}, 8, "torch 2.0.5 is not in the catalogue"),
        ({"cudnn": "9.99.0"}, 9, "cuDNN 9.99.0 is not in the catalogue"),
        ({"gpus": "sm75, sm87"}, 10, "is part of an Arm chip: no x86_64 machine has it"),
        ({"gpus": "sm35, sm75"}, 10, "CUDA 12.6 cannot compile for sm35"),
        ({"gpus": "sm120"}, 10, "CUDA 12.6 cannot compile for sm120"),
        ({"gpus": "kepler"}, 10, "CUDA 12.6 cannot compile for sm35"),
        ({"cuda": "11.8", "torch": "2.9.1"}, 7, "torch 2.9.1 needs CUDA 12.0 or newer, not 11.8"),
        ({"pythons": "py314"}, 12, "torch 2.8.0 does not build for py314 on linux"),
        ({"gpus": "sm75, mps"}, 10, "mps is not for linux"),
        ({"cpus": "avx2, arm64"}, 11, "arm64 is for arm64; the farm's linux builds are for x86_64 and aarch64"),
        (
            {"platforms": "linux, windows", "cpus": "avx2, armv9"},
            11,
            "armv9 is for aarch64; the farm's windows builds are for x86_64",
        ),
        ({"platforms": "macos", "cpus": "arm64"}, 10, "there is no CUDA for macOS: sm75 cannot be built there"),
        ({"platforms": "windows", "pythons": "py313t"}, 12, "no Python 3.13t is pinned here for windows"),
        (
            {"packages": "torch, torchvision]\n    recipes: {torch: torch-3", "end": "}"},
            6,
            "there is no recipe 'torch-3'",
        ),
        (
            {"packages": "torch]\n    recipes: {torch: torch-debian-2-6", "end": "}"},
            9,
            "sources of torch 2.6.0, not 2.8.0",
        ),
        (
            {
                "platforms": "windows",
                "packages": "torch]\n    recipes: {torch: torch-debian",
                "end": "}",
                "torch": "1.13.1",
            },
            4,
            "torch is built for linux, not for windows",
        ),
        ({"toolkit": "debian", "platforms": "windows"}, 4, "the debian toolkit is for Linux, not for windows"),
        (
            {
                "toolkit": "debian\n    base: debian-trixie",
                "cuda": "12.4",
                "pythons": "py313",
                "cpus": "armv9",
                "cudnn": "9.1.0",
            },
            12,
            "the debian toolkit of debian-trixie is for x86_64, not aarch64",
        ),
        ({"cuda": "11.3", "torch": "1.12.1", "pythons": "py310"}, 7, "no archive of CUDA 11.3.1 is pinned"),
        (
            {
                "toolkit": "debian",
                "packages": "torch]\n    recipes: {torch: torch-debian",
                "end": "}\n    base: debian-bookworm",
                "torch": "1.13.1",
                "cuda": "11.8",
                "cudnn": "8.7.0",
                "pythons": "py310",
            },
            14,
            "debian-bookworm has py311, not py310",
        ),
        ({"toolkit": "nvidia\n    blas: mkl"}, 7, "this recipe takes OpenBLAS on Linux, not MKL"),
        ({"pythons": "py311]\n    include: [{packages: [nope], gpus: [cpu]}"}, 13, "no recipe for package 'nope'"),
        ({"toolkit": "wheels"}, 7, "the wheels toolkit has CUDA 13.0"),
        (
            {"toolkit": "debian\n    base: debian-bookworm"},
            8,
            "the debian toolkit of debian-bookworm has CUDA 11.8, not 12.6",
        ),
        ({"toolkit": "debian\n    base: ubuntu-jammy"}, 8, "the farm takes no CUDA from the packages of ubuntu-jammy"),
        (
            {"toolkit": "debian\n    base: debian-bookworm", "cuda": "11.8", "torch": "2.6.0"},
            6,
            "profiler_api, cuDNN 9.10.2, which torch needs",
        ),
        ({"torch": "2.2.2", "cuda": "12.8", "gpus": "sm120"}, 10, "torch 2.2.2 does not read '12.0'"),
    ],
)
def test_refused_with_file_and_line(tmp_path, change, line, text):
    path = tmp_path / "ci" / "matrix.yaml"
    path.parent.mkdir()
    path.write_text(CHANNEL.format(**GOOD | change))
    with pytest.raises(UsageError) as caught:
        load_matrix(tmp_path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert text in str(caught.value)


MKL = {
    "platforms": "linux, windows",
    "toolkit": "nvidia\n    blas: mkl\n    exceptions: [{platforms: [linux], blas: openblas}]",
}


@pytest.mark.parametrize("change", [{}, {"gpus": "sm87", "cpus": "armv8_2"}, {"gpus": "cpu"}, MKL])
def test_taken(tmp_path, change):
    path = tmp_path / "ci" / "matrix.yaml"
    path.parent.mkdir()
    path.write_text(CHANNEL.format(**GOOD | change))
    assert list(load_matrix(tmp_path).builds())
