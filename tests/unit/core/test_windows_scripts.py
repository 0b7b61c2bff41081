"""The scripts that a Windows build copies beside it: tools fetched and checked, jobs counted;
values in batch files.
"""

import hashlib
import importlib.util
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest
import yaml

from farm import catalog
from farm.base import text as cleaning
from farm.base.errors import NotBuildableError, UsageError
from farm.cli.main import main
from farm.plan.compat.stack import Stack
from farm.plan.matrix import load_matrix
from farm.plan.platforms.base import platform
from farm.plan.platforms.windows import cmd_text, visual_studio, wheel, windows_tools
from farm.plan.render import render
from farm.plan.request import BuildRequest
from farm.plan.resolve import resolve
from farm.plan.variant import Variant
from tests.plans import plan_of
from tests.servers.threads import Handler, answered_by


def zipped(files):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return content.getvalue()


def tarred(files):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return content.getvalue()


@pytest.fixture
def served():
    """A server on the loopback: path -> content; notes what was asked for."""
    files, requests = {}, []

    class Archives(Handler):
        def do_GET(self):
            requests.append(self.path)
            content = files.get(self.path)
            self.reply(404 if content is None else 200, content or b"")

    with answered_by(Archives) as url:
        yield url, files, requests


@pytest.fixture
def fetch(root, served, tmp_path):
    """Runs fetch_tools.py as a build does; gives exit code, output and the folder."""
    url, files, _ = served

    def run(content, members, sha256=None, max_mb=1, first=None):
        files["/x"] = content
        row = {
            "name": "x",
            "version": "1",
            "url": url + "/x",
            "sha256": sha256 or hashlib.sha256(content).hexdigest(),
        }
        manifest = tmp_path / "tools.json"
        if first is not None:  # what another address answers, which is asked before
            files["/first"] = first or None
            row |= {"url": url + "/first", "mirrors": [url + "/x"]}
        manifest.write_text(json.dumps([row | {"max_mb": max_mb, "members": members}]))
        command = [
            sys.executable,
            root / "dockerfiles/scripts/fetch_tools.py",
            manifest,
            tmp_path / "tools",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout + done.stderr, tmp_path / "tools"

    return run


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_wanted_members_are_unpacked_once(fetch, served, pack):
    content = pack(
        {"top/lib/libopenblas.lib": "LIB", "top/include/cblas.h": "H", "top/other": "no"}
    )
    members = {
        "*lib/libopenblas.lib": "openblas/lib/openblas.lib",
        "*include/*.h": "openblas/include/",
    }
    code, output, folder = fetch(content, members)
    assert code == 0, output
    assert {
        p.relative_to(folder).as_posix(): p.read_text()
        for p in folder.rglob("*.*")
        if p.suffix != ".ok"
    } == {
        "openblas/lib/openblas.lib": "LIB",
        "openblas/include/cblas.h": "H",
    }
    assert "is there already" in fetch(content, members)[1]
    assert len(served[2]) == 1


@pytest.mark.parametrize(
    ("content", "sha256", "message"),
    [
        (zipped({"a/x.dll": "1"}), "0" * 64, "expected " + "0" * 64),
        (zipped({"a/y.dll": "1"}), None, "the archive holds no *x.dll"),
        (zipped({"../x.dll": "1"}), None, "not a safe relative path"),
        (b"no archive", None, "damaged"),
        (b"0" * (2 << 20), None, "larger than 1 MiB"),
        (zipped({"a/x.dll": "1"})[:-30], None, "damaged"),
    ],
    ids=["other bytes", "member absent", "outside", "no archive", "too large", "cut short"],
)
def test_a_file_with_a_wrong_hash_is_refused_and_leaves_no_receipt(fetch, content, sha256, message):
    code, output, folder = fetch(content, {"*x.dll": "zlib/"}, sha256)
    assert (code, message in output) == (6, True), output
    assert not list(folder.rglob("*.ok")), "it is tried again the next time"


@pytest.mark.parametrize("first", [b"", b"a page that says that the file has moved"])
def test_a_second_address_serves_where_the_first_has_not_the_file(fetch, served, first):
    code, output, folder = fetch(zipped({"a/x.dll": "1"}), {"*x.dll": "zlib/"}, first=first)
    assert (code, (folder / "zlib/x.dll").read_text()) == (0, "1"), output
    assert served[2][-1] == "/x"
    assert re.search("next: .*/x", output)


def test_the_dll_that_cudnn_asks_for_has_three_addresses():
    zlib = windows_tools().tools["zlib"]
    assert len({zlib.url, *zlib.mirrors}) == 3


def test_the_users_archive_folder_is_asked_first(fetch, served, monkeypatch, tmp_path):
    content = zipped({"a/x.dll": "1"})
    own = tmp_path / "my archives"
    own.mkdir()
    monkeypatch.setenv("FARM_ARCHIVES", str(own))
    (own / "x").write_bytes(content)
    code, output, folder = fetch(content, {"*x.dll": "zlib/"})
    assert (code, (folder / "zlib/x.dll").read_text(), served[2]) == (0, "1", []), output
    assert "x: from FARM_ARCHIVES, sha256 as pinned" in output


@pytest.mark.parametrize("kept", [b"something else", None])
def test_missing_or_wrong_archives_come_from_their_original_address(
    fetch, served, monkeypatch, tmp_path, kept
):
    monkeypatch.setenv("FARM_ARCHIVES", str(tmp_path))
    if kept:
        (tmp_path / "x").write_bytes(kept)
    code, output, _ = fetch(zipped({"a/x.dll": "1"}), {"*x.dll": "zlib/"})
    assert (code, served[2]) == (0, ["/x"]), output
    assert ("another sha256 than the pinned" if kept else "not there") in output


def test_the_users_mirror_is_asked_first(fetch, served, monkeypatch):
    url, files, requests = served
    content = zipped({"a/x.dll": "1"})
    files["/mirror/x"] = content
    monkeypatch.setenv("FARM_ARCHIVES", url.replace("://", "://who:pass-word@") + "/mirror/")
    code, output, _ = fetch(content, {"*x.dll": "zlib/"})
    assert (code, requests, "pass-word" in output) == (0, ["/mirror/x"], False), output


@pytest.mark.parametrize(
    ("place", "written", "in_image"),
    [
        ("https://mirror.example.org/cuda", "https://mirror.example.org/cuda", True),
        ("D:\\my archives", "D:\\my archives", False),
        ("archives", "{project}/archives", False),
        (None, None, False),
    ],
)
def test_archives_of_the_settings_reach_the_build(root, tmp_path, place, written, in_image):
    shutil.copytree(root / "ci", tmp_path / "ci")
    settings = yaml.safe_load((tmp_path / "ci/farm.yaml").read_text())
    (tmp_path / "ci/farm.yaml").write_text(yaml.safe_dump(settings | {"archives": place}))
    plan = plan_of("sm35-avx-py311", channel="kepler-2.0.1", platform="windows", project=tmp_path)
    made = render(tmp_path, plan)
    expected = f"{written}\r\n".format(project=tmp_path) if written else None
    assert made.job.get("archives.txt") == expected
    assert ("archives.txt" in made.image) == in_image
    assert made.image["image.cmd"] == render(root, plan).image["image.cmd"], (
        "the image keeps its name"
    )


def test_the_archives_of_the_catalogue_give_what_builds_ask_for():
    places = [place for tool in windows_tools().tools.values() for place in tool.members.values()]
    assert {"sccache/sccache.exe", "zlib/zlibwapi.dll", "openblas/lib/openblas.lib"} <= set(places)


@pytest.mark.parametrize(
    ("cores", "total", "per_job", "jobs"),
    [
        (32, 33_378_976 << 10, 2.2, 15),
        (4, 256 << 30, 2.2, 4),
        (8, 1 << 30, 2.2, 1),
        (64, 5 << 40, 2.2, 64),
    ],
)
def test_jobs_by_cores_and_memory(root, monkeypatch, cores, total, per_job, jobs):
    """33,378,976 KB is the machine whose memory a 32-bit division took for too little."""
    module = script(root, "count_jobs", monkeypatch)
    assert module.jobs(cores, total, per_job) == jobs
    assert module.memory() > 1 << 28


def script(root, name, monkeypatch):
    """A script of a build, imported as it lies beside the others and the farm's own modules."""
    monkeypatch.syspath_prepend(str(root / "farm/base"))
    monkeypatch.syspath_prepend(str(root / "dockerfiles/scripts"))
    monkeypatch.setitem(sys.modules, "text", cleaning)  # a copy of it lies there in a build
    spec = importlib.util.spec_from_file_location(name, root / f"dockerfiles/scripts/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_progress_line_is_printed_each_minute(root, monkeypatch):
    """A step without Ninja has one too, and a part of the build that begins to count again is
    noticed.
    """
    progress = script(root, "logged", monkeypatch).Progress("build", 0)
    lines = []
    for now, text in (
        (60, b"-- Configuring done\n"), (70, b"[1/101] Building CXX object a.obj\n[2/101] b\n"), (80, b"[3/101] c\n"),
        (190, b"[12/101] d\n"), (310, b""), (320, b"[1/50] e\n"), (420, b"[11/50] f\n"),
    ):  # fmt: skip
        progress.read(text, now)
        lines.append(progress.line(now).removeprefix("step build, "))
    assert lines == [
        "1 min", "1 min: [2/101]", "1 min: [3/101], about 0 h 16 min left", "3 min: [12/101], about 0 h 17 min left",
        "5 min: [12/101], about 0 h 35 min left", "5 min: [1/50]", "7 min: [11/50], about 0 h 6 min left",
    ]  # fmt: skip


def answer_of_windows(folder, *lines):
    """A PowerShell that answers so, whatever it is asked: there is none here."""
    program = folder / "bin/powershell"
    program.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    program.chmod(0o755)


@pytest.fixture
def checked(root, tmp_path, monkeypatch, capsys, served):
    """check_machine.py on a machine that lacks nothing, whose one archive a server has; what it
    says, and its code.
    """
    module = script(root, "check_machine", monkeypatch)
    url, files, _ = served
    files["/zlib.zip"] = files["/nvcc.zip"] = b"x"
    for name in ("sdk", "bin", "bin/1033", "farm"):
        (tmp_path / name).mkdir()
    tools = ("bin/cl.exe", "bin/link.exe", "bin/rc.exe", "bin/mt.exe", "bin/1033/clui.dll")
    for name in ("sdk/windows.h", "sdk/kernel32.lib", *tools):
        (tmp_path / name).touch(0o755)
    answer_of_windows(tmp_path, "S-1-5-21-1-2-3-1001", "True", "C:\\Farm\\")
    monkeypatch.setenv("LIB", str(tmp_path / "sdk"))
    monkeypatch.setenv("FARM_TOOLSET", "Microsoft.VisualStudio.Component.VC.14.29.16.11.x86.x64")
    monkeypatch.setattr(module, "FARM", tmp_path / "farm")
    monkeypatch.setenv("INCLUDE", str(tmp_path / "sdk"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("FARM_ARCHIVES", raising=False)
    plan = {
        "windows": {"tools": [{"name": "zlib", "url": f"{url}/zlib.zip", "sha256": "a" * 64}]},
        "toolkit": {"archives": [{"url": f"{url}/nvcc.zip", "sha256": "b" * 64, "size": 1}]},
        "env": {"CUDA_HOME": str(tmp_path / "farm/cuda")}, "memory_per_job_gb": 0.1,
    }  # fmt: skip

    def run(disk_gb=0.001, **changes):
        (tmp_path / "plan.json").write_text(json.dumps(plan | changes))
        code = module.main([str(tmp_path / "plan.json"), str(disk_gb)])
        return code, capsys.readouterr().out

    return run


def test_a_machine_that_lacks_nothing_is_built_on(checked):
    assert checked() == (0, "")


@pytest.mark.parametrize(
    ("break_it", "options", "code", "message", "cure"),
    [
        (lambda here, _: (here / "sdk/windows.h").unlink(), {}, 3, "no Windows SDK", "--add Microsoft.VisualStudio.Component.Windows10SDK"),
        (lambda here, _: (here / "bin/1033/clui.dll").unlink(), {}, 0, "no English messages", "--addProductLang en-US"),
        (lambda here, _: (here / "sdk/kernel32.lib").unlink(), {}, 3, "no folder of LIB has kernel32.lib", "Windows10SDK"),
        (lambda here, _: (here / "bin/rc.exe").unlink(), {}, 3, "no rc.exe on PATH", "Windows10SDK"),
        (lambda here, _: (here / "bin/mt.exe").unlink(), {}, 3, "no mt.exe on PATH", "Windows10SDK"),
        (lambda here, _: (here / "bin/link.exe").unlink(), {}, 3, "no link.exe on PATH", "VC.14.29.16.11.x86.x64"),
        (lambda here, _: answer_of_windows(here, "S-1-5-18", "False"), {}, 0, "runs as SYSTEM", "services.msc"),
        (lambda here, _: answer_of_windows(here, "S-1-5-20", "False"), {}, 0, "runs as NETWORK SERVICE", "services.msc"),
        (lambda here, _: answer_of_windows(here, "S-1-5-21-1", "True"), {}, 0, "Defender reads each file", "Add-MpPreference -ExclusionPath C:\\farm"),
        (lambda here, _: answer_of_windows(here, "S-1-5-21-1", "True", "N/A: Must be an administrator to view exclusions"), {}, 0, "Defender reads", "Add-MpPreference"),
        (lambda _, files: files.update({"/zlib.zip": b"<html>suspended"}), {}, 9, "answers with a page", "set FARM_ARCHIVES="),
        (lambda _, files: files.update({"/nvcc.zip": b"\n<!DOCTYPE html>"}), {}, 9, "answers with a page", "set FARM_ARCHIVES="),
        (lambda *_: None, {"disk_gb": 10**9}, 3, "are free on the disk", "mklink /J"),
        (lambda *_: None, {"memory_per_job_gb": 10**9}, 0, "one compiler takes up to", "page file"),
        (lambda _, files: files.pop("/zlib.zip"), {}, 9, "/zlib.zip cannot be reached", f"put zlib.zip (sha256 {'a' * 64}) into a folder"),
        (lambda _, files: files.pop("/nvcc.zip"), {}, 9, "/nvcc.zip cannot be reached", "set FARM_ARCHIVES="),
    ],
)  # fmt: skip
def test_what_a_machine_lacks_is_said_before_the_first_download(
    checked, served, tmp_path, break_it, options, code, message, cure
):
    break_it(tmp_path, served[1])
    found, text = checked(**options)
    assert (found, text.count("\n")) == (code, 2), text
    assert message in text
    assert cure in text


def test_a_machine_without_defender_or_powershell_is_built_on(checked, tmp_path):
    answer_of_windows(tmp_path, "S-1-5-21-1-2-3-1001", "False")
    assert checked() == (0, "")
    (tmp_path / "bin/powershell").unlink()
    assert checked() == (0, "")


def test_an_archive_that_is_there_needs_no_server(checked, served, tmp_path, monkeypatch):
    for name in ("/zlib.zip", "/nvcc.zip"):
        served[1].pop(name)
    (tmp_path / "farm/tools").mkdir()
    (tmp_path / "farm/tools/zlib.ok").write_text("a" * 64)
    own = tmp_path / "own"
    own.mkdir()
    (own / "nvcc.zip").touch()
    monkeypatch.setenv("FARM_ARCHIVES", str(own))
    assert checked() == (0, "")


def test_values_are_escaped_for_batch_files():
    assert cmd_text("100% & ^ ! (x)") == "100%% & ^ ! (x)"
    for value in ('a"b', "Jürgen", "a\nb", "a\x00b"):
        with pytest.raises(UsageError, match="cannot be in a batch file"):
            cmd_text(value)


def test_every_python_has_its_packages():
    for python in ("py39", "py310", "py311", "py312", "py313", "py314"):
        version, digest = wheel("numpy", python)
        assert (int(version.split(".")[0]), len(digest)) == (2, 64)
    assert wheel("numpy", "py311", below="2")[0] == "1.26.4"
    with pytest.raises(NotBuildableError, match="no pinned numpy below 2 for py313"):
        wheel("numpy", "py313", below="2")
    with pytest.raises(NotBuildableError, match=r"no pinned numpy below 2\.3 for py314"):
        wheel("numpy", "py314", below="2.3")


@pytest.mark.parametrize(
    ("variant", "channel", "tools"),
    [
        ("sm35-avx-py311", "kepler-2.0.1", ["sccache", "zlib"]),
        ("sm35-avx-py311", "kepler-2.7.1", ["sccache", "zlib"]),
        ("legacy-sse41-py310", "kepler-compat", ["sccache", "openblas", "zlib"]),
        ("sm35-avx-py39", "kepler-1.12.1", ["sccache", "zlib"]),
    ],
)
def test_the_channels_of_the_guide(root, variant, channel, tools):
    plan = plan_of(variant, channel=channel, platform="windows")
    assert (plan.windows.visual_studio, plan.windows.toolset) == ("2019", "14.29")
    assert [tool.name for tool in plan.windows.tools] == tools
    assert plan.env["BUILD_TEST"] == "0"
    assert plan.env.get("CXXFLAGS") == ("/arch:AVX" if "-avx-" in variant else None)
    assert plan.tiers_off == ["AVX2", "AVX512"]
    assert plan.env["CUDA_HOME"] == plan.env["CUDA_PATH"]
    names = {entry.name: entry.version for entry in plan.windows.wheels}
    assert ("mkl-static" in names) is (plan.options["blas"] == "mkl")
    assert int(names["numpy"].split(".")[0]) == (2 if plan.options["torch"] == "2.7.1" else 1)
    assert "nsight_nvtx" in {archive.component for archive in plan.toolkit.archives}
    text = render(root, plan).job["tiers.cmake"]
    assert "set(CXX_AVX2_FOUND OFF" in text
    assert "set(CXX_AVX512_FOUND OFF" in text
    # FindOpenMP looks for a library only where this says none, and takes vcomp away where it ends
    # in libiomp5md.lib.
    library = (
        "C:/farm/venv/Library/lib/libiomp5md.lib" if plan.options["blas"] == "mkl" else "vcomp"
    )
    assert f'set(OpenMP_libomp_LIBRARY {library} CACHE STRING "" FORCE)' in text
    assert ("intel-openmp" in names) is ("libiomp5" in library)


@pytest.mark.parametrize(
    ("torch", "cuda", "studio"),
    [
        ("2.8.0", "12.8", "2022"),
        ("2.7.1", "12.8", "2022"),
        ("2.7.1", "11.7", "2019"),
        ("2.10.0", "13.0", "2022"),
    ],
)
def test_newer_releases_take_visual_studio_2022(torch, cuda, studio):
    stack = Stack(package="torch", variant=Variant.parse("sm80-avx2-py311"), platform="windows", base=None,
                  toolkit="nvidia", cuda=cuda, torch=torch, cudnn=None, ptx=False, components=())  # fmt: skip
    assert visual_studio(stack)[0] == studio


def test_a_container_gets_what_the_build_asks_for(root):
    """Whatever a build's variables may be set to, beside its tools' own: a container has none of
    the host's.
    """
    for package, names in (
        ("torch", {"FARM_JOBS", "FARM_ARCHIVES"}),
        ("torchvision", {"FARM_INDEX_URL"}),
    ):
        plan = plan_of("sm35-avx-py311", package, "kepler-2.0.1", "windows")
        job = render(root, plan).job
        # A container that is taken up again keeps its variables: the number of jobs goes in as a
        # file.
        passed = {
            name: "> jobs.txt echo %FARM_JOBS%" if name == "FARM_JOBS" else f"--env {name}"
            for name in names
        }
        assert {name for name in names if passed[name] not in job["container.cmd"]} == set()
        assert {name for name in names if name not in job["build.cmd"]} == set()


PASSED_ON = ("BUILD_", "USE_", "CMAKE_")
"""What PyTorch's tools/setup_helpers/cmake.py hands to CMake as -D, by the variable's name in
os.environ.
"""


def test_what_setup_py_hands_to_cmake_survives_windows(root):
    """Windows' Python gives every name of the environment in upper case, and CMake's names have a
    case.
    """
    builds = [build for build in load_matrix(root).builds() if build.platform == "windows"]
    assert builds
    for build in builds:
        options = {"cuda": (build.cuda, "matrix")} if build.cuda else {}
        plan = resolve(
            root, BuildRequest(build.variant, build.package, "windows", build.channel, options)
        )
        handed = [name for name in plan.env if name.upper().startswith(PASSED_ON)]
        assert [name for name in handed if name != name.upper()] == [], build
        if build.package == "torch":
            assert plan.env["CMAKE_PROJECT_INCLUDE"] == "C:/farm/job/tiers.cmake"


def test_plan_and_why_name_what_no_pin_holds(root, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    windows = ["--variant", "sm35-avx-py311", "--channel", "kepler-2.0.1", "--platform", "windows"]
    assert main(["--project", str(root), "plan", *windows, "--all"]) == 0
    output = capsys.readouterr().out
    assert output.count("not pinned") == 3
    for part in (
        "the machine's own 14.29.*",
        "ltsc2022, ltsc2025",
        "FARM_BASE",
        "VisualStudio.chman",
    ):
        assert part in output
    assert main(["--project", str(root), "why", *windows, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["not_pinned"]) == 3
    assert main(["--project", str(root), "why", "--variant", "sm35-avx-py311", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["not_pinned"] == []


def test_a_base_image_by_digest_is_not_named(monkeypatch):
    known = catalog.windows()
    pinned = {
        tag: core.model_copy(update={"image": f"{core.image}@sha256:{'0' * 64}"})
        for tag, core in known.servercore.items()
    }
    plan = plan_of("sm35-avx-py311", channel="kepler-2.0.1", platform="windows")
    monkeypatch.setattr(catalog, "windows", lambda: known.model_copy(update={"servercore": pinned}))
    assert not [text for text in platform("windows").floating(plan) if "base image" in text]


@pytest.mark.parametrize(
    ("variant", "channel", "wanted"),
    [
        ("sm35-avx-py311", "kepler-2.0.1", "/arch:AVX"),
        ("sm120-avx2-py311", "rtx50-windows", "/arch:AVX2 /D_DISABLE_CONSTEXPR_MUTEX_CONSTRUCTOR"),
    ],
)
def test_a_newer_toolset_is_configured_for_older_runtimes(variant, channel, wanted):
    """microsoft/STL#4730: from 14.40 on; the C compiler knows no std::mutex."""
    plan = plan_of(variant, channel=channel, platform="windows")
    assert (plan.env["CXXFLAGS"], plan.env["CFLAGS"]) == (wanted, wanted.split()[0])


@pytest.mark.parametrize(("extra", "code"), [(0, 0), (1, 1)])
def test_a_path_that_is_too_long_is_named(root, tmp_path, extra, code):
    """In characters, not bytes; what only git reads may be longer."""
    room = 259 - len(str(tmp_path)) - len("/ö/")
    for folder in ("ö", ".git"):
        (tmp_path / folder).mkdir()
    name = "n" * (room + extra)
    (tmp_path / "ö" / name).touch()
    (tmp_path / ".git" / ("g" * 250)).touch()
    command = [sys.executable, root / "dockerfiles/scripts/long_paths.py", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stderr
    assert done.stdout == (
        f"260 characters, 259 are possible: {tmp_path}/ö/{name}\n" if code else ""
    )


def test_only_the_first_of_many_long_paths_are_named(root, tmp_path):
    folder = tmp_path / ("f" * 150)
    folder.mkdir()
    for number in range(25):
        (folder / f"{number:03}{'n' * 200}").touch()
    command = [sys.executable, root / "dockerfiles/scripts/long_paths.py", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, len(done.stdout.splitlines()), done.stdout.splitlines()[-1]) == (
        1,
        21,
        "and 5 more",
    )
