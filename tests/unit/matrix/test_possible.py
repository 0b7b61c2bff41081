"""A matrix that names what cannot be is refused when it is loaded, with file and line."""

from pathlib import Path

import pytest
import yaml

from farm.base.errors import UsageError
from farm.plan.matrix import load_matrix

CASES = yaml.safe_load(Path(__file__).with_name("possible.yaml").read_text(encoding="utf-8"))

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


@pytest.mark.parametrize(("change", "line", "text"), CASES["refused_with_file_and_line"])
def test_impossible_inputs_name_file_and_line(tmp_path, change, line, text):
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
def test_possible_inputs_are_accepted(tmp_path, change):
    path = tmp_path / "ci" / "matrix.yaml"
    path.parent.mkdir()
    path.write_text(CHANNEL.format(**GOOD | change))
    assert list(load_matrix(tmp_path).builds())
