"""Windows wheels: who answers, what repair adds, and what WinError 126 was about."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from farm.base.errors import VerificationFailedError
from farm.catalog import cpu_levels
from farm.plan.recipe import recipe
from farm.plan.request import BuildRequest
from farm.plan.resolve import resolve
from farm.plan.variant import Variant
from farm.policy.rules import Policy
from farm.wheel.explain.explanation import explain
from farm.wheel.inspect import inspect
from farm.wheel.metadata import parse_record
from farm.wheel.repair import RepairOptions, repair
from farm.wheel.verify import verify

ROOT = Path(__file__).parents[3]
TAG = "cp311-cp311-win_amd64"


@pytest.fixture
def files(make_pe):
    return {
        "torch/__init__.py": b"",
        "torch/_C.cp311-win_amd64.pyd": make_pe(needed=["torch_cpu.dll", "python311.dll"]),
        "torch/lib/aoti_custom_ops.dll": make_pe(needed=["C10.dll"]),
        "torch/lib/c10.dll": make_pe(needed=["KERNEL32.dll", "torch_cpu.dll"]),
        "torch/lib/torch_cpu.dll": make_pe(
            needed=["LIBIOMP5MD.dll", "MSVCP140.dll"], delayed=["nvcuda.dll", "lazy.dll"]
        ),
        "torch/bin/tool.exe": make_pe(needed=["nowhere.dll"], dll=False),
        "torch/data.dll.txt": b"MZ is how this text begins",
    }


@pytest.fixture
def libs(tmp_path, make_pe):
    first, second = tmp_path / "lib1", tmp_path / "lib2"
    first.mkdir()
    second.mkdir()
    (first / "libiomp5md.dll").write_bytes(make_pe(machine=0x14C))
    (second / "LibIomp5md.dll").write_bytes(make_pe(needed=["Deep.dll", "kernel32.dll"]))
    (second / "deep.dll").write_bytes(make_pe(needed=["ucrtbase.dll"]))
    (second / "lazy.dll").write_bytes(make_pe())
    return [first, second]


@pytest.fixture
def wheel(tmp_path, files, make_wheel):
    return make_wheel(tmp_path / "in", files, name="torch", tag=TAG)


def answers(path):
    return {
        (need.who.rpartition("/")[2], need.name): (str(need.answer), need.when)
        for need in inspect(path).needs
    }


def test_every_needed_dll_has_an_answer(wheel):
    assert answers(wheel) == {
        ("_C.cp311-win_amd64.pyd", "torch_cpu.dll"): ("wheel", "load"),
        ("_C.cp311-win_amd64.pyd", "python311.dll"): ("python", "load"),
        ("aoti_custom_ops.dll", "C10.dll"): ("wheel", "load"),
        ("c10.dll", "KERNEL32.dll"): ("system", "load"),
        ("c10.dll", "torch_cpu.dll"): ("wheel", "load"),
        ("torch_cpu.dll", "LIBIOMP5MD.dll"): ("missing", "load"),
        ("torch_cpu.dll", "MSVCP140.dll"): ("vc runtime", "load"),
        ("torch_cpu.dll", "nvcuda.dll"): ("driver", "call"),
        ("torch_cpu.dll", "lazy.dll"): ("missing", "call"),
    }


def run(wheel, tmp_path, libs, out="out", **kwargs):
    dest = tmp_path / out
    dest.mkdir(exist_ok=True)
    return repair(wheel, dest, RepairOptions(**{"lib_dirs": libs, "into": "torch/lib", **kwargs}))


def test_repair_adds_what_is_missing_and_what_that_needs(tmp_path, wheel, libs, files):
    result = run(wheel, tmp_path, libs)
    assert result.wheel.name == wheel.name
    added = ["torch/lib/LibIomp5md.dll", "torch/lib/deep.dll", "torch/lib/lazy.dll"]
    assert [item.path for item in result.vendored] == added
    with zipfile.ZipFile(result.wheel) as archive:
        assert archive.testzip() is None
        inside = {name: archive.read(name) for name in archive.namelist()}
    assert {name: inside[name] for name in files} == files
    assert inside["torch/lib/LibIomp5md.dll"] == (libs[1] / "LibIomp5md.dll").read_bytes()
    assert f"Tag: {TAG}\n".encode() in inside["torch-1.0.dist-info/WHEEL"]
    rows = {row.path: row.digest for row in parse_record(inside["torch-1.0.dist-info/RECORD"])}
    assert rows["torch/lib/deep.dll"] == hashlib.sha256(inside["torch/lib/deep.dll"]).hexdigest()
    assert {answer for answer, _ in answers(result.wheel).values()} == {
        "wheel",
        "system",
        "python",
        "vc runtime",
        "driver",
    }


def test_the_same_input_gives_the_same_bytes(tmp_path, wheel, libs):
    first = run(wheel, tmp_path, libs).wheel.read_bytes()
    assert first == run(wheel, tmp_path, libs, out="again").wheel.read_bytes()


def test_a_new_version(tmp_path, wheel, libs):
    result = run(wheel, tmp_path, libs, version="1.0+cu117.sm35")
    assert result.wheel.name == f"torch-1.0+cu117.sm35-{TAG}.whl"


def test_excluded_in_any_case(tmp_path, wheel):
    assert run(wheel, tmp_path, [], exclude=["LibIomp5*", "lazy.dll"]).vendored == ()


@pytest.mark.parametrize(
    ("needed", "named"),
    [
        (
            ["VCOMP140.DLL", "libomp140.x86_64.dll"],
            "VCOMP140.DLL, libomp140.x86_64.dll",
        ),  # CMake's find with VS 2022
        (["libiomp5md.dll", "vcomp140.dll"], "libiomp5md.dll, vcomp140.dll"),
        (["VCOMP140.DLL", "libopenblas.dll"], None),
        (["libiomp5md.dll", "mkl_intel_thread.2.dll"], None),
    ],
)
def test_one_library_with_two_openmp_runtimes(tmp_path, make_wheel, make_pe, needed, named):
    """Each of two libraries may have its own; that is another matter, and torch and MKL live with
    it.
    """
    members = {
        "torch/lib/torch_cpu.dll": make_pe(needed=needed),
        "torch/lib/other.dll": make_pe(needed=needed[:1]),
    }
    wheel = make_wheel(tmp_path, members, tag=TAG)
    report = verify(wheel, Policy(platform="windows_x86_64"))
    found = [
        (finding.where, finding.what) for finding in report.findings if "OpenMP" in finding.what
    ]
    expected = (
        [("torch/lib/torch_cpu.dll", f"imports two OpenMP runtimes: {named}")] if named else []
    )
    assert found == expected
    if named:
        (tmp_path / "out").mkdir()
        for into in ("torch/lib", None):
            with pytest.raises(
                VerificationFailedError, match="imports two OpenMP runtimes"
            ) as error:
                repair(wheel, tmp_path / "out", RepairOptions(into=into, lib_dirs=[tmp_path]))
            assert "OpenMP_libomp_LIBRARY" in error.value.hint


def test_a_library_that_is_nowhere_is_named(tmp_path, wheel, libs):
    (libs[1] / "deep.dll").unlink()
    with pytest.raises(VerificationFailedError, match=r"LibIomp5md\.dll needs Deep\.dll"):
        run(wheel, tmp_path, libs)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_folder_where_windows_does_not_look(tmp_path, wheel, libs):
    with pytest.raises(VerificationFailedError, match="where Windows does not look"):
        run(wheel, tmp_path, libs, into="torch/elsewhere")


@pytest.mark.parametrize("name", ["..\\evil.dll", "C:\\x.dll", "../x.dll"])
def test_a_needed_name_cannot_lead_out_of_the_library_folders(
    tmp_path, make_pe, make_wheel, libs, name
):
    path = make_wheel(tmp_path / "in", {"torch/lib/a.dll": make_pe(needed=[name])}, tag=TAG)
    with pytest.raises(VerificationFailedError, match="works on one machine only"):
        run(path, tmp_path, libs)


def test_hidden_needs_of_cudnn_are_met(tmp_path, make_pe, make_wheel, libs):
    (libs[0] / "cudnn64_8.dll").write_bytes(
        make_pe(data=b"\0zlibwapi.dll\0cudnn_ops_infer64_8.dll\0")
    )
    (libs[0] / "cudnn_ops_infer64_8.dll").write_bytes(make_pe(data=b"\0zlibwapi.dll\0"))
    (libs[0] / "zlibwapi.dll").write_bytes(make_pe())
    path = make_wheel(
        tmp_path / "in", {"torch/lib/a.dll": make_pe(needed=["cudnn64_8.dll"])}, tag=TAG
    )
    added = [item.path.rpartition("/")[2] for item in run(path, tmp_path, libs).vendored]
    assert added == ["cudnn64_8.dll", "cudnn_ops_infer64_8.dll", "zlibwapi.dll"]


def test_a_damaged_dll_is_refused(tmp_path, make_pe, make_wheel):
    path = make_wheel(
        tmp_path / "in", {"torch/lib/a.dll": make_pe(needed=["b.dll"])[:500]}, tag=TAG
    )
    with pytest.raises(VerificationFailedError, match="damaged PE"):
        run(path, tmp_path, [])


def judged(path, platform="windows_x86_64"):
    policy = Policy(name="torch", version="1.0", python="cp311", platform=platform, cpu="avx")
    return {
        check.id: [finding.what for finding in check.findings]
        for check in verify(path, policy).checks
    }


def test_verify_judges_imports_and_tags(tmp_path, wheel, libs):
    found = judged(wheel)
    assert [what.partition(",")[0] for what in found["imports"]] == [
        "needs LIBIOMP5MD.dll",
        "needs lazy.dll",
    ]
    assert found["platform"] == []
    repaired = run(wheel, tmp_path, libs).wheel
    assert (judged(repaired)["imports"], judged(repaired)["platform"]) == ([], [])
    assert judged(repaired, "windows_aarch64")["platform"] == [
        "platform tag win_amd64 is not win_arm64"
    ]
    assert "is built for amd64, not for x86_64" in judged(repaired, "linux_x86_64")["imports"]


def why_126(path):
    [found] = explain(path, "OSError: [WinError 126] The specified module could not be found")
    return found


def test_error_126_of_a_wheel(tmp_path, wheel, libs):
    found = why_126(wheel)
    assert found.cause.endswith(
        "; torch/lib/aoti_custom_ops.dll is the first that fails (it is innocent: a bystander)"
    )
    chain = (
        "torch/lib/aoti_custom_ops.dll -> torch/lib/c10.dll -> torch/lib/torch_cpu.dll -> "
        "LIBIOMP5MD.dll"
    )
    assert found.culprits == (
        f"LIBIOMP5MD.dll, needed by torch/lib/torch_cpu.dll (chain: {chain})",
    )
    assert "intel-openmp" in found.cure
    after = why_126(run(wheel, tmp_path, libs).wheel)
    assert (after.culprits, "but Microsoft's runtime, such as " in after.cause) == ((), True)


@pytest.mark.parametrize("given", ["torch", "torch/lib", "."])
def test_error_126_of_an_installation(tmp_path, files, make_pe, given):
    site = tmp_path / "env" / "Lib" / "site-packages"
    for name, content in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(content)
    assert [each.partition(",")[0] for each in why_126(site / given).culprits] == ["LIBIOMP5MD.dll"]
    shared = tmp_path / "env" / "Library" / "bin"  # where pip puts intel-openmp, and torch looks
    shared.mkdir(parents=True)
    (shared / "libiomp5md.dll").write_bytes(make_pe())
    (shared / "unused.dll").write_bytes(make_pe(needed=["nowhere.dll"]))
    found = why_126(site / given)
    # What is missing for a later call is named where nothing else is.
    assert (
        [each.partition(",")[0] for each in found.culprits],
        "first that fails" in found.cause,
    ) == (
        ["lazy.dll"],
        False,
    )


def test_error_126_of_a_file_that_needs_it_itself(tmp_path, make_pe, make_wheel):
    path = make_wheel(
        tmp_path / "in", {"torch/lib/b.dll": make_pe(needed=["cupti64_2022.3.0.dll"])}, tag=TAG
    )
    found = why_126(path)
    assert found.cause.endswith("; torch/lib/b.dll is the first that fails")
    assert "11.8.87" in found.cure


@pytest.mark.parametrize("tier", ["AVX2", "AVX512"])
@pytest.mark.parametrize("cpu", ["sse41", "avx", "avx2", "avx512"])
def test_a_tier_above_the_level_is_found_by_what_it_exports(
    make_pe, make_wheel, tmp_path, cpu, tier
):
    """`DispatchStub<...>::AVX2` is there only if the tier was compiled."""
    stub = f"?{tier}@?$DispatchStub@P6AXAEAUTensorIteratorBase@at@@@ZUabs_fn@native@2@@native@at@@2P6AX@ZEA"
    files = {"torch/lib/torch_cpu.dll": make_pe(exports=["?DEFAULT@?$DispatchStub@x", stub])}
    left_out = [name for each in cpu_levels()[cpu].without for name in recipe("torch").tiers[each]]
    policy = Policy(cpu=cpu, dispatching=("torch/*.dll",), left_out=left_out)
    report = verify(make_wheel(tmp_path, files, tag=TAG), policy)
    found = [finding.what for finding in report.findings if finding.check == "cpu"]
    if tier in cpu_levels()[cpu].without:
        assert found == [f"exports 1 names of code that {cpu} leaves out, first {stub}"]
    else:
        assert found == []


def test_a_plan_holds_its_wheels_to_the_tiers_of_its_level():
    """Each platform's wheels of the recipe, by its own table."""
    for platform in ("windows", "linux"):
        chosen = BuildRequest(Variant.parse("sm35-avx-py311"), "torch", platform, "kepler-2.0.1")
        held = resolve(ROOT, chosen).verify.left_out
        assert held == tuple(
            name for tier in ("AVX2", "AVX512") for name in recipe("torch").tiers[tier]
        )
