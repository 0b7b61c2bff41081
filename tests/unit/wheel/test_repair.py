import hashlib
import zipfile

import pytest

from farm.base.errors import UsageError, VerificationFailedError
from farm.cli.main import main
from farm.policy.rules import Policy
from farm.wheel.archive import Archive
from farm.wheel.inspect import inspect
from farm.wheel.library import read_contents
from farm.wheel.metadata import compare_record, parse_record
from farm.wheel.repair import RepairOptions, repair
from farm.wheel.verify import verify


@pytest.fixture
def libs(tmp_path, make_elf):
    """Two library folders: the first holds the right name for the wrong machine, and a linker
    script.
    """
    first, second = tmp_path / "lib1", tmp_path / "lib2"
    first.mkdir()
    second.mkdir()
    (first / "libcudart.so.11.0").write_bytes(make_elf(machine=183, soname="libcudart.so.11.0"))
    (first / "libdeep.so.1").write_bytes(b"INPUT(libdeep.so.1.2)")
    (second / "libcudart.so.11.0").write_bytes(
        make_elf(
            soname="libcudart.so.11.0",
            needed=["libdeep.so.1", "libc.so.6"],
            runpath="$ORIGIN",
            versions={"libc.so.6": ["GLIBC_2.17"], "libdeep.so.1": ["DEEP_1"]},
        )
    )
    (second / "libdeep.so.1").write_bytes(make_elf(soname="libdeep.so.1", needed=["libc.so.6"]))
    return [first, second]


@pytest.fixture
def wheel(tmp_path, make_elf, make_wheel):
    module = make_elf(
        needed=["libcudart.so.11.0", "libcuda.so.1", "libc.so.6", "libown.so"],
        runpath="$ORIGIN",
        versions={"libc.so.6": ["GLIBC_2.2.5"]},
    )
    files = {
        "canary/__init__.py": b"",
        "canary/_C.cpython-311-x86_64-linux-gnu.so": module,
        "canary/libown.so": make_elf(soname="libown.so"),
        "canary-1.0.data/scripts/canary": b"#!python\n",
    }
    return make_wheel(tmp_path / "in", files)


def run(wheel, tmp_path, **kwargs):
    dest = tmp_path / "out"
    dest.mkdir(exist_ok=True)
    return repair(wheel, dest, RepairOptions(**{"into": "canary", **kwargs}))


def contents(path):
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def test_what_is_known_of_the_new_wheel_is_what_a_reader_of_it_sees(tmp_path, wheel, libs):
    """It is verified by that, without being read again."""
    for options in ({"version": "1.1"}, {"description": "repaired", "requires": ["numpy<2"]}):
        result = run(wheel, tmp_path, lib_dirs=libs, **options)
        with Archive(result.wheel) as archive:
            read = read_contents(archive, with_symbols=True, device=False)
        assert result.contents.files == read.files
        assert sorted(result.contents.libraries) == sorted(read.libraries)
        assert result.contents.symbols == read.symbols


def test_progress_is_reported_in_bytes_and_ends_at_the_total(tmp_path, wheel, libs):
    calls = []
    options = RepairOptions(into="canary", lib_dirs=libs)
    (tmp_path / "out").mkdir()
    repair(wheel, tmp_path / "out", options, lambda read, total: calls.append((read, total)))
    with Archive(wheel) as archive:
        size = sum(entry.compressed for entry in archive.members.values())
    assert calls == sorted(calls)
    assert calls[-1] == (size, size)


def test_libraries_tags_and_version(tmp_path, wheel, libs):
    result = run(wheel, tmp_path, lib_dirs=libs, version="1.0+cu118.sm35.avx")
    tags = "manylinux_2_17_x86_64.manylinux2014_x86_64"
    assert result.wheel.name == f"canary-1.0+cu118.sm35.avx-cp311-cp311-{tags}.whl"
    assert result.tags == ("manylinux_2_17_x86_64", "manylinux2014_x86_64")
    assert result.record_corrected == ()
    assert [(item.path, item.source) for item in result.vendored] == [
        ("canary/libcudart.so.11.0", str(libs[1] / "libcudart.so.11.0")),
        ("canary/libdeep.so.1", str(libs[1] / "libdeep.so.1")),
    ]
    inside = contents(result.wheel)
    info = "canary-1.0+cu118.sm35.avx.dist-info"
    assert set(inside) == {
        "canary/__init__.py",
        "canary/_C.cpython-311-x86_64-linux-gnu.so",
        "canary/libown.so",
        "canary/libcudart.so.11.0",
        "canary/libdeep.so.1",
        "canary-1.0+cu118.sm35.avx.data/scripts/canary",
        f"{info}/METADATA",
        f"{info}/WHEEL",
        f"{info}/RECORD",
    }
    for item in result.vendored:
        true = (libs[1] / item.path.removeprefix("canary/")).read_bytes()
        assert inside[item.path] == true
        assert (item.sha256, item.size) == (hashlib.sha256(true).hexdigest(), len(true))
    assert b"\nVersion: 1.0+cu118.sm35.avx\n" in inside[f"{info}/METADATA"]
    assert inside[f"{info}/WHEEL"].decode().splitlines()[-2:] == [
        f"Tag: cp311-cp311-{tag}" for tag in result.tags
    ]
    files = {
        name: (hashlib.sha256(content).hexdigest(), len(content))
        for name, content in inside.items()
    }
    assert (
        compare_record(None, parse_record(inside[f"{info}/RECORD"]), f"{info}/RECORD", files) == []
    )
    assert list(inside)[-1] == f"{info}/RECORD"
    with Archive(result.wheel) as archive:
        assert archive.members["canary/libdeep.so.1"].mode == 0o100755


def test_unchanged_members_are_not_recompressed(tmp_path, wheel, libs):
    result = run(wheel, tmp_path, lib_dirs=libs)
    with Archive(wheel) as old, Archive(result.wheel) as new:
        name = "canary/_C.cpython-311-x86_64-linux-gnu.so"
        assert b"".join(old.raw(old.members[name])) == b"".join(new.raw(new.members[name]))


def test_same_input_same_bytes_and_repairing_twice_changes_nothing(tmp_path, wheel, libs):
    first = run(wheel, tmp_path, lib_dirs=libs).wheel
    content = first.read_bytes()
    assert run(wheel, tmp_path, lib_dirs=libs).wheel.read_bytes() == content
    (tmp_path / "again").mkdir()
    second = repair(first, tmp_path / "again", RepairOptions(into="canary"))
    assert second.vendored == ()
    assert contents(second.wheel) == contents(first)


def test_a_library_that_is_nowhere(tmp_path, wheel, libs):
    (libs[1] / "libdeep.so.1").unlink()
    with pytest.raises(VerificationFailedError) as caught:
        run(wheel, tmp_path, lib_dirs=libs)
    for part in ("libdeep.so.1", "canary/libcudart.so.11.0 needs", str(libs[0]), str(libs[1])):
        assert part in str(caught.value)
    assert list((tmp_path / "out").iterdir()) == []


ARM, X86 = 183, 62


@pytest.mark.parametrize(
    ("tag", "machine", "built_for"),
    [("linux_x86_64", ARM, "aarch64"), ("linux_aarch64", X86, "x86_64")],
)
def test_libraries_of_another_machine_than_the_tags_are_refused(
    tmp_path, make_elf, make_wheel, tag, machine, built_for
):
    files = {"canary/libown.so": make_elf(machine=machine)}
    path = make_wheel(tmp_path / "in", files, tag=f"cp311-cp311-{tag}")
    with pytest.raises(VerificationFailedError) as caught:
        run(path, tmp_path)
    assert str(caught.value) == (
        f"its libraries ('canary/libown.so') are for {built_for}, "
        f"its tag is for {tag.removeprefix('linux_')}"
    )
    assert list((tmp_path / "out").iterdir()) == []


def test_a_program_for_another_machine_is_allowed_next_to_libraries_of_the_tags(
    tmp_path, make_elf, make_wheel
):
    files = {"canary/libown.so": make_elf(machine=X86), "canary/board.so": make_elf(machine=ARM)}
    assert run(make_wheel(tmp_path / "in", files), tmp_path).tags[0] == "manylinux_2_5_x86_64"


def test_excluded_libraries_are_left_out(tmp_path, wheel):
    result = run(wheel, tmp_path, exclude=["libcudart.so.*"])
    assert result.vendored == ()
    assert result.tags == ("manylinux_2_5_x86_64", "manylinux1_x86_64")


@pytest.mark.parametrize("runpath", [None, "/usr/local/cuda/lib64", "$ORIGIN/.."])
def test_a_vendored_library_that_would_not_be_found(tmp_path, make_elf, make_wheel, libs, runpath):
    module = make_elf(needed=["libcudart.so.11.0"], runpath=runpath)
    path = make_wheel(tmp_path / "in", {"canary/sub/_C.so": module})
    with pytest.raises(
        VerificationFailedError, match=r"canary/sub/_C\.so needs libcudart.*RUNPATH does not"
    ) as caught:
        run(path, tmp_path, lib_dirs=libs, into="torch/lib")
    assert "$ORIGIN/../../torch/lib" in caught.value.hint


def test_vendoring_elsewhere(tmp_path, make_elf, make_wheel, libs):
    module = make_elf(needed=["libdeep.so.1"], rpath="/nowhere:${ORIGIN}/../torch/lib")
    result = run(
        make_wheel(tmp_path / "in", {"functorch/_C.so": module}),
        tmp_path,
        lib_dirs=libs,
        into="torch/lib/",
    )
    assert [item.path for item in result.vendored] == ["torch/lib/libdeep.so.1"]


def test_platlib_members_count_from_where_they_are_installed(tmp_path, make_elf, make_wheel, libs):
    files = {
        "canary-1.0.data/platlib/canary/_C.so": make_elf(needed=["libown.so"], runpath="$ORIGIN"),
        "canary/libown.so": make_elf(),
    }
    assert run(make_wheel(tmp_path / "in", files), tmp_path).vendored == ()


@pytest.mark.parametrize("name", ["../../lib2/libdeep.so.1", "/etc/passwd", "..", ""])
def test_a_needed_name_cannot_lead_out_of_the_library_folders(
    tmp_path, make_elf, make_wheel, libs, name
):
    path = make_wheel(tmp_path / "in", {"canary/_C.so": make_elf(needed=[name], runpath="$ORIGIN")})
    with pytest.raises(VerificationFailedError, match="works on one machine only"):
        run(path, tmp_path, lib_dirs=libs)


def test_too_new_a_glibc(tmp_path, make_elf, make_wheel):
    module = make_elf(needed=["libc.so.6"], versions={"libc.so.6": ["GLIBC_2.99"]})
    with pytest.raises(VerificationFailedError, match=r"canary/_C\.so needs GLIBC_2\.99"):
        run(make_wheel(tmp_path / "in", {"canary/_C.so": module}), tmp_path)
    assert list((tmp_path / "out").iterdir()) == []


def test_versions_of_libraries_in_the_wheel_do_not_count(tmp_path, make_elf, make_wheel):
    """A wheel that brings its own libstdc++ does not depend on how old the system's is."""
    files = {
        "canary/_C.so": make_elf(
            needed=["libstdc++.so.6"],
            runpath="$ORIGIN",
            versions={"libstdc++.so.6": ["GLIBCXX_3.4.33"]},
        ),
        "canary/libstdc++.so.6": make_elf(),
    }
    assert run(make_wheel(tmp_path / "in", files), tmp_path).tags[0] == "manylinux_2_5_x86_64"


def test_a_wrong_record_is_corrected_and_said(tmp_path, make_wheel):
    record = b"canary/a.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\n"
    path = make_wheel(tmp_path / "in", {"canary/a.py": b"x"}, record=record)
    result = run(path, tmp_path)
    assert result.record_corrected[0] == "canary/a.py"
    inside = contents(result.wheel)
    rows = {row.path: row.digest for row in parse_record(inside["canary-1.0.dist-info/RECORD"])}
    assert rows["canary/a.py"] == hashlib.sha256(b"x").hexdigest()


@pytest.mark.parametrize(
    "record",
    [
        b"canary/a.py,md5=x,1\n",
        b"\xff\xfe",
        b"canary/a.py\n",
        b'"canary/a.py,,\n',
        b"canary/a.py,,one\n",
    ],
)
def test_a_record_that_cannot_be_read_is_written_anew(tmp_path, make_wheel, record):
    path = make_wheel(tmp_path / "in", {"canary/a.py": b"x"}, record=record)
    result = run(path, tmp_path)
    assert "canary/a.py" in result.record_corrected
    inside = contents(result.wheel)
    rows = {row.path: row.digest for row in parse_record(inside["canary-1.0.dist-info/RECORD"])}
    assert rows["canary/a.py"] == hashlib.sha256(b"x").hexdigest()
    assert set(rows) == set(inside)


def test_of_a_record_that_is_written_anew_the_command_says_so_shortly(tmp_path, make_wheel, capsys):
    """gmsh 4.15 for Windows has hexadecimal hashes: 350 lines."""
    files = {f"canary/{number}.py": b"x" for number in range(100)}
    path = make_wheel(
        tmp_path / "in",
        files,
        tag="py3-none-any",
        record=b"canary/0.py,sha256=" + b"0" * 64 + b",1\n",
    )
    [finding] = [each for each in verify(path, Policy()).findings if each.check == "record"]
    assert "farm repair" in finding.fix
    assert main(["repair", str(path), "--into", "canary", "-o", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 7
    assert out[4] == "corrected the hash of canary/3.py in RECORD"
    assert (
        out[5] == "and of 98 more files (--json names them)"
    )  # all, METADATA, WHEEL and RECORD itself


@pytest.mark.parametrize("member", ["canary/a.py", "canary-1.0.dist-info/METADATA"])
def test_a_wrong_hash_of_a_file_that_does_not_change_is_mended(
    tmp_path, make_wheel, make_digest, member
):
    """As in the official wheels of PyTorch 1.12.1: the length is right, the hash is not."""
    wheel = {"files": {"canary/a.py": b"x"}, "tag": "py3-none-any"}
    good = contents(make_wheel(tmp_path / "good", **wheel))
    false = good["canary-1.0.dist-info/RECORD"].replace(
        make_digest(good[member]).encode(), make_digest(b"").encode()
    )
    path = make_wheel(tmp_path / "in", **wheel, record=false)
    result = run(path, tmp_path)
    assert result.record_corrected == (member,)
    assert verify(result.wheel, Policy()).passed


def test_what_wheel_says_wrongly_is_mended_and_what_is_not_is_named(tmp_path, make_wheel, capsys):
    """openturns 1.22 has an empty Tag, usd_core 26.5 two Root-Is-Purelib."""
    text = (
        b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nRoot-Is-Purelib: false\nTag:\nTag: "
        b"py3-none-any\n"
    )
    metadata = b"Metadata-Version: 2.1\nName: canary\nVersion: 1.0\nRequires-Dist: numpy >>1\n"
    files = {"canary/a.py": b"x"}
    path = make_wheel(
        tmp_path / "in", files, tag="py3-none-any", wheel_file=text, metadata=metadata
    )
    before = [
        finding.what
        for finding in verify(path, Policy()).findings
        if finding.where.endswith("WHEEL")
    ]
    assert [what.partition(" is ")[0] for what in before] == ["Root-Is-Purelib", "Tag"]
    assert inspect(path).tags == ("py3-none-any",)
    assert main(["repair", str(path), "--into", "canary", "-o", str(tmp_path / "out")]) == 0
    [line] = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("not mended:")
    ]
    assert "numpy >>1" in line
    inside = contents(tmp_path / "out" / path.name)["canary-1.0.dist-info/WHEEL"]
    assert inside == b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-any\n"


def test_a_pure_wheel_keeps_its_tags(tmp_path, make_wheel):
    path = make_wheel(tmp_path / "in", {"canary/a.py": b"x"}, tag="py3-none-any")
    result = run(path, tmp_path, version="1.1")
    assert (result.wheel.name, result.tags) == ("canary-1.1-py3-none-any.whl", ())


def test_libraries_in_a_pure_wheel_are_refused(tmp_path, make_elf, make_wheel):
    path = make_wheel(tmp_path / "in", {"canary/_C.so": make_elf()}, tag="py3-none-any")
    with pytest.raises(VerificationFailedError, match="py3-none-any"):
        run(path, tmp_path)


def test_damaged_libraries_are_refused(tmp_path, make_elf, make_wheel):
    path = make_wheel(tmp_path / "in", {"canary/_C.so": make_elf()[:300]})
    with pytest.raises(VerificationFailedError, match=r"'canary/_C\.so': damaged ELF"):
        run(path, tmp_path)


def test_mistakes_of_the_caller(tmp_path, wheel):
    with pytest.raises(UsageError, match="no such folder"):
        repair(wheel, tmp_path / "none", RepairOptions(into="canary"))
    with pytest.raises(UsageError, match="into"):
        run(wheel, tmp_path, into="../x")
    with pytest.raises(UsageError, match="PEP 440"):
        run(wheel, tmp_path, version="not a version")
    with pytest.raises(UsageError, match="cannot be read"):
        run(tmp_path / "none-1-py3-none-any.whl", tmp_path)
    with pytest.raises(UsageError, match="no such folder of libraries"):
        repair(wheel, tmp_path, RepairOptions(into="canary", lib_dirs=[tmp_path / "none"]))


def test_a_failed_command_leaves_no_folder(tmp_path, wheel, capsys):
    out = tmp_path / "new"
    assert (
        main(["repair", str(wheel), "--into", "canary", "-o", str(out)]) == 6
    )  # a library is nowhere
    assert not out.exists()
    out.touch()
    assert main(["repair", str(wheel), "--into", "canary", "-o", str(out)]) == 2
    assert "new is not a folder" in capsys.readouterr().err
    out.unlink()
    out.mkdir()
    assert main(["repair", str(wheel), "--into", "canary", "-o", str(out)]) == 6
    assert out.is_dir()


@pytest.mark.parametrize("how", [["--into", "canary"], ["--tools"]])
@pytest.mark.parametrize(
    ("platform", "warning"),
    [("macosx_11_0_arm64.macosx_10_9_x86_64", True), ("macosx_11_0_arm64.any", False)],
)
def test_it_is_said_that_libraries_for_macos_are_not_read(
    tmp_path, make_wheel, capsys, platform, warning, how
):
    files = {"canary/_C.abi3.so": b"\xcf\xfa\xed\xfe"}
    tags = [f"cp311-abi3-{each}" for each in platform.split(".")]
    wheel = make_wheel(tmp_path, files, tag=f"cp311-abi3-{platform}", wheel_tags=tags)
    assert main(["repair", str(wheel), *how, "-o", str(tmp_path / "new")]) == 0
    *lines, path = capsys.readouterr().out.splitlines()
    assert path == str(tmp_path / "new" / wheel.name)
    assert [line.partition(":")[0] for line in lines] == (
        ["libraries for macOS are not read"] if warning else []
    )


def test_a_wheel_that_was_renamed_by_hand_is_for_the_machine_of_its_name(
    tmp_path, make_wheel, make_elf
):
    """playwright's says `any` in WHEEL: pip goes by the file name."""
    files = {"canary/driver/node": make_elf(kind=2, needed=["libc.so.6"])}
    wheel = make_wheel(
        tmp_path / "in", files, tag="py3-none-manylinux1_x86_64", wheel_tags=["py3-none-any"]
    )
    (tmp_path / "new").mkdir()
    new = repair(wheel, tmp_path / "new", RepairOptions(into="canary")).wheel
    assert b"Tag: py3-none-manylinux_2_5_x86_64" in contents(new)["canary-1.0.dist-info/WHEEL"]
    assert verify(new, Policy()).passed


def test_the_wheel_that_is_read_is_not_overwritten(tmp_path, make_wheel):
    path = make_wheel(tmp_path, {"canary/a.py": b"x"}, tag="py3-none-any")
    with pytest.raises(UsageError, match="overwrite"):
        repair(path, tmp_path, RepairOptions(into="canary"))


def test_requirements_are_written_once(tmp_path, make_wheel):
    """What METADATA lacks is added; what it has, in whatever spelling, is not said twice."""
    metadata = (
        b"Metadata-Version: 2.1\nName: canary\nVersion: 1.0\nRequires-Dist: filelock\n\nText\n"
    )
    wheel = make_wheel(
        tmp_path / "in", {"canary/__init__.py": b""}, tag="py3-none-any", metadata=metadata
    )
    first = run(wheel, tmp_path, requires=["numpy <2", "filelock"])
    inside = contents(first.wheel)
    assert inside["canary-1.0.dist-info/METADATA"] == metadata.replace(
        b"filelock\n\n", b"filelock\nRequires-Dist: numpy<2\n\n"
    )
    (tmp_path / "again").mkdir()
    second = repair(
        first.wheel, tmp_path / "again", RepairOptions(into="canary", requires=["numpy<2"])
    )
    assert (
        contents(second.wheel)["canary-1.0.dist-info/METADATA"]
        == inside["canary-1.0.dist-info/METADATA"]
    )
    with Archive(second.wheel) as archive:
        rows = parse_record(archive.read("canary-1.0.dist-info/RECORD"))
        files = {
            name: (hashlib.sha256(archive.read(name)).hexdigest(), archive.entry(name).size)
            for name in inside
        }
    assert compare_record(None, rows, "canary-1.0.dist-info/RECORD", files) == []
    with pytest.raises(UsageError, match="not a requirement"):
        run(wheel, tmp_path, requires=["numpy<<2"])


def test_a_wheel_for_every_machine_keeps_its_name(tmp_path, make_wheel):
    wheel = make_wheel(tmp_path / "in", {"canary/a.py": b""}, tag="py3-none-any")
    for options in (RepairOptions(into="canary"), RepairOptions()):
        assert repair(wheel, tmp_path, options).wheel.name == wheel.name


def test_a_library_opened_by_name_is_bundled_with_its_dependencies(tmp_path, wheel, libs, make_elf):
    for name, needs in (
        ("libbuiltins.so.11.8", ["libdeeper.so.1", "libc.so.6"]),
        ("libdeeper.so.1", ["libc.so.6"]),
    ):
        (libs[1] / name).write_bytes(make_elf(soname=name, needed=needs, runpath="$ORIGIN"))
    result = run(wheel, tmp_path, lib_dirs=libs, opens=["libbuiltins.so.*"])
    added = [item.path for item in result.vendored]
    assert added == [
        f"canary/{n}"
        for n in ("libbuiltins.so.11.8", "libcudart.so.11.0", "libdeep.so.1", "libdeeper.so.1")
    ]
    assert (
        contents(result.wheel)["canary/libbuiltins.so.11.8"]
        == (libs[1] / "libbuiltins.so.11.8").read_bytes()
    )
    (tmp_path / "again").mkdir()
    again = repair(
        result.wheel,
        tmp_path / "again",
        RepairOptions(lib_dirs=libs, into="canary", opens=["libbuilt*"]),
    )
    assert again.vendored == ()


def test_a_library_opened_by_name_that_is_missing_or_no_library(tmp_path, wheel, libs, make_elf):
    with pytest.raises(VerificationFailedError, match=r"no library named libbuiltins\.so\.\*"):
        run(wheel, tmp_path, lib_dirs=libs, opens=["libbuiltins.so.*"])
    with pytest.raises(VerificationFailedError, match=r"libdeep\.so\.1: not a library"):
        run(wheel, tmp_path, lib_dirs=libs, opens=["libdeep.so.1"])
    (libs[0] / "libarm.so").write_bytes(make_elf(machine=183, soname="libarm.so"))
    with pytest.raises(VerificationFailedError, match=r"libarm\.so: a library for aarch64"):
        run(wheel, tmp_path, lib_dirs=libs, opens=["libarm.so"])
    assert list((tmp_path / "out").iterdir()) == []
