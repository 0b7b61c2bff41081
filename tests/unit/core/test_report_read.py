"""farm report read: a page from what came back from a Windows machine, which may be anything."""

import json
import zipfile

import pytest

from farm.cli.main import main
from tests.plans import plan_of

LOG = """11/26/2026 14:01:02.11 farm: step source
Cloning
11/26/2026 14:02:02.11 farm: step build
C:\\farm\\src\\a.cpp(3): error C2065: 'x': undeclared identifier
FAILED: a.obj
C:\\farm\\src\\a.cpp(3): error C2065: 'x': undeclared identifier
\x1b[31mLINK : fatal error LNK1104: cannot open file 'x.lib'
11/26/2026 14:03:02.11 farm: step build FAILED (exit code 1); log: C:\\farm\\out\\0\\build.log
11/26/2026 14:03:02.12 farm: next: the first line with FAILED: or error in the log is the cause
"""
MACHINE = "Microsoft Windows [Version 10.0.20348.2582]\ncores: 4\ninstallationPath: C:\\VS\nother\n"
CACHE = """USE_XNNPACK:BOOL=ON
USE_MKLDNN:BOOL=OFF
USE_CUDA:BOOL=1
OpenMP_libomp_LIBRARY:STRING=C:/VS/lib/libomp.lib
BLAS:STRING=MKL
"""


@pytest.fixture
def report(tmp_path, capsys):
    plan = plan_of("sm35-avx-py311", channel="kepler-2.0.1", platform="windows")

    def run(**changes):
        files = {
            "plan.json": plan.to_json(),
            "farm-report.txt": MACHINE,
            "build.log": LOG,
            "CMakeCache.txt": CACHE,
        }
        path = tmp_path / "farm-report.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in (
                files | {name.replace("_", "."): text for name, text in changes.items()}
            ).items():
                archive.writestr(name, text)
        return main(["report", "read", str(path)]), *capsys.readouterr()

    return run


def test_a_report_becomes_one_page(report):
    code, out, _ = report()
    assert code == 0
    assert out.startswith(
        "torch 2.0.1+cu114.sm35.avx for sm35-avx-py311\n  Microsoft Windows [Version "
        "10.0.20348.2582]\n  cores: 4\n"
    )
    assert "14:03:02.11  step build FAILED (exit code 1)" in out
    assert "failures in the log: 3\n" in out
    assert "  farm: next:" not in out
    assert out.count("error C2065") == 1
    assert "cause: not known" not in out
    assert "cause: a library to link with is missing" in out
    assert "LNK1104" in out
    assert "\x1b" not in out
    rows = [line.split() for line in out.splitlines()]
    assert ["USE_MKLDNN", "1", "OFF"] in rows
    assert [
        "OpenMP_libomp_LIBRARY",
        "C:/farm/venv/Library/lib/libiomp5md.lib",
        "C:/VS/lib/libomp.lib",
    ] in rows
    assert not [row for row in rows if row[:1] in (["USE_XNNPACK"], ["USE_CUDA"], ["BLAS"])]


def test_the_page_says_what_nvcc_says_and_what_to_do(report):
    log = """11/26/2026 14:02:02.11 farm: step build
FAILED: caffe2/x.cu.obj
nvcc error   : 'cudafe++' died with status 0xC0000409
11/26/2026 14:03:02.11 farm: step build FAILED (exit code 1); log: C:\\farm\\out\\0\\build.log
11/26/2026 14:03:02.12 farm: next: the first line with FAILED: or error in the log is the cause
"""
    _, out, _ = report(build_log=log)
    assert "failures in the log: 2\n" in out
    assert "  nvcc error   : 'cudafe++' died with status 0xC0000409\n" in out
    assert "cause: a compiler, or another program that the build runs, crashed\n" in out
    assert "what to do: run this again; where it stops at the same file" in out


def test_an_unknown_cause_is_reported_as_unknown(report):
    _, out, _ = report(
        build_log="FAILED: a.obj\na.cpp(3): error C2065: 'x': undeclared identifier\n"
    )
    assert "cause: not known" in out


def test_a_tree_configured_as_planned_is_reported_so(report):
    code, out, _ = report(CMakeCache_txt="USE_MKLDNN:BOOL=ON\n", build_log="")
    assert (code, "failures in the log: 0" in out, "with all that the plan says" in out) == (
        0,
        True,
        True,
    )
    assert "CMake: not configured" in report(CMakeCache_txt="")[1]


@pytest.mark.parametrize("plan", ["", "[]", json.dumps({"env": 1}), "[" * 100_000])
def test_a_zip_that_is_no_report_is_refused(report, plan, tmp_path):
    code, _, stderr = report(plan_json=plan)
    assert (code, "no plan" in stderr, "next:" in stderr or "report.cmd" in stderr) == (
        2,
        True,
        True,
    )
    (tmp_path / "x.zip").write_bytes(b"PK")
    assert main(["report", "read", str(tmp_path / "x.zip")]) == 2


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_report_is_refused(tmp_path, capsys, method):
    path = tmp_path / "farm-report.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("plan.json", bytes(range(256)) * 40)
    content = bytearray(path.read_bytes())
    begin = 30 + len("plan.json")  # the length of the header of a file
    content[begin + 4 : begin + 40] = b"\xff" * 36  # 4: the header of LZMA data
    path.write_bytes(content)
    assert main(["report", "read", str(path)]) == 2
    assert f"{path}: cannot be read" in capsys.readouterr().err
