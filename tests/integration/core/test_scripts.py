"""The scripts that images and jobs run, with stand-ins for apt-get, ldd and the compilers only."""

import contextlib
import hashlib
import io
import json
import lzma
import re
import subprocess
import tarfile
import zipfile

import pytest

from farm.base import failures
from tests.servers.threads import Handler, answered_by

# --- install_debian_cuda.py ---


def ar(members):
    parts = [b"!<arch>\n"]
    for name, content in members:
        parts.append(f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode())
        parts.append(content + b"\n" * (len(content) % 2))
    return b"".join(parts)


def deb(files, links=(), compressed=True):
    """A package as dpkg-deb makes them: debian-binary, control.tar.xz, data.tar.xz with names that
    begin with ./
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for folder in ("./", "./usr/"):
            info = tarfile.TarInfo(folder)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(info)
        for name, content in files.items():
            info = tarfile.TarInfo(f"./{name}")
            info.size, info.mode = len(content), 0o644
            archive.addfile(info, io.BytesIO(content))
        for name, target in links:
            info = tarfile.TarInfo(f"./{name}")
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
    data = buffer.getvalue()
    body = ("data.tar.xz", lzma.compress(data, preset=0)) if compressed else ("data.tar.zst", data)
    return ar([("debian-binary", b"2.0\n"), ("control.tar.xz", b"odd"), body])


class Mirror:
    """Packages over HTTP, and what was asked for; `ranges` says how Range is answered."""

    def __init__(self):
        self.files, self.log, self.ranges = {}, [], "honoured"


@pytest.fixture
def mirror():
    state = Mirror()

    class Package(Handler):
        def do_GET(self):
            wanted = self.headers.get("Range")
            state.log.append((self.path, wanted))
            body, status = state.files.get(self.path), 200
            if body is None:
                body, status = b"", 404
            elif state.ranges == "refused" and wanted:
                body, status = b"", 416
            elif state.ranges == "nonsense":
                self.wfile.write(b"this is no HTTP\r\n\r\n")
                return
            elif state.ranges == "honoured" and wanted:
                end = int(re.fullmatch(r"bytes=0-(\d+)", wanted)[1])
                body, status = body[: end + 1], 206
            with contextlib.suppress(OSError):  # the client may have had enough
                self.reply(status, body)

    with answered_by(Package) as state.url:
        yield state


VERSION = "11.8.89~11.8.0-5~deb12u1"


@pytest.fixture
def apt(tmp_path, mirror, stand_ins, script):
    """Packages into the mirror, then the installer on a manifest; the log says what apt-get was
    asked for.
    """
    store = tmp_path / "store"
    store.mkdir()
    stand_ins(
        "apt-get",
        f"""\
import pathlib, shutil, sys
log = pathlib.Path({str(tmp_path)!r}, "apt.log")
with log.open("a") as stream:
    print(*sys.argv[1:], file=stream)
package = sys.argv[-1]
found = [p for p in pathlib.Path({str(store)!r}).iterdir() if p.name.split("_")[0] == package]
if not found:
    sys.exit("E: Unable to locate package " + package)
name = found[0].name
if "--print-uris" in sys.argv:
    print(f"'{mirror.url}/pool/{{name}}' {{name}} {{found[0].stat().st_size}} SHA256:0")
elif (pathlib.Path({str(store)!r}).parent / "no-download").exists():
    sys.exit(100)
else:
    shutil.copy(found[0], name)
""",
    )
    stand_ins(
        "ldconfig", f"import pathlib; pathlib.Path({str(tmp_path)!r}, 'ldconfig.ran').touch()"
    )

    class Apt:
        root = tmp_path / "root"

        def add(self, package, content, version=VERSION):
            name = f"{package}_{version.replace('~', '%7e')}_amd64.deb"
            (store / name).write_bytes(content)
            mirror.files[f"/pool/{name}"] = content

        def install(self, *parts, schema=1):
            self.root.mkdir(exist_ok=True)
            manifest = tmp_path / "toolkit.json"
            manifest.write_text(
                json.dumps({"schema": schema, "root": str(self.root), "parts": parts})
            )
            return script("install_debian_cuda.py", manifest)

        def tree(self):
            return {
                p.relative_to(self.root).as_posix(): p.readlink().as_posix()
                if p.is_symlink()
                else p.read_bytes()
                for p in self.root.rglob("*")
                if p.is_symlink() or p.is_file()
            }

        def downloads(self):
            lines = (tmp_path / "apt.log").read_text().splitlines()
            return [line.split()[-1] for line in lines if "--print-uris" not in line]

    return Apt()


NOISE = bytes(hashlib.sha256(b"%d" % n).digest()[0] for n in range(40_000))  # does not compress


HEADERS = {"usr/include/cuda.h": b"one", "usr/include/crt/host_config.h": b"two"}
BIG = deb({**HEADERS, "usr/lib/libcudart_static.a": NOISE, "usr/lib/end.a": b"end"})
HEAD = {"version": VERSION, "bytes": 30_000, "sha256": hashlib.sha256(BIG[:30_000]).hexdigest()}


def headers(**head):
    return {"package": "nvidia-cuda-dev", "members": ["usr/include/*"], "head": HEAD | head}


def test_the_head_alone_is_fetched_when_version_and_hash_fit(apt, mirror):
    assert len(BIG) > 40_000
    apt.add("nvidia-cuda-dev", BIG)
    answer = apt.install(headers())
    assert (answer.returncode, answer.stderr) == (0, "")
    assert apt.tree() == HEADERS
    assert [wanted for _, wanted in mirror.log] == ["bytes=0-29999"]
    assert apt.downloads() == []
    assert (apt.root.parent / "ldconfig.ran").exists()


def test_a_server_that_ignores_ranges_is_left_after_the_head(apt, mirror):
    mirror.ranges = "ignored"
    apt.add("nvidia-cuda-dev", BIG)
    assert apt.install(headers()).returncode == 0
    assert apt.tree() == HEADERS
    assert apt.downloads() == []


@pytest.mark.parametrize("ranges", ["refused", "nonsense"])
def test_a_server_without_ranges_gives_the_whole_package(apt, mirror, ranges):
    mirror.ranges = ranges
    apt.add("nvidia-cuda-dev", BIG)
    answer = apt.install(headers())
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "fetching the whole package" in answer.stdout
    assert apt.tree() == HEADERS
    assert apt.downloads() == ["nvidia-cuda-dev"]


def test_a_head_with_another_hash_gives_the_whole_package(apt, mirror):
    apt.add("nvidia-cuda-dev", BIG)
    answer = apt.install(headers(sha256="0" * 64))
    assert answer.returncode == 0
    assert "the beginning is not the pinned one" in answer.stdout
    assert apt.tree() == HEADERS
    assert apt.downloads() == ["nvidia-cuda-dev"]


def test_another_version_gives_the_whole_package_without_a_try(apt, mirror):
    apt.add("nvidia-cuda-dev", BIG, "11.8.89~11.8.0-6")
    assert apt.install(headers()).returncode == 0
    assert apt.tree() == HEADERS
    assert mirror.log == []
    assert apt.downloads() == ["nvidia-cuda-dev"]


def test_half_a_file_at_the_end_of_a_head_is_not_left_behind(apt):
    big = deb({"usr/include/a.h": b"whole", "usr/include/half.h": NOISE})
    apt.add("nvidia-cuda-dev", big)
    answer = apt.install(headers(sha256=hashlib.sha256(big[:30_000]).hexdigest()))
    assert answer.returncode == 0, answer.stderr
    assert apt.tree() == {"usr/include/a.h": b"whole"}


def test_members_symlink_and_empty_archive(apt):
    lib = "usr/lib/x86_64-linux-gnu"
    files = {
        f"{lib}/libcudart.so.11.8.89": b"elf",
        "usr/share/doc/copyright": b"text",
        "etc/nvcc.profile": b"p",
    }
    apt.add("libcudart11.0", deb(files, [(f"{lib}/libcudart.so.11.0", "libcudart.so.11.8.89")]))
    part = {
        "package": "libcudart11.0", "members": ["usr/lib/*", "etc/nvcc.*"],
        "link": "libcudart.so", "empty_archive": "libcudadevrt.a", "link_script": "libcudart_static.a",
    }  # fmt: skip
    answer = apt.install(part)
    assert (answer.returncode, answer.stderr) == (0, "")
    expected = {
        f"{lib}/libcudart.so.11.8.89": b"elf",
        f"{lib}/libcudart.so.11.0": "libcudart.so.11.8.89",
        f"{lib}/libcudart.so": "libcudart.so.11.0",
        f"{lib}/libcudadevrt.a": b"!<arch>\n",
        f"{lib}/libcudart_static.a": b"INPUT ( -lcudart )\n",
        "etc/nvcc.profile": b"p",
    }
    assert apt.tree() == expected
    assert apt.install(part).returncode == 0  # again
    assert apt.tree() == expected


ONE = deb({"usr/include/a.h": b"1", "usr/lib/b.a": NOISE})


@pytest.mark.parametrize(
    ("content", "part", "message"),
    [
        (
            ONE,
            {"members": ["usr/include/*", "usr/bin/nvcc"]},
            f"some {VERSION} holds nothing that matches usr/bin/nvcc",
        ),
        (ONE, {"members": ["usr/lib/*"], "link": "libx.so"}, "nothing to point libx.so at"),
        (ONE[:20_000], {}, "unexpected end of data"),
        (ONE[:70], {}, "no data.tar in the package"),
        (b"", {}, "no Debian package"),
        (b"<html>sign in</html>", {}, "no Debian package"),
        (b"!<arch>\n" + b"x" * 80, {}, "has no length"),
        (ar([("data.tar.xz", b"not xz at all")]), {}, "not supported"),
        (
            deb({"usr/a": b""}, compressed=False),
            {},
            "data.tar.zst: a compression that this installer does not know",
        ),
        (deb({"usr/../../evil": b"x"}), {"members": ["*"]}, "points outside"),
        (deb({"../evil": b"x"}), {"members": ["*"]}, "points outside"),
    ],
)
def test_a_package_that_does_not_fit_is_exit_code_9(apt, tmp_path, content, part, message):
    apt.add("some", content)
    answer = apt.install({"package": "some", "members": ["*"], **part})
    assert answer.returncode == 9
    assert message in answer.stderr
    assert answer.stderr.startswith("install_debian_cuda: ")
    assert len(answer.stderr.splitlines()) == 1
    assert not list(tmp_path.rglob("evil"))
    assert not (tmp_path / "ldconfig.ran").exists()


CUDNN = {
    "wheel": "nvidia_cudnn.whl",
    "sha256": "0" * 64,
    "members": {"nvidia/include/*.h": "usr/include", "nvidia/lib/*.so.*": "usr/lib/x86"},
    "link": "libcudnn.so",
}


def test_what_came_out_of_a_wheel_gets_its_link(apt, tmp_path):
    for name in (
        "usr/include/cudnn.h",
        "usr/lib/x86/libcudnn.so.8",
        "usr/lib/x86/libcudnn_ops_infer.so.8",
    ):
        path = apt.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"from the wheel")
    answer = apt.install(CUDNN)
    assert answer.returncode == 0, answer.stderr
    assert "nvidia_cudnn.whl: 3 files" in answer.stdout
    assert apt.tree()["usr/lib/x86/libcudnn.so"] == "libcudnn.so.8"
    assert (tmp_path / "ldconfig.ran").exists()


def test_a_context_without_what_the_wheel_holds_is_exit_code_9(apt):
    answer = apt.install(CUDNN)
    assert answer.returncode == 9
    assert (
        "nothing of nvidia_cudnn.whl that matches nvidia/include/*.h is in usr/include"
        in answer.stderr
    )


def test_apt_that_knows_nothing_or_fails_is_exit_code_9(apt, tmp_path):
    answer = apt.install({"package": "absent", "members": ["*"]})
    assert answer.returncode == 9
    assert "apt knows no package absent: E: Unable to locate package absent" in answer.stderr
    apt.add("some", ONE)
    (tmp_path / "no-download").touch()
    answer = apt.install({"package": "some", "members": ["*"]})
    assert answer.returncode == 9
    assert "apt-get download some failed (exit code 100)" in answer.stderr


def test_a_bad_manifest_is_exit_code_2(apt, script, tmp_path):
    assert "expected schema 1, not 2" in apt.install(schema=2).stderr
    assert apt.install(schema=2).returncode == 2
    for content in ("", "[]", "{}", '{"schema": 1}'):
        path = tmp_path / "bad.json"
        path.write_text(content)
        answer = script("install_debian_cuda.py", path)
        assert (answer.returncode, answer.stderr.count("\n")) == (2, 1)
    assert script("install_debian_cuda.py").returncode == 2


# --- collect_libraries.py ---


def test_libraries_of_the_system_are_collected_and_those_of_the_wheel_are_not(
    tmp_path, stand_ins, script
):
    system = tmp_path / "system"
    system.mkdir()
    (system / "libgomp.so.1.0.0").write_bytes(b"gomp")
    (system / "libgomp.so.1").symlink_to("libgomp.so.1.0.0")
    stand_ins(
        "ldd",
        f"""\
import os, sys
own = os.path.dirname(sys.argv[1])
print("\\tlinux-vdso.so.1 (0x00007ffd)")
print("\\tlibgomp.so.1 => {system}/libgomp.so.1 (0x00007f)")
print(f"\\tlibown.so => {{own}}/libown.so (0x00007f)")
print("\\tlibgone.so.1 => not found")
print("\\t/lib64/ld-linux-x86-64.so.2 (0x00007f)")
""",
    )
    wheels, dest = tmp_path / "wheel", tmp_path / "lib"
    wheels.mkdir()
    dest.mkdir()
    with zipfile.ZipFile(wheels / "a-1-py3-none-any.whl", "w") as archive:
        for name in ("a/_C.cpython-311.so", "a/libown.so", "a/__init__.py"):
            archive.writestr(name, b"")
    answer = script("collect_libraries.py", wheels, dest)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert {p.name: p.read_bytes() for p in dest.iterdir()} == {"libgomp.so.1": b"gomp"}
    assert not (dest / "libgomp.so.1").is_symlink()
    assert answer.stdout == f"libgomp.so.1: from {system}/libgomp.so.1\n"


def test_libraries_that_others_open_by_name_are_collected_by_the_linkers_cache(
    tmp_path, stand_ins, script
):
    system = tmp_path / "system"
    system.mkdir()
    (system / "libnvrtc-builtins.so.11.8.89").write_bytes(b"builtins")
    (system / "libnvrtc-builtins.so.11.8").symlink_to("libnvrtc-builtins.so.11.8.89")
    stand_ins("ldd", "")
    stand_ins(
        "ldconfig",
        f"""\
print("2 libs found in cache `/etc/ld.so.cache'")
print("\tlibnvrtc.so.11.2 (libc6,x86-64) => {system}/libnvrtc.so.11.2")
print("\tlibnvrtc-builtins.so.11.8 (libc6,x86-64) => {system}/libnvrtc-builtins.so.11.8")
""",
    )
    wheels, dest = tmp_path / "wheel", tmp_path / "lib"
    wheels.mkdir()
    dest.mkdir()
    with zipfile.ZipFile(wheels / "a-1-py3-none-any.whl", "w") as archive:
        archive.writestr("a/__init__.py", b"")
    answer = script("collect_libraries.py", wheels, dest, "libnvrtc-builtins.so.*")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert {p.name: p.read_bytes() for p in dest.iterdir()} == {
        "libnvrtc-builtins.so.11.8": b"builtins"
    }
    assert not (dest / "libnvrtc-builtins.so.11.8").is_symlink()
    answer = script("collect_libraries.py", wheels, dest, "libcudnn_*")
    assert (answer.returncode, answer.stderr) == (
        1,
        "no library of this system is named libcudnn_*\n",
    )


def test_libraries_that_no_repair_takes_are_not_collected(tmp_path, stand_ins, script):
    """CUDA's, where the wheel needs NVIDIA's wheels: 3 GB. A pattern that is excluded as a whole is
    no error.
    """
    system = tmp_path / "system"
    system.mkdir()
    for name in ("libgomp.so.1", "libcublas.so.11", "libnvrtc.so.11.2", "libother.so.3"):
        (system / name).write_bytes(name.encode())
    lines = "\n".join(
        f"print('\\t{name} => {system}/{name} (0x00007f)')"
        for name in ("libgomp.so.1", "libcublas.so.11")
    )
    stand_ins("ldd", lines)
    stand_ins(
        "ldconfig",
        f"print('\\tlibnvrtc.so.11.2 (libc6) => {system}/libnvrtc.so.11.2')\n"
        f"print('\\tlibother.so.3 (libc6) => {system}/libother.so.3')\n",
    )
    wheels, dest = tmp_path / "wheel", tmp_path / "lib"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "a-1-py3-none-any.whl", "w") as archive:
        archive.writestr("a/_C.so", b"")
    excluded = ("--exclude", "libcublas.so.*", "--exclude", "libnvrtc.so.11.2")
    answer = script(
        "collect_libraries.py", *excluded, wheels, dest, "libnvrtc.so.*", "libother.so.*"
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    assert {p.name for p in dest.iterdir()} == {"libgomp.so.1", "libother.so.3"}


@pytest.mark.parametrize("count", [0, 2])
def test_one_wheel_is_expected(tmp_path, script, count):
    for n in range(count):
        (tmp_path / f"{n}.whl").touch()
    answer = script("collect_libraries.py", tmp_path, tmp_path)
    assert (answer.returncode, answer.stderr) == (
        1,
        f"expected one wheel in {tmp_path}, found {count}\n",
    )


# --- prove_toolchain.py ---

COMPILER = """\
import pathlib, sys
out = pathlib.Path(sys.argv[sys.argv.index("-o") + 1])
source = pathlib.Path([a for a in sys.argv[1:] if a.endswith((".cpp", ".cu"))][0]).read_text()
assert "int main()" in source
out.write_text("#!/bin/sh\\nexit {code}\\n")
out.chmod(0o755)
"""


def test_a_toolchain_is_proved_with_both_compilers(stand_ins, script):
    for name in ("g++-11", "nvcc"):
        stand_ins(name, COMPILER.format(code=0))
    answer = script("prove_toolchain.py", "--cxx", "g++-11", "--sm", "35")
    assert (answer.returncode, answer.stderr) == (0, "")
    steps = [re.sub(r"/.+?/(?=(?:one|two)\.)", "", line) for line in answer.stdout.splitlines()]
    assert steps == [
        "+ g++-11 one.cpp -o one.bin",
        "+ one.bin",
        (
            "+ nvcc -ccbin g++-11 -Wno-deprecated-gpu-targets -gencode arch=compute_35,code=sm_35 "
            "two.cu -o two.bin"
        ),
        "+ two.bin",
    ]
    assert "nvcc" not in script("prove_toolchain.py", "--cxx", "g++-11").stdout


@pytest.mark.parametrize(
    ("compiler", "message"),
    [
        ("import sys; sys.exit(1)", "g++-11 failed with exit code 1"),
        (COMPILER.format(code=3), "one.bin failed with exit code 3"),
    ],
)
def test_a_toolchain_that_does_not_work_fails_the_image(stand_ins, script, compiler, message):
    stand_ins("g++-11", compiler)
    answer = script("prove_toolchain.py", "--cxx", "g++-11")
    assert answer.returncode == 1
    assert answer.stderr.startswith("prove_toolchain: ")
    assert message in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_compiler_that_is_not_there(script):
    answer = script("prove_toolchain.py", "--cxx", "no-such-compiler")
    assert (answer.returncode, answer.stderr) == (
        1,
        "prove_toolchain: no-such-compiler: No such file or directory\n",
    )


# --- apt_sections.sh ---


def test_apt_sees_the_sections_where_cuda_is(tmp_path, root):
    """The script as it is, with the folder of apt's lists and the system's name moved."""
    lists = tmp_path / "apt"
    (lists / "sources.list.d").mkdir(parents=True)
    (lists / "os-release").write_text("ID=debian\n")
    old, new = lists / "sources.list", lists / "sources.list.d" / "debian.sources"
    other = lists / "sources.list.d" / "other.sources"
    old.write_text(
        "# deb x main\ndeb http://mirror.example/debian bookworm main\ndeb-src "
        "http://mirror.example x main\n"
    )
    new.write_text("Types: deb\nSuites: bookworm\nComponents: main non-free-firmware\n")
    other.write_text("Types: deb\nSuites: /\nComponents: stable\n")
    text = (root / "dockerfiles/scripts/apt_sections.sh").read_text()
    assert text.count("/etc/apt/") == 2
    text = text.replace("/etc/apt/", "").replace("/etc/os-release", "./os-release")
    for _ in range(2):  # once and again
        subprocess.run(["sh", "-c", text], check=True, cwd=lists)
        assert old.read_text().splitlines() == [
            "# deb x main",
            "deb http://mirror.example/debian bookworm main contrib non-free",
            "deb-src http://mirror.example x main",
        ]
        assert (
            new.read_text() == "Types: deb\nSuites: bookworm\nComponents: main contrib non-free\n"
        )
        assert other.read_text() == "Types: deb\nSuites: /\nComponents: stable\n"
    old.unlink()
    new.unlink()
    subprocess.run(["sh", "-c", text], check=True, cwd=lists)


# --- run_build.py ---


@pytest.mark.parametrize(
    ("end", "lines"),
    [
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            ["ERROR the build backend was ended by signal 9 (SIGKILL)"],
        ),
        (
            "os.kill(os.getpid(), signal.SIGSEGV)",
            ["ERROR the build backend was ended by signal 11 (SIGSEGV)"],
        ),
        (
            "os.kill(os.getpid(), signal.SIGRTMIN + 1)",
            ["ERROR the build backend was ended by signal 35 (a signal)"],
        ),
        ("sys.exit(3)", []),
    ],
)
@pytest.mark.parametrize(
    "call", ["check_call", "run(check=True)"], ids=["pep517", "pyproject_hooks 1.3.3"]
)
def test_the_signal_that_ended_a_build_backend_is_named(
    script, tmp_path, monkeypatch, call, end, lines
):
    """With what stands for the package `build`: it runs a backend as pep517 and pyproject_hooks
    do.
    """
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "__init__.py").touch()
    backend = f"import os, signal, sys; {end}"
    (tmp_path / "build" / "__main__.py").write_text(
        "import sys\nfrom functools import partial\nfrom subprocess import CalledProcessError, "
        "check_call, run\n"
        f"try: {call.replace('run(', 'partial(run, ')}([sys.executable, '-c', {backend!r}])\n"
        "except CalledProcessError: sys.exit(f'ERROR Backend subprocess exited: {sys.argv[1:]}')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    answer = script("run_build.py", "--wheel", ".")
    assert answer.returncode == 1
    assert answer.stderr.splitlines() == [
        *lines,
        "ERROR Backend subprocess exited: ['--wheel', '.']",
    ]
    found = failures.read(answer.stderr.splitlines(), build=True)
    assert (found.cause, bool(lines)) in {
        ("out of memory", True),
        ("the build's backend crashed", True),
        (None, False),
    }
    assert (found.cause == "out of memory") == ("SIGKILL" in end)
