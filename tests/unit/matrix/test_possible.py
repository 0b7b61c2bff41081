"""A matrix that names what cannot be is refused when it is loaded, with file and line."""

import pytest

from farm.errors import UsageError
from farm.matrix import load_matrix

CHANNEL = """channels:
  one:
    summary: "a channel"
    platforms: [linux]
    packages: [torch]
    toolkit: nvidia
    cuda: "{cuda}"
    torch: "{torch}"
    cudnn: "{cudnn}"
    gpus: [{gpus}]
    cpus: [{cpus}]
    pythons: [{pythons}]
"""
GOOD = {"cuda": "12.6", "torch": "2.8.0", "cudnn": "9.10.2", "gpus": "sm75", "cpus": "avx2", "pythons": "py311"}


@pytest.mark.parametrize(
    ("change", "line", "text"),
    [
        ({"cuda": "11.9"}, 7, "CUDA 11.9 is not in the catalogue"),
        ({"torch": "2.0.5"}, 8, "torch 2.0.5 is not in the catalogue"),
        ({"cudnn": "9.99.0"}, 9, "cuDNN 9.99.0 is not in the catalogue"),
        ({"gpus": "sm75, sm87"}, 10, "sm87 is part of an Arm chip: there is no sm87-avx2"),
        ({"gpus": "sm35, sm75"}, 10, "CUDA 12.6 cannot compile for sm35"),
        ({"gpus": "sm120"}, 10, "CUDA 12.6 cannot compile for sm120"),
        ({"gpus": "kepler"}, 10, "CUDA 12.6 cannot compile for sm35"),
        ({"cuda": "11.8", "torch": "2.9.1"}, 7, "torch 2.9.1 needs CUDA 12.0 or newer, not 11.8"),
        ({"pythons": "py314"}, 12, "torch 2.8.0 does not build for py314 on linux"),
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


@pytest.mark.parametrize("change", [{}, {"gpus": "sm87", "cpus": "armv8_2"}, {"gpus": "cpu"}])
def test_taken(tmp_path, change):
    path = tmp_path / "ci" / "matrix.yaml"
    path.parent.mkdir()
    path.write_text(CHANNEL.format(**GOOD | change))
    assert list(load_matrix(tmp_path).builds())
