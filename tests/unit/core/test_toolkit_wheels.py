"""The toolkit out of NVIDIA's wheels: which of them a plan takes, what the image makes of them,
what is refused.
"""

import contextlib
import importlib.util
import json
import struct
import sys
import zipfile
from pathlib import Path

import pytest

from farm import catalog
from farm.base.errors import BuildFailedError, NotBuildableError
from farm.engines.images import _take
from farm.plan.recipe import recipe
from farm.plan.render import render
from farm.run.build_inputs import BuildInputs
from farm.run.provenance import predicate
from farm.wheel.report import Report
from tests.plans import plan_of

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "dockerfiles" / "scripts"


def plan(variant, package="canary", channel="cuda13-wheels", platform="linux", **options):
    return plan_of(variant, package, channel, platform, **options)


def packages(made):
    return {str(wheel.package) for wheel in made.toolkit.wheels}


@pytest.mark.parametrize(
    "variant", ["sm75-avx-py311", "sm90-avx-py311", "sm120-avx2-py313", "sm121-armv9-py313"]
)
def test_a_compiler_is_four_wheels_and_nothing_of_nvidias_servers(variant):
    made = plan(variant)
    assert (made.toolkit.provider, made.toolkit.cuda, made.toolkit.archives) == (
        "wheels",
        "13.0",
        [],
    )
    assert packages(made) == {
        "nvidia-cuda-nvcc",
        "nvidia-nvvm",
        "nvidia-cuda-crt",
        "nvidia-cuda-runtime",
    }
    machine = "aarch64" if "armv9" in variant else "x86_64"
    assert all(f"_{machine}.whl" in str(wheel.file) for wheel in made.toolkit.wheels)
    assert "ca-certificates" not in made.apt


@pytest.mark.parametrize(
    ("variant", "channel", "torch"),
    [
        ("sm120-avx2-py313", "pytorch-2.10-python313", "2.10.0"),
        ("sm121-armv9-py313", "pytorch-2.10-python313", "2.10.0"),
        ("sm90-avx2-py313", "pytorch-2.9-python313", "2.9.1"),
    ],
)
def test_channels_of_pytorch_with_cuda_13_may_choose_it(variant, channel, torch):
    made = plan(variant, "torch", channel, toolkit="wheels", cuda="13.0")
    assert made.version.startswith(f"{torch}+cu130")
    assert packages(made) >= {
        "nvidia-cublas",
        "nvidia-nvjitlink",
        "nvidia-cuda-cccl",
        "nvidia-cudnn-cu13",
    }
    assert made.env["CUDA_HOME"] == made.env["CUDNN_ROOT"] == "/opt/cuda"
    parts = json.loads(render(ROOT, made).image["scripts/toolkit.json"])["parts"]
    members = {part["wheel"].partition("-")[0]: part["members"] for part in parts}
    assert members["nvidia_cudnn_cu13"] == {"nvidia/cudnn/**": "opt/cuda"}
    assert members["nvidia_cublas"] == {"nvidia/cu13/**": "opt/cuda"}


@pytest.mark.parametrize(
    ("variant", "platform", "options", "message"),
    [
        (
            "sm90-avx-py311",
            "linux",
            {"cuda": "12.8"},
            "the wheels toolkit has CUDA 13.0, .*13.5, not 12.8",
        ),
        (
            "sm35-avx-py311",
            "linux",
            {"cuda": "11.8"},
            "the wheels toolkit has CUDA 13.0, .*, not 11.8",
        ),
        ("sm70-avx-py311", "linux", {}, "CUDA 13.0 cannot compile for sm70"),
    ],
)
def test_builds_that_toolkit_wheels_cannot_serve_are_refused(variant, platform, options, message):
    with pytest.raises(NotBuildableError, match=message):
        plan(variant, platform=platform, **options)


@pytest.mark.parametrize(
    ("package", "channel"), [("canary", "cuda13-wheels"), ("torch", "windows-2.10.0")]
)
def test_on_windows_pip_unpacks_them_by_hash(package, channel):
    made = plan("sm120-avx2-py313", package, channel, "windows")
    job = render(ROOT, made).job
    lines = job["toolkit.txt"].splitlines()
    assert {line.partition("==")[0] for line in lines} == packages(made)
    assert all(
        f"--hash=sha256:{wheel.sha256}" in job["toolkit.txt"] for wheel in made.toolkit.wheels
    )
    assert "toolkit.json" not in job
    prepare = job["prepare.cmd"]
    home = made.env["CUDA_HOME"].replace("/", "\\")
    assert "install_toolkit.py" not in prepare
    assert "--target C:\\farm\\.cuda-wheels -r toolkit.txt" in prepare
    assert rf"xcopy C:\farm\.cuda-wheels\nvidia\cu13 {home} " in prepare
    assert (rf"xcopy C:\farm\.cuda-wheels\nvidia\cudnn {home} " in prepare) == (package == "torch")
    assert rf"{home}\bin\x86_64" in job["build.cmd"]


def test_a_cudnn_without_a_wheel_is_no_component():
    with pytest.raises(
        NotBuildableError, match=r"the wheels toolkit with CUDA 13\.0 has no cuDNN 9\.15\.1"
    ):
        plan(
            "sm120-avx2-py313", "torch", "pytorch-2.10-python313", toolkit="wheels", cudnn="9.15.1"
        )


def test_every_component_of_every_recipe_has_wheels_for_every_platform():
    for known in catalog.wheel_toolkits().values():
        assert set(recipe("torch").components) | {"driver_stub"} <= set(known.components)
        for platform, wheels in known.wheels.items():
            there = [wheel.package for wheel in wheels]
            assert len(there) == len(set(there))
            assert set(there) == {
                package for names in known.components.values() for package in names
            }
            assert all(platform in files for files in known.cudnn.values())
        sums = [wheel.sha256 for wheels in known.wheels.values() for wheel in wheels]
        assert len(sums) == len(set(sums))


def test_provenance_names_the_wheels_and_the_source_with_their_hashes():
    made = plan("sm35-avx-py311", "torchvision", "debian-2.6.0")
    report = Report(wheel="x", sha256="0" * 64, size=1, policy=made.verify, checks=(), waivers=())
    dependencies = predicate(made, report, BuildInputs())["buildDefinition"]["resolvedDependencies"]
    by_name = {each["name"]: each for each in dependencies}
    assert by_name["source"] == {
        "name": "source",
        "uri": "pkg:deb/debian/pytorch-vision?file_name=pytorch-vision_0.21.0.orig.tar.gz",
        "digest": {"sha256": made.source.sha256},
    }
    assert by_name["typing-extensions"]["uri"].startswith("pkg:pypi/typing-extensions?")
    assert by_name["nvidia-cudnn-cu11"]["digest"] == {"sha256": made.toolkit.wheels[0].sha256}
    assert all(value for each in dependencies for value in each["digest"].values())


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / "nvidia_x-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, mode in (
            ("nvidia/cu13/bin/nvcc", 0o755),
            ("nvidia/cu13/include/crt/a.h", 0o644),
            ("x/METADATA", 0o644),
        ):
            info = zipfile.ZipInfo(name)
            info.external_attr = (0o100000 | mode) << 16
            archive.writestr(info, name)
        archive.writestr("nvidia/cu13/lib/", b"")
    return path


def test_all_of_a_folder_keeps_its_folders_and_its_programs(wheel, tmp_path):
    taken = _take(wheel, {"nvidia/cu13/**": "opt/cuda"}, tmp_path / "root")
    assert sorted(taken) == ["opt/cuda/bin/nvcc", "opt/cuda/include/crt/a.h"]
    assert (tmp_path / "root/opt/cuda/bin/nvcc").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "root/opt/cuda/include/crt/a.h").stat().st_mode & 0o777 == 0o644


def test_a_member_that_leads_out_of_the_folder_is_refused(wheel, tmp_path):
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("nvidia/cu13/../../../evil", "x")
    with pytest.raises(BuildFailedError, match="leads out of its folder"):
        _take(wheel, {"nvidia/cu13/**": "opt/cuda"}, tmp_path / "root")
    assert not list(tmp_path.rglob("evil"))


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    spec = importlib.util.spec_from_file_location(
        "install_cuda_wheels", SCRIPTS / "install_cuda_wheels.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("install_debian_cuda", None)


def test_libraries_get_the_names_to_link_with(script, tmp_path):
    for name in (
        "libcudart.so.13",
        "libcudnn.so.9",
        "libnvrtc.so.13",
        "libnvrtc-builtins.so.13.0",
        "libx.so.1",
        "libx.so.1.2",
    ):
        (tmp_path / name).touch()
    (tmp_path / "libcudadevrt.a").touch()
    script.link_names(tmp_path)
    links = {path.name: str(path.readlink()) for path in tmp_path.iterdir() if path.is_symlink()}
    assert links == {
        "libcudart.so": "libcudart.so.13",
        "libcudnn.so": "libcudnn.so.9",
        "libnvrtc.so": "libnvrtc.so.13",
        "libnvrtc-builtins.so": "libnvrtc-builtins.so.13.0",
        "libx.so": "libx.so.1",
    }


@pytest.fixture(scope="module")
def libraries():
    spec = importlib.util.spec_from_file_location(
        "import_libraries", SCRIPTS / "import_libraries.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def dll():
    """A DLL that exports the function `one` and the variable `two`, written after Microsoft's PE
    format.
    """
    data = bytearray(0x800)
    struct.pack_into("<I", data, 0x3C, 0x80)
    struct.pack_into("<4sHH12xH", data, 0x80, b"PE\0\0", 0x8664, 2, 240)
    struct.pack_into("<H110xI", data, 0x98, 0x20B, 0x2000)
    for number, row in enumerate(
        [(0x100, 0x1000, 0x100, 0x400, 0x60000020), (0x300, 0x2000, 0x300, 0x500, 0x40000040)]
    ):
        struct.pack_into("<8x4I12xI", data, 0x98 + 240 + 40 * number, *row)
    struct.pack_into("<20x5I", data, 0x500, 2, 2, 0x2040, 0x2050, 0x2060)
    struct.pack_into("<2I", data, 0x540, 0x1000, 0x2100)
    struct.pack_into("<2I", data, 0x550, 0x2070, 0x2078)
    struct.pack_into("<2H", data, 0x560, 0, 1)
    data[0x570:0x574], data[0x578:0x57C] = b"one\0", b"two\0"
    return bytes(data)


def test_an_import_library_has_the_names_of_the_dll(libraries):
    names = libraries.exports(dll())
    assert names == [("one", False), ("two", True)]
    assert (
        libraries.definition("a64_13.dll", names)
        == 'LIBRARY "a64_13.dll"\nEXPORTS\n  one\n  two DATA\n'
    )


@pytest.mark.parametrize(
    ("platform", "refusals", "made"),
    [("win32", 2, True), ("win32", 10**6, False), ("linux", 1, False)],
)
def test_a_library_that_a_virus_scanner_has_open_is_renamed_later(
    libraries, tmp_path, monkeypatch, platform, refusals, made
):
    """On Windows, while it holds the file for seconds; a refusal elsewhere, or one that stays, is
    an error.
    """
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "lib.exe").write_text(
        '#!/bin/sh\nfor each; do :; done\necho made > "${each#/out:}"\n'
    )
    (tmp_path / "bin" / "lib.exe").chmod(0o755)
    (tmp_path / "one.dll").write_bytes(dll())
    rename, calls = Path.replace, []

    def refusing(path, target):
        calls.append(path)
        if len(calls) <= refusals:
            raise PermissionError(13, "held", str(path))
        return rename(path, target)

    clock = iter(range(10**6))
    monkeypatch.setattr(libraries.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(libraries.time, "sleep", lambda _: None)
    monkeypatch.setattr(Path, "replace", refusing)
    monkeypatch.setattr(libraries.sys, "platform", platform)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    target = tmp_path / "one.lib"
    if made:
        libraries.make(tmp_path / "one.dll", target)
        assert target.read_text() == "made\n"
    else:
        with pytest.raises(PermissionError):
            libraries.make(tmp_path / "one.dll", target)
        assert not target.exists()


def test_a_damaged_dll_is_reported(libraries):
    whole = dll()
    for end in range(0x57C):
        with pytest.raises(libraries.DllError):
            libraries.exports(whole[:end])
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 0xFF
        with contextlib.suppress(libraries.DllError):
            libraries.exports(bytes(changed))


@pytest.mark.parametrize(
    ("name", "linked"),
    [
        ("cublas64_13.dll", "cublas"),
        ("cublasLt64_13.dll", "cublasLt"),
        ("nvJitLink_130_0.dll", "nvJitLink"),
        ("nvrtc64_130_0.dll", "nvrtc"),
        ("nvrtc64_130_0.alt.dll", None),
        ("cupti64_2025.3.1.dll", "cupti"),
        ("cudnn_ops64_9.dll", "cudnn_ops"),
        ("checkpoint.dll", None),
    ],
)
def test_a_library_has_the_name_that_a_linker_is_given(libraries, name, linked):
    match = libraries.LINKED.fullmatch(name)
    assert (match and match[1]) == linked


@pytest.mark.parametrize("cuda", sorted(catalog.wheel_toolkits()))
def test_what_is_linked_from_a_toolkit_of_wheels_is_needed_from_the_same_files(cuda):
    """Else a wheel would be linked against one cuBLAS and installed with another."""
    linked = {
        wheel.package: wheel for wheel in catalog.wheel_toolkits()[cuda].wheels["linux-x86_64"]
    }
    known = catalog.library_wheels(cuda, "9.13.0")
    names = {wheel.package for wheel in known}
    assert names >= {
        "nvidia-cublas",
        "nvidia-cuda-runtime",
        "nvidia-cuda-nvrtc",
        "nvidia-cufft",
        "nvidia-cudnn-cu13",
    }
    for wheel in (each for each in known[:-1] if each.package != "nvidia-nccl-cu13"):
        assert (wheel.file, wheel.sha256) == (
            linked[wheel.package].file,
            linked[wheel.package].sha256,
        )
        assert wheel.folder == "nvidia/cu13/lib"
        assert {*wheel.requires} <= names


@pytest.mark.parametrize("cuda", sorted(catalog.wheel_toolkits()))
@pytest.mark.parametrize(
    ("variant", "platform"),
    [("sm75-avx-py311", "linux"), ("sm121-armv9-py313", "linux"), ("sm120-avx2-py313", "windows")],
)
def test_every_minor_has_a_compiler_of_its_own_release(cuda, variant, platform):
    made = plan(variant, platform=platform, cuda=cuda)
    assert made.version.startswith(f"0.1.0+cu{cuda.replace('.', '')}.")
    assert packages(made) == {
        "nvidia-cuda-nvcc",
        "nvidia-nvvm",
        "nvidia-cuda-crt",
        "nvidia-cuda-runtime",
    }
    assert {str(wheel.file).split("-")[1].rpartition(".")[0] for wheel in made.toolkit.wheels} == {
        cuda
    }
    assert len({wheel.sha256 for wheel in made.toolkit.wheels}) == len(made.toolkit.wheels)
    assert render(ROOT, made).job
