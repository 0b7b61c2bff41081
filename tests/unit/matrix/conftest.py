from pathlib import Path

import pytest

from farm.plan.matrix import Matrix, load_matrix

PROJECT = Path(__file__).parents[3]

CHANNELS = """\
channels:
  one:
    summary: a channel
    platforms: [linux]
    packages: [torch]
    base: debian-bookworm
    toolkit: nvidia
    cuda: ["12.9", "12.8"]
    torch: "2.9.1"
    gpus: [cpu, sm80, sm90]
    cpus: [avx2, avx512]
    pythons: [py311, py312]
"""


@pytest.fixture(scope="session")
def project() -> Path:
    return PROJECT


@pytest.fixture(scope="session")
def shipped() -> Matrix:
    return load_matrix(PROJECT)


@pytest.fixture
def channels() -> str:
    """A small matrix of one channel, 12 lines: tests append to it or change it."""
    return CHANNELS


@pytest.fixture
def read(tmp_path):
    """Loads a matrix from text."""

    def read_text(text: str) -> Matrix:
        (tmp_path / "ci").mkdir(exist_ok=True)
        (tmp_path / "ci" / "matrix.yaml").write_text(text, encoding="utf-8")
        return load_matrix(tmp_path)

    return read_text
