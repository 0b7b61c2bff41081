"""`farm detect` on recorded machines, with the project's own channels."""

import json
from pathlib import Path

import pytest

from farm.cli.main import main
from farm.matrix import load_matrix

ROOT = Path(__file__).parents[3]


@pytest.fixture
def on(monkeypatch, record, recorded):
    """Put the command on a recorded machine."""
    return lambda name: monkeypatch.setattr("farm.cli.detect.ThisMachine", lambda: recorded(record(name)))


# Each has a channel in ci/matrix.yaml; the torch of the channel is the seed's for that hardware.
OFFERED = {
    "k40-470-sandybridge": ("sm35-avx-py311", "kepler-2.0.1"),
    "gtx1080ti-haswell": ("sm61-avx2-py313", "main"),
    "rtx2080ti-zen2": ("sm75-avx2-py312", "pytorch-2.8-python312"),
    "rtx3090-i9-12900k": ("sm86-avx512-py313", "main"),
    "h100-zen4": ("sm90-avx512-py313", "main"),
    "h100-graviton3-sve2": ("sm90-armv9-py313", "main"),
    "laptop-haswell": ("cpu-avx2-py313", "main"),
    "laptop-sandybridge": ("cpu-avx-py313", "pytorch-2.9-python313"),
    "dgx-spark": ("sm121-armv9-py313", "pytorch-2.10-python313"),
    "m3-macbook": ("mps-arm64-py313", "main"),
}


@pytest.mark.parametrize(("name", "expected"), OFFERED.items())
def test_the_projects_channels(on, capsys, name, expected):
    on(name)
    assert main(["--project", str(ROOT), "detect", "--json", "--index", "https://w.example/idx"]) == 0
    found = json.loads(capsys.readouterr().out)["recommendation"]
    assert (found["variant"], found["channel"]) == expected
    group = expected[0].rsplit("-", 1)[0]
    assert found["pip"].startswith("pip install torch")
    assert found["pip"].endswith(f" --index-url https://w.example/idx/whl/{group}/simple/")


def test_only_what_is_offered_for_the_platform_counts(on, capsys):
    on("rtx5070-windows")
    assert main(["--project", str(ROOT), "detect", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["recommendation"]
    offered = {str(b.variant) for b in load_matrix(ROOT).builds() if (b.package, b.platform) == ("torch", "windows")}
    assert offered
    assert (found["variant"] in offered) == (found["channel"] is not None)
    assert {other["variant"] for other in found["alternatives"]} <= offered


def test_the_table_names_what_was_found_and_what_was_not(on, capsys):
    on("k40-470-sandybridge")
    assert main(["--project", str(ROOT), "detect"]) == 0
    out = capsys.readouterr().out
    assert "Tesla K40c, 11441 MiB (nvidia-smi)" in out
    assert "GPUs by NVML: NVML Shared Library Not Found" in out
    assert "470 is the last driver branch for Tesla K40c" in out
    assert "--index-url file://" in out  # the folder that ci/farm.yaml names
    assert "/artifacts/index/whl/sm35-avx/simple/" in out


def test_outside_a_project(on, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    on("gtx1080ti-haswell")
    assert main(["detect"]) == 0
    out = capsys.readouterr().out
    assert "sm61-avx2-py313" in out
    assert "no index is configured" in out
    assert "no ci/matrix.yaml here" in out
    assert "pip install" not in out
    assert main(["detect", "--index", str(tmp_path / "an index")]) == 0
    uri = (tmp_path / "an index").as_uri()
    assert f"pip install torch --index-url {uri}/whl/sm61-avx2/simple/" in capsys.readouterr().out


def test_a_machine_without_a_variant_is_exit_code_3(on, capsys):
    on("jetson-nano")
    assert main(["--project", str(ROOT), "detect"]) == 3
    assert "the CPU lacks asimdrdm, atomics" in capsys.readouterr().out


def test_a_wrong_project_or_index_is_a_usage_error(on, capsys, tmp_path):
    on("laptop-haswell")
    assert main(["--project", str(tmp_path), "detect"]) == 2
    assert main(["--project", str(ROOT), "detect", "--index", "ftp://w.example"]) == 2
    assert "no kind of store is called 'ftp'" in capsys.readouterr().err
