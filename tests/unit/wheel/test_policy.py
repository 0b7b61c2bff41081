"""Requirements, forbidden members, cuDNN, libraries that dispatch, and waivers."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from farm.base.errors import UsageError
from farm.policy.rules import Policy, Waiver, load_policy, parse_waiver
from farm.wheel.report import Check, Finding, Report
from farm.wheel.verify import verify
from tests.unit.wheel.conftest import VPADDD_YMM

TAG = "cp311-cp311-manylinux_2_17_x86_64"
POLICY = {
    "name": "canary",
    "version": "1.0",
    "python": "cp311",
    "platform": "linux_x86_64",
    "sass": [35],
    "cpu": "avx",
}


@pytest.fixture
def check(tmp_path, make_wheel, make_elf, make_container, make_entry):
    """Verify a good wheel with changes: (status by check, report)."""
    good = make_elf(fatbin=make_container(make_entry("sass", 35)))

    def run(changes=None, policy=None, waivers=(), requires=(), **kwargs):
        metadata = "Metadata-Version: 2.1\nName: canary\nVersion: 1.0\n" + "".join(
            f"Requires-Dist: {each}\n" for each in requires
        )
        files = {"canary/_C.so": good, **(changes or {})}
        path = make_wheel(tmp_path, files, tag=TAG, **{"metadata": metadata.encode(), **kwargs})
        report = verify(path, Policy.model_validate({**POLICY, **(policy or {})}), waivers=waivers)
        assert Report.model_validate_json(json.dumps(report.to_json())) == report
        return {each.id: each.status for each in report.checks}, report

    return run


@pytest.mark.parametrize(
    ("bound", "requires", "witness"),
    [
        ("<2", ["numpy<2"], None),
        ("<2", ["numpy>=1.20,<1.25"], None),
        ("<2", ["numpy==1.26.*"], None),
        ("<2", ["numpy~=1.21"], None),
        ("<2", ["NumPy>=1", "numpy<2"], None),
        ("<2", ['numpy<2; python_version >= "3.9"'], None),
        ("<2", ['numpy<1.20; python_version < "3.8"', "numpy<2"], None),
        (">=2", ["numpy>=2.1"], None),
        ("<2", [], "9999"),
        ("<2", ["numpy"], "9999"),
        ("<2", ["numpy>=1.20"], "9999"),
        ("<2", ["numpy<2.1"], "2.0.9999"),
        ("<2", ["numpy<=2"], "2"),
        ("<2", ["numpy==2.*"], "2.0.1"),
        ("<2", ["numpy!=1.5"], "9999"),
        ("<2", ['numpy<2; extra == "all"'], "9999"),
        ("<2", ['numpy<2; python_version < "3.8"'], "9999"),
        ("<2", ['numpy<2; sys_platform == "win32"'], "9999"),
        (">=2", ["numpy<3"], "1.9999"),
    ],
)
def test_numpy_bound(check, bound, requires, witness):
    statuses, report = check(policy={"numpy": bound}, requires=["filelock", *requires])
    assert statuses["metadata"] == ("passed" if witness is None else "failed")
    found = [finding for finding in report.findings if finding.check == "metadata"]
    assert [finding.where for finding in found] == ["canary-1.0.dist-info/METADATA"] * (
        witness is not None
    )
    assert all(
        f"allows numpy {witness};" in finding.what and f"numpy{bound}" in finding.fix
        for finding in found
    )


def test_numpy_is_not_asked_for_where_nothing_is_promised(check):
    statuses, report = check(requires=["numpy>=1"])
    assert (statuses["metadata"], report.passed) == ("not_run", True)


@pytest.mark.parametrize(
    "line",
    [
        "numpy<<2",
        "!",
        "numpy; nonsense == 1",
        "(" * 5000,
        "numpy" + ",".join(["<2"] * 5000),
        "numpy; " + "(" * 900,
        'numpy; python_version ~= "x"',
    ],
)
def test_requirements_that_cannot_be_read(check, line):
    statuses, report = check(policy={"numpy": "<2"}, requires=[line])
    assert statuses["metadata"] == "failed"
    assert len(report.findings[0].what) < 1500


def test_test_libraries_are_forbidden(check, make_elf):
    names = [
        "libaoti_custom_ops.so",
        "libbackend_with_compiler.so",
        "libjitbackend_test.so",
        "libtorchbind_test.so",
    ]
    names += ["aoti_custom_ops.dll", "backend_with_compiler.dll", "c10_test.dll"]
    statuses, report = check({f"torch/lib/{name}": b"" for name in names})
    assert statuses["members"] == "failed"
    assert [finding.where for finding in report.findings] == [f"torch/lib/{name}" for name in names]
    innocent = [
        "torch/lib/libtorch.so.1",
        "torch/testing/_internal/x_test.py",
        "torch/lib/libc10.txt",
        "torch/a_test.so",
    ]
    assert check(dict.fromkeys(innocent, b""))[1].passed
    assert not check({"canary/x.pdb": b""}, {"forbidden": ["*.pdb"]})[1].passed


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("*.pyc", "the policy forbids such files"),
        ({"pattern": "*.pyc", "reason": "compiled for one Python"}, "compiled for one Python"),
    ],
)
def test_a_forbidden_file_is_explained_by_the_policy(check, rule, why):
    [finding] = check({"canary/x.pyc": b""}, {"forbidden": [rule]})[1].findings
    assert (finding.where, finding.why) == ("canary/x.pyc", why)


def test_cudnn_must_run_on_the_lowest_gpu(check, make_elf, make_container, make_entry):
    def cudnn(*sms):
        return make_elf(fatbin=b"".join(make_container(make_entry("sass", sm)) for sm in sms))

    name = "canary/lib/libcudnn_ops_infer.so.8"
    assert check({name: cudnn(35, 50, 60)})[1].passed
    statuses, report = check({name: cudnn(50, 60)})
    assert statuses["sass"] == "failed"
    assert [(f.where, f.what) for f in report.findings] == [
        (name, "cuDNN without code for sm_35; it holds sm_50, sm_60")
    ]
    assert "older cuDNN" in report.findings[0].fix
    # a shim without device code, and code of the same major version, are in order
    assert check({name: make_elf()})[1].passed
    own = {
        "canary/_C.so": make_elf(
            fatbin=make_container(make_entry("sass", 37), make_entry("sass", 50))
        )
    }
    assert check({**own, name: cudnn(35, 61)}, {"sass": [37, 50]})[1].passed
    assert not check({**own, name: cudnn(30, 61)}, {"sass": [35, 50]})[1].passed
    assert not check({**own, name: cudnn(50)}, {"sass": [37, 50]})[1].passed
    fifty = {"canary/_C.so": make_elf(fatbin=make_container(make_entry("sass", 50)))}
    assert not check({**fifty, name: cudnn(37, 61)}, {"sass": [50]})[1].passed
    # it is not code of the wheel's own
    assert check({"canary/_C.so": make_elf(), name: cudnn(35)})[0]["sass"] == "failed"


def test_libraries_that_dispatch_are_checked_by_what_runs_on_loading(check, make_elf):
    code = b"\xc3" + VPADDD_YMM + b"\xc3"
    sleeping = make_elf(text=code, symbols={"ctor": 0, "fast": 1}, init=[0])
    assert check({"canary/k.so": sleeping})[0]["cpu"] == "failed"
    assert check({"canary/k.so": sleeping}, {"dispatching": ["canary/k*"]})[1].passed
    awake = make_elf(text=code, symbols={"ctor": 0, "fast": 1}, init=[0, 1])
    statuses, report = check({"canary/k.so": awake}, {"dispatching": ["canary/k*"]})
    assert statuses["cpu"] == "failed"
    assert [f.what for f in report.findings] == [
        "1 instructions run on loading or at exit need AVX2, first at fast+0x0"
    ]
    assert "static initialisers" in report.findings[0].fix


MODULE_OF_AVX2 = "canary/distance/fuzz_cpp_avx2.cpython-311-x86_64-linux-gnu.so"


@pytest.mark.parametrize("init", [(), (0,)], ids=["called", "run on loading"])
def test_the_advice_for_a_module_of_newer_cpus_is_accepted_when_it_is_copied(check, make_elf, init):
    """Also where its first advice was followed, and what runs on loading needs more."""
    library = {MODULE_OF_AVX2: make_elf(text=VPADDD_YMM + b"\xc3", symbols={"f": 0}, init=init)}
    line = 'only_on: {avx2: ["canary/*_avx2*"]}'
    for rules in ({}, {"dispatching": ["canary/*"]} if init else {}):
        [finding] = check(library, rules)[1].findings
        assert line in finding.fix
    _, report = check(library, {"only_on": {"avx2": ["canary/*_avx2*"]}})
    assert report.passed
    assert report.check("cpu").undecided == (MODULE_OF_AVX2,)


def test_a_member_for_newer_cpus_must_keep_to_their_level(check, make_elf):
    library = {"canary/fast_avx2.so": make_elf(text=VPADDD_YMM, symbols={"f": 0})}
    [finding] = check(library, {"only_on": {"sse41": ["canary/fast*"]}})[1].findings
    assert "need AVX2" in finding.what, "a lower level gives nothing that was not there"
    avx512 = bytes.fromhex("62f17d48fec0")  # vpaddd zmm0, zmm0, zmm0
    library = {"canary/fast_avx2.so": make_elf(text=avx512 + b"\xc3", symbols={"f": 0})}
    [finding] = check(library, {"only_on": {"avx2": ["canary/fast*"]}})[1].findings
    assert finding.what == "1 instructions need AVX512F, first at f+0x0"


def test_an_unknown_level_is_refused():
    with pytest.raises(ValidationError, match="'avx3' is no CPU level that can be checked"):
        Policy(only_on={"avx3": ("*",)})


def test_a_waiver_keeps_the_finding_and_its_reason(check):
    name = "torch/lib/libtorchbind_test.so"
    waiver = Waiver(check="members", member="torch/lib/*bind*", reason=" the testers want it ")
    statuses, report = check({name: b""}, waivers=[waiver])
    assert (statuses["members"], report.passed) == ("waived", True)
    assert [(f.where, f.waived) for f in report.findings] == [(name, "the testers want it")]
    assert report.to_json()["waivers"] == [
        {"check": "members", "member": "torch/lib/*bind*", "reason": "the testers want it"}
    ]
    for other in (
        Waiver(check="cpu", member="*", reason="x"),
        Waiver(check="members", member="canary/*", reason="x"),
    ):
        assert not check({name: b""}, waivers=[other])[1].passed
    statuses, report = check({name: b"", "torch/lib/x_test.so": b""}, waivers=[waiver])
    assert (statuses["members"], report.passed) == ("failed", False)
    assert [f.waived for f in report.findings] == [None, "the testers want it"]


def test_open_findings_are_not_hidden_behind_waived_ones(check):
    files = {f"torch/lib/{number:03}_test.so": b"" for number in range(99)}
    _, report = check(
        {**files, "torch/test/z": b""},
        waivers=[Waiver(check="members", member="torch/lib/*", reason="x")],
    )
    assert not report.passed
    assert (report.findings[0].where, report.findings[0].waived, len(report.findings)) == (
        "torch/test/z",
        None,
        50,
    )


def test_findings_that_hide_others_cannot_be_waived(check, make_elf, tmp_path):
    checks = ("names", "metadata", "record", "members", "platform", "imports", "sass", "ptx", "cpu")
    everything = [Waiver(check=each, member="*", reason="whatever") for each in checks]
    assert not check({"canary/a.so": make_elf()[:100]}, waivers=everything)[1].passed
    assert not check(record=b"\xff", waivers=everything)[1].passed
    path = tmp_path / f"canary-1.0-{TAG}.whl"
    path.write_bytes(b"PK")
    assert not verify(path, Policy.model_validate(POLICY), waivers=everything).passed


@pytest.mark.parametrize(
    "text",
    [
        "members:x",
        "members:x=",
        "members:x=  ",
        "members=why",
        ":x=why",
        "archive:*=why",
        "nothing:*=why",
        "",
    ],
)
def test_waivers_without_check_member_or_reason_are_refused(text):
    with pytest.raises(UsageError, match="waiver") as caught:
        parse_waiver(text)
    assert "CHECK:PATTERN=REASON" in caught.value.hint


def test_a_waiver_as_typed():
    assert parse_waiver("cpu:torch/lib/x.so=a=b: c") == Waiver(
        check="cpu", member="torch/lib/x.so", reason="a=b: c"
    )


def test_a_check_agrees_with_its_findings():
    finding = Finding(check="cpu", where="a", what="b", why="c", fix="d")
    waived = Finding(**{**finding.model_dump(), "waived": "because"})
    for status, findings in [("passed", [finding]), ("waived", [finding]), ("failed", []), ("failed", [waived]),
                             ("waived", [waived, finding]), ("not_run", [finding]), ("waived", [])]:  # fmt: skip
        with pytest.raises(ValidationError):
            Check(id="cpu", status=status, findings=findings)
    with pytest.raises(ValidationError, match="cannot be waived"):
        Finding(**{**waived.model_dump(), "waivable": False})
    with pytest.raises(ValidationError):
        Policy.model_validate({**POLICY, "numpy": "two"})


WAIVERS = "waivers:\n- {check: link, member: 'a/*', reason: known}\n"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("cpus: avx\n", "cpus"),
        ("cpu: avx3\n", "cpu"),
        ("python: py3\n", "python"),
        ("platform: beos_x86_64\n", "platform"),
        ("sass: [90x]\n", "sass"),
        ("exclude: libnuma.so.1\n", "exclude"),
        ("forbidden: none\n", "forbidden"),
        (WAIVERS.replace("link", "archive"), "check"),
        (WAIVERS.replace("known", "'  '"), "reason"),
        (WAIVERS.replace("'a/*'", "''"), "member"),
    ],
)
def test_a_policy_file(tmp_path, text, key):
    """The documentation's example is one; an error in a file names the key."""
    path = tmp_path / "policy.yaml"
    page = (Path(__file__).parents[3] / "docs/reference/verify.md").read_text(encoding="utf-8")
    path.write_text(page.partition("```yaml\n")[2].partition("```")[0], encoding="utf-8")
    assert [waiver.check for waiver in load_policy(path).waivers] == ["link"]
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=key):
        load_policy(path)
