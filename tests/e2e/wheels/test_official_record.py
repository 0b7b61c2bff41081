"""The official wheels of PyTorch 1.12.1 have a wrong hash of METADATA in RECORD: found, explained,
mended.
"""

import os
import subprocess
import sys

import pytest

from farm.policy.rules import Policy
from farm.wheel.repair import RepairOptions, repair
from farm.wheel.verify import verify

METADATA = "torch-1.12.1.dist-info/METADATA"
POLICY = Policy(
    name="torch",
    version="1.12.1",
    python="cp310",
    platform="windows_x86_64",
    cpu="sse41",
    dispatching=("*",),
)


@pytest.fixture
def official(tmp_path):
    folder = tmp_path / "official"
    options = [
        "--no-deps",
        "--only-binary=:all:",
        "--platform=win_amd64",
        "--python-version=3.10",
        "-q",
    ]
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        *options,
        "-d",
        str(folder),
        "torch==1.12.1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        reason = f"the wheel of torch 1.12.1 is not to be had: {done.stderr[-300:]}"
        if os.environ.get("FARM_REQUIRE") == "all":
            pytest.fail(reason)
        pytest.skip(reason)
    [wheel] = folder.glob("*.whl")
    return wheel


def record_findings(wheel):
    [check] = [check for check in verify(wheel, POLICY).checks if check.id == "record"]
    return check.findings


def test_found_explained_and_mended(official, tmp_path):
    [finding] = record_findings(official)
    assert (finding.where, finding.what) == (METADATA, "its sha256 is not the one in RECORD")
    assert "installers that check RECORD refuse the wheel" in finding.why
    assert "repair the wheel, which rebuilds RECORD" in finding.fix
    out = tmp_path / "out"
    out.mkdir()
    result = repair(official, out, RepairOptions(into="torch/lib"))
    assert result.record_corrected == (METADATA,)
    assert record_findings(result.wheel) == ()
