"""What is refused of a wheel's archive, RECORD, WHEEL and name, by whatever command it comes."""

import stat
import struct
import zipfile
from random import Random

import pytest

from farm.base.errors import PublishRefusedError, UsageError
from farm.index.admission import check_archive, describe
from farm.index.layout import LAYOUT, RESERVED, check_group
from tests.indexes.wheels import build_wheel, recorded

NAME = "torch-2.0.1+cu118.sm35.avx-py3-none-any.whl"
INFO = "torch-2.0.1+cu118.sm35.avx.dist-info"
TAG = "Tag: py3-none-any\n"


def rezipped(path, change):
    """The wheel, written again with `change(archive, info, data)` for each member."""
    with zipfile.ZipFile(path) as archive:
        members = [(each, archive.read(each)) for each in archive.infolist()]
    with zipfile.ZipFile(path, "w") as archive:
        for info, data in members:
            change(archive, info, data)
    return path


def member(name, data=b"x", *, mode=0, method=zipfile.ZIP_STORED):
    """A further member of a wheel, in RECORD too."""

    def add(folder):
        path = build_wheel(
            folder, NAME, record=lambda lines: [*lines, recorded(name, data), f"{INFO}/RECORD,,"]
        ).path
        with zipfile.ZipFile(path, "a") as archive:
            info = zipfile.ZipInfo(name)
            info.external_attr, info.compress_type = mode << 16, method
            archive.writestr(info, data)
        return path

    return add


def prefixed(folder):
    path = build_wheel(folder, NAME).path
    path.write_bytes(b"0123456789" + path.read_bytes())
    return path


def followed(folder):
    path = build_wheel(folder, NAME).path
    path.write_bytes(path.read_bytes() + b"more")
    return path


def contradicting(folder):
    return rezipped(
        build_wheel(folder, NAME).path,
        lambda archive, info, data: archive.writestr(
            info, b"evil = 1\n" if info.filename.endswith(".py") else data
        ),
    )


def between(folder):
    """A member that only a reader finds who goes from the first byte on: before the directory at
    the end.
    """
    path = build_wheel(folder, NAME).path
    other = folder / "other.zip"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("torch/__evil__.py", "")
        hidden = other.read_bytes()[: archive.fp.tell()]
    data = path.read_bytes()
    end = len(data) - 22
    (start,) = struct.unpack_from("<I", data, end + 16)
    last = data[end : end + 16] + struct.pack("<I", start + len(hidden)) + data[end + 20 :]
    path.write_bytes(data[:start] + hidden + data[start:end] + last)
    return path


def longer_inside(folder):
    """More bytes where the first member's are than in the directory at the end."""
    path = build_wheel(folder, NAME).path
    data = bytearray(path.read_bytes())
    data[18:22] = struct.pack("<I", struct.unpack_from("<I", data, 18)[0] + 100)
    path.write_bytes(data)
    return path


def renamed_inside(folder):
    """Another name where the bytes are than in the directory at the end."""
    path = build_wheel(folder, NAME).path
    data = path.read_bytes()
    path.write_bytes(data.replace(b"torch/__init__.py", b"torch/__evil__.py", 1))
    return path


def bomb(folder):
    return member("torch/zeros.bin", b"\0" * (80 << 20), method=zipfile.ZIP_DEFLATED)(folder)


def made(**options):
    return lambda folder: build_wheel(folder, NAME, **options).path


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (prefixed, "directory is not where its end record says"),
        (followed, "bytes appended"),
        (between, "belong to no member"),
        (longer_inside, "local header contradicts the directory"),
        (contradicting, "its sha256 is not the one in RECORD"),
        (renamed_inside, "its local header names another member"),
        (bomb, "decompression bomb"),
        (member("../../../../tmp/x"), "not in normal form"),
        (member("/etc/x"), "absolute path"),
        (member("C:/x"), "a colon"),
        (member("torch//x"), "not in normal form"),
        (member("torch/./x"), "not in normal form"),
        (member("torch/__init__.py/x"), "is below"),
        (member("torch/link", mode=stat.S_IFLNK | 0o777), "is a link|symbolic link"),
        (member("torch/pipe", mode=stat.S_IFIFO | 0o666), "neither a file"),
        (member("torch/x", method=zipfile.ZIP_LZMA), "compression method 14"),
        (made(more={"torch/a\nb": ""}), "control characters"),
        (
            made(record=lambda lines: [*lines[1:], f"{INFO}/RECORD,,"]),
            "in the wheel but not in RECORD",
        ),
        (
            made(record=lambda lines: [*lines, recorded("torch/none.py", ""), f"{INFO}/RECORD,,"]),
            "in RECORD but not in the wheel",
        ),
        (
            made(record=lambda lines: [*lines, lines[0], f"{INFO}/RECORD,,"]),
            "listed twice in RECORD",
        ),
        (made(record=lambda lines: [lines[0].split(",")[0] + ",,", *lines[1:]]), "without a hash"),
        (made(tags="Tag: py2-none-any\n"), "are not those of the file's name"),
        (made(tags=""), "are not those of the file's name"),
        (made(extra="Summary: a\0b\n"), "control character"),
        (made(extra="Summary: a\x1bb\n"), "control character"),
        (made(extra="Summary: a\x9b31mb\n"), "control character"),
        (made(extra="Summary: a\u202eb\n"), "control character"),
        (made(tags=f"Wheel-Version: 9.0\n{TAG}"), "Wheel-Version 2 times"),
        (made(tags=f"Root-Is-Purelib: false\n{TAG}"), "Root-Is-Purelib 2 times"),
    ],
)
def test_archives_that_installers_read_differently_are_refused(tmp_path, uploaded, make, why):
    with pytest.raises(PublishRefusedError, match=why):
        describe(make(tmp_path), group="g", upload_time=uploaded, provenance={})


def test_a_member_that_appears_twice_is_refused(tmp_path):
    path = build_wheel(tmp_path, NAME).path
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("torch/__init__.py", "x = 2\n")
    with pytest.raises(PublishRefusedError, match="occurs twice"):
        check_archive(path)


@pytest.mark.parametrize("mode", [0, stat.S_IFREG | 0o755])
def test_valid_archives_are_accepted(tmp_path, uploaded, mode):
    path = member("torch/lib/x.so", b"code", mode=mode, method=zipfile.ZIP_DEFLATED)(tmp_path)
    assert describe(path, group="g", upload_time=uploaded, provenance={}).record.project == "torch"


@pytest.mark.parametrize(
    ("folder", "left_out", "why"),
    [
        ("other-2.0.1+cu118.sm35.avx", None, "another wheel's"),
        ("torch-2.0.1", None, "another wheel's"),
        ("torch", None, "another wheel's"),
        ("torch-2.0.1+cu118.sm35.avx", "WHEEL", "it is missing"),
        ("torch-2.0.1+cu118.sm35.avx", "RECORD", "it is missing"),
        ("torch-2.0.1+cu118.sm35.avx", "METADATA", "it is missing"),
    ],
)
def test_the_dist_info_is_that_of_the_file_name(tmp_path, folder, left_out, why):
    with zipfile.ZipFile(tmp_path / NAME, "w") as archive:
        for name in {"METADATA", "WHEEL", "RECORD"} - {left_out}:
            text = "Name: torch\nVersion: 2.0.1+cu118.sm35.avx\nWheel-Version: 1.0\n"
            archive.writestr(f"{folder}.dist-info/{name}", text)
    with pytest.raises(PublishRefusedError, match=why):
        check_archive(tmp_path / NAME)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_damaged_wheel_never_crashes(tmp_path, uploaded, method):
    path = rezipped(
        build_wheel(tmp_path, NAME).path,
        lambda archive, info, data: archive.writestr(info.filename, data, compress_type=method),
    )
    good, random = path.read_bytes(), Random(method)
    refused = 0
    for _ in range(300):
        bad = bytearray(good)
        for _ in range(random.randint(1, 4)):
            bad[random.randrange(len(bad))] = random.randrange(256)
        path.write_bytes(bad[: random.randrange(len(bad))] if random.random() < 0.1 else bad)
        try:
            describe(path, group="g", upload_time=uploaded, provenance={})
        except PublishRefusedError:
            refused += 1
    assert refused > 200


@pytest.mark.parametrize("name", sorted(name for name in RESERVED if "." not in name))
def test_names_of_the_layout_cannot_be_projects(tmp_path, uploaded, name):
    wheel = build_wheel(tmp_path, f"{name.replace('-', '_')}-1.0-py3-none-any.whl").path
    with pytest.raises(PublishRefusedError, match="name of the index's own layout"):
        describe(wheel, group="g", upload_time=uploaded, provenance={})
    with pytest.raises(UsageError, match="name of the index's own layout"):
        check_group(name)


def test_the_names_of_the_layout_are_those_of_its_table():
    assert {"simple", "v1-json", "files", "variant", "index.html"} <= RESERVED
    for key in (key for key in LAYOUT if key.startswith("whl/")):
        assert all(
            part in RESERVED for part in key.split("/")[1:] if "{" not in part and part != "…"
        ), key


DATA = "torch-2.0.1+cu118.sm35.avx.data"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("other-1.0.data/purelib/x.py", "the wheel's own is"),
        ("other-1.0.data/scripts/ls", "the wheel's own is"),
        (f"TORCH-{DATA[6:]}/scripts/cc", "the wheel's own is"),
        (f"{DATA}/evil/x", "no place for it"),
        (f"{DATA}/README", "no place for it"),
        (f"{DATA}/scripts/python3", "replaces a program of the interpreter"),
        (f"{DATA}/scripts/Python3.11", "replaces a program of the interpreter"),
        (f"{DATA}/scripts/pythonw.exe", "replaces a program of the interpreter"),
        (f"{DATA}/scripts/python-script.py", "replaces a program of the interpreter"),
        (f"{DATA}/scripts/activate", "replaces a program of the interpreter"),
        (f"{DATA}/scripts/Activate.ps1", "replaces a program of the interpreter"),
        (f"{DATA}/scripts/deep/tool", "no plain file name"),
        (f"{DATA}/data/pyvenv.cfg", "environment's configuration"),
        (f"{DATA}/data/PyVenv.cfg", "environment's configuration"),
        (f"{DATA}/data/python311._pth", "environment's configuration"),
        (f"{DATA}/data/bin/python", "replaces a program of the interpreter"),
        (f"{DATA}/data/Scripts/python.exe", "replaces a program of the interpreter"),
        (f"{DATA}/data/lib/python3.11/os.py", "other projects or of the standard library"),
        (f"{DATA}/data/lib/python3.11/site-packages/pip/x", "other projects or of the stan"),
        (f"{DATA}/data/Lib/site-packages/pip/x.py", "other projects or of the standard library"),
        (f"{DATA}/data/Lib/os.py", "other projects or of the standard library"),
        (f"{DATA}/purelib/other-1.0.dist-info/METADATA", "metadata of another project"),
        (f"{DATA}/platlib/sitecustomize.py", "at each start"),
        ("usercustomize/__init__.py", "at each start"),
        ("pip/__init__.py", "replaces files of pip"),
        (f"{DATA}/purelib/setuptools/x.py", "replaces files of setuptools"),
        (f"{DATA}/platlib/torch/__init__.py", "at the same place as"),
        (f"{DATA}/platlib/Torch/__init__.py", "at the same place as"),
    ],
)
def test_a_member_that_would_land_outside_of_the_packages_own_places(tmp_path, name, why):
    """pip put `ls` into bin/ and uv did not; `python3` replaced the environment's own."""
    with pytest.raises(PublishRefusedError, match=why):
        check_archive(member(name)(tmp_path))


@pytest.mark.parametrize(
    "name",
    [
        f"{DATA}/scripts/torchrun",
        f"{DATA}/scripts/convert.py",
        f"{DATA}/data/share/man/man1/torch.1",
        f"{DATA}/data/etc/jupyter/torch.json",
        f"{DATA}/data/lib/libtorch.so",
        f"{DATA}/data/bin/protoc",
        f"{DATA}/headers/torch.h",
        f"{DATA}/purelib/other/__init__.py",
        "torchgen/python.py",
        "pipeline/__init__.py",
    ],
)
def test_a_member_in_the_packages_own_places(tmp_path, name):
    check_archive(member(name)(tmp_path))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("../../evil = torch:main", "no plain file name"),
        ("/etc/evil = torch:main", "no plain file name"),
        (r"..\evil = torch:main", "no plain file name"),
        ("ls\x1b[2J = torch:main", "no plain file name"),
        ("tool. = torch:main", "no plain file name"),
        ("python = torch:main", "replaces a program"),
        ("Python3.exe = torch:main", "replaces a program"),
        ('tool = os:system("id");print', "is not module:function"),
        ("tool = torch", "is not module:function"),
        ("tool = torch:main\nTool = torch:main", "is there twice"),
        ("tool = torch:main\ntool = torch:main", "cannot be read"),
        ("tool", "cannot be read"),
        ("tool = torch:main\n[gui_scripts]\ntool = torch:main", "is there twice"),
    ],
)
def test_invalid_entry_points_are_refused(tmp_path, line, why):
    """pip 26.1 wrote `evil` two folders above the environment (CVE-2026-8643)."""
    text = f"[console_scripts]\n{line}\n"
    path = build_wheel(tmp_path, NAME, more={f"{INFO}/entry_points.txt": text}).path
    with pytest.raises(PublishRefusedError, match=why):
        check_archive(path)


def test_entry_points_as_projects_write_them(tmp_path):
    text = (
        "[console_scripts]\ntorchrun = torch.distributed.run:main\nf2py=a.b:C.main [extra]\n"
        "[torchrun.logs_specs]\ndefault = torch.x:Y\n"
    )
    check_archive(build_wheel(tmp_path, NAME, more={f"{INFO}/entry_points.txt": text}).path)


@pytest.mark.parametrize(("flags", "taken"), [(0, True), (1, False), (3, True)])
def test_bytecode_that_runs_whatever_its_source_says(tmp_path, flags, taken):
    data = b"\xa7\r\r\n" + flags.to_bytes(4, "little") + bytes(8)
    path = member("torch/__pycache__/x.cpython-311.pyc", data)(tmp_path)
    if taken:
        check_archive(path)
    else:
        with pytest.raises(PublishRefusedError, match="whatever its source says"):
            check_archive(path)


@pytest.mark.parametrize("name", ["con", "AUX", "com1"])
def test_a_project_that_windows_has_no_folder_for(tmp_path, uploaded, name):
    wheel = build_wheel(tmp_path, f"{name}-1.0-py3-none-any.whl").path
    with pytest.raises(PublishRefusedError, match="device on Windows"):
        describe(wheel, group="g", upload_time=uploaded, provenance={})
