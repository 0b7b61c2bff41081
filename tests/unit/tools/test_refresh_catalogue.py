"""What the refresh tool makes of a package index: a small one here, with wheels in the form of the
real ones.

The listings have PEP 691's form with the file names of the Python index; the wheels hold what the
tool reads of a wheel (members, METADATA, version.py), with contents as in torch 2.15.0 and CUDA
13.0, under the version of a release to come.
"""

import hashlib
import io
import json
import re
import shutil
import zipfile

import pytest

from farm import catalog
from farm.base.yamlfile import load
from farm.catalog import models
from tests.servers.threads import Handler, answered_by
from tests.unit.wheel.conftest import build_elf, fat_container, fat_entry
from tools import cuda_releases, refresh_catalogue
from tools.package_index import release_key

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TORCH = {
    "torch/version.py": f"__version__ = '9.0.0'\ncuda: Optional[str] = '13.2'\ngit_version = '{COMMIT}'\n",
    "torch/share/cmake/Caffe2/public/cuda.cmake": "if(CUDA_VERSION VERSION_LESS 12.0)\n",
    "torch/share/cmake/Torch/TorchConfig.cmake": "  set_property(TARGET torch PROPERTY CXX_STANDARD 20)\n",
    "torch-9.0.0.dist-info/METADATA": "Name: torch\nRequires-Dist: nvidia-cudnn-cu13==9.20.0.48; x\n",
    "torch/lib/libtorch_cuda.so": "",
    "torch/lib/libtorch_python.so": "\0sm_75 sm_80 sm_86 sm_90 compute_90 \0",
}
PTXAS = """#!/bin/sh
echo "--gpu-name <gpu name>  Specify name of NVIDIA GPU: 'sm_75','sm_80','sm_90','sm_120'. Default value: 'sm_75'."
"""
HEADER = "#if __GNUC__ > 16\n#if _MSC_VER < 1910 || _MSC_VER >= 1960\n"


def wheel(members):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return data.getvalue()


class Index:
    """An index of PEP 691: packages with their files, and ranges of these."""

    def __init__(self):
        self.files = {}
        self.pages = {}
        self.ranges = True
        outer = self

        class Page(Handler):
            def do_GET(self):
                name = self.path.strip("/").rpartition("/")[2]
                data, code = outer.files.get(name) or outer.listing(name), 200
                if data is None:
                    self.send_error(404)
                    return
                given = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
                if given and outer.ranges:
                    data, code = data[int(given[1]) : int(given[2]) + 1], 206
                self.reply(code, data)

        self.handler = Page

    def add(self, package, file, members=None, **more):
        data = wheel(members or {})
        self.files[file] = data
        self.pages.setdefault(package, []).append(
            {
                "filename": file,
                "url": f"{self.url}/files/{file}",
                "hashes": {"sha256": hashlib.sha256(data).hexdigest()},
                "size": len(data),
                "upload-time": "2026-11-20T10:00:00Z",
                **more,
            }
        )

    def listing(self, package):
        if package not in self.pages:
            return None
        return json.dumps(
            {"meta": {"api-version": "1.1"}, "name": package, "files": self.pages[package]}
        ).encode()


@pytest.fixture
def index():
    made = Index()
    for package in ("torch", "torchvision", "torchaudio", "cuda-toolkit"):
        made.pages[package] = []
    with answered_by(made.handler) as made.url:
        yield made


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy of the catalogue, to change."""
    copy = tmp_path / "farm" / "catalog"
    shutil.copytree(
        catalog.FOLDER, copy, ignore=shutil.ignore_patterns("__pycache__", "*.py", "redist")
    )
    monkeypatch.setattr(refresh_catalogue, "FOLDER", copy)
    return copy


@pytest.fixture
def refresh(index, folder, capsys):
    def run(*words):
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        code = refresh_catalogue.main([*words, "--index", index.url])
        output = capsys.readouterr()
        changed = {path.name for path in folder.iterdir() if path.read_bytes() != before[path.name]}
        return code, output, changed

    return run


def new_torch(index):
    for python in ("cp311-cp311", "cp314-cp314", "cp314-cp314t"):
        index.add("torch", f"torch-9.0.0-{python}-manylinux_2_28_x86_64.whl", TORCH)
    index.add("torch", "torch-9.0.0-cp311-cp311-win_amd64.whl", TORCH)
    vision = {
        "torchvision/version.py": f"git_version = '{COMMIT[::-1]}'\n",
        "torchvision-0.99.0.dist-info/METADATA": "Requires-Dist: torch==9.0.0\n",
    }
    index.add("torchvision", "torchvision-0.99.0-cp311-cp311-manylinux_2_28_x86_64.whl", vision)


def test_known_releases_are_not_proposed(refresh, index):
    for version, release in catalog.torch_releases().items():
        tag = release.pythons.linux[0].replace("py", "cp")
        index.add("torch", f"torch-{version}-{tag}-{tag}-manylinux_2_28_x86_64.whl")
    for name, kit in catalog.toolkits().items():
        if release_key(name) >= cuda_releases.OLDEST_CUDA:
            index.add("cuda-toolkit", f"cuda_toolkit-{kit.release}-py2.py3-none-any.whl")
    code, output, changed = refresh("torch", "cuda", "--check", "--write")
    assert (code, output.out, changed) == (0, "", set())
    assert output.err.startswith("kept by hand:\n")
    assert output.err.endswith("\nnothing new\n")


def test_a_python_that_a_known_release_has_wheels_for_is_named(refresh, index):
    index.add("torch", "torch-2.10.0-cp399-cp399-manylinux_2_28_x86_64.whl")
    code, output, changed = refresh("torch", "--check", "--write")
    assert (code, output.out, changed) == (1, "", set())
    assert "torch 2.10.0: linux wheels for py399, which its `pythons` lacks" in output.err


@pytest.mark.parametrize(
    ("file", "more"),
    [
        ("torch-9.0.0rc1-cp311-cp311-manylinux_2_28_x86_64.whl", {}),
        ("torch-9.0.0-cp311-cp311-manylinux_2_28_x86_64.whl", {"yanked": "broken"}),
        ("torch-1.11.0-cp310-cp310-manylinux1_x86_64.whl", {}),
        ("torch-9.0.0.tar.gz", {}),
    ],
)
def test_versions_that_are_no_release_are_not_proposed(refresh, index, file, more):
    index.add("torch", file, TORCH, **more)
    assert refresh("torch", "--check")[0] == 0


def test_a_new_torch_is_proposed_as_a_patch_and_written_only_when_asked(refresh, index, folder):
    new_torch(index)
    code, output, changed = refresh("torch", "--check")
    assert (code, changed) == (1, set())
    added = [
        line[1:]
        for line in output.out.splitlines()
        if line.startswith("+") and not line.startswith("+++")
    ]
    assert output.out.startswith("--- a/farm/catalog/torch.yaml\n+++ b/farm/catalog/torch.yaml\n")
    assert added[0] == '  "9.0.0":'
    assert not [line for line in output.out.splitlines()[2:] if line.startswith("-")]
    assert "torch 9.0.0: the other CUDA flavours in RELEASE.md" in output.err

    assert refresh("torch", "--write")[::2] == (0, {"torch.yaml"})
    release = load(folder / "torch.yaml", models.TorchReleases).releases["9.0.0"]
    assert (release.commit, release.vision, release.vision_commit) == (
        COMMIT,
        "0.99.0",
        COMMIT[::-1],
    )
    assert (release.cuda_min, release.cxx, release.msvc_built) == ("12.0", 20, None)
    assert release.pythons.linux == ["py311", "py314", "py314t"]
    assert (release.pythons.windows, release.pythons.macos) == (["py311"], [])
    assert [(each.cuda, each.cudnn) for each in release.official] == [("13.2", "9.20.0.48")]
    assert release.audio_commit is None  # the index has no torchaudio for it: said, not made up
    assert release.sources["audio"].startswith("no published companion asks for exactly this torch")


def test_a_new_official_wheel_is_recorded_with_its_hash(refresh, index, folder):
    new_torch(index)
    assert refresh("official", "--write")[::2] == (0, {"official.yaml"})
    rows = [
        row
        for row in load(folder / "official.yaml", models.OfficialWheels).wheels
        if row.torch == "9.0.0"
    ]
    linux = next(row for row in rows if row.platform == "linux-x86_64")
    assert (linux.cuda, linux.sm, linux.ptx) == ("13.2", [75, 80, 86, 90], [90])
    assert linux.sha256 == hashlib.sha256(index.files[str(linux.file)]).hexdigest()
    assert {row.platform for row in rows} == {"linux-x86_64", "windows-x86_64"}


def test_a_new_cuda_is_read_from_its_own_assembler_and_its_drivers_are_left_to_a_person(
    refresh, index, folder
):
    meta = {
        "cuda_toolkit-99.1.0.dist-info/METADATA": "Requires-Dist: nvidia-cuda-nvcc==99.1.*; extra == 'nvcc'\n"
    }
    index.add("cuda-toolkit", "cuda_toolkit-99.1.0-py2.py3-none-any.whl", meta)
    tools = {"nvidia/cu99/bin/ptxas": PTXAS, "nvidia/cu99/include/crt/host_config.h": HEADER}
    index.add("nvidia-cuda-nvcc", "nvidia_cuda_nvcc-99.1-py3-none-manylinux2014_x86_64.whl", tools)
    code, output, changed = refresh("cuda", "--write", "--check")
    assert (code, changed) == (1, {"cuda.yaml"})
    kit = load(folder / "cuda.yaml", models.Toolkits).toolkits["99.1"]
    assert (kit.release, kit.sm, kit.gcc_max, kit.msvc_min, kit.msvc_max) == (
        "99.1.0",
        [75, 80, 90, 120],
        16,
        1910,
        1959,
    )
    assert (kit.driver_linux, kit.driver_windows) == (None, None)
    assert "CUDA 99.1: drivers" in output.err


TAGS = {
    "linux-x86_64": "manylinux_2_27_x86_64",
    "linux-aarch64": "manylinux2014_aarch64.manylinux_2_17_aarch64",
    "windows-x86_64": "win_amd64",
    "windows-arm64": "win_arm64",
}


def toolkit_of_wheels(index, lost=(), moved=None):
    """CUDA 13.9.2 in wheels, as NVIDIA's of 13.4: without the files `lost`, the package `moved` in
    another folder.
    """
    known = catalog.wheel_toolkits()["13.5"]
    packages = sorted({package for names in known.components.values() for package in names})
    versions = {package: f"13.9.{number}" for number, package in enumerate(packages)}
    lines = [
        f"Requires-Dist: {name}=={version}.*; extra == 'all'" for name, version in versions.items()
    ]
    # As cuda-toolkit asks for nvJitLink: any that is new enough.
    lines = [re.sub(r"nvjitlink==([\d.]+)\.\*", r"nvjitlink<14,>=\1", line) for line in lines]
    meta = {"cuda_toolkit-13.9.2.0.dist-info/METADATA": "\n".join(lines) + "\n"}
    index.add("cuda-toolkit", "cuda_toolkit-13.9.2.0-py2.py3-none-any.whl", meta)
    for package, version in versions.items():
        folder = "nvidia/cu14" if package == moved else "nvidia/cu13"
        held = known.libraries[package].files if package in known.libraries else ["x.so"]
        names = [one.replace("*", "9") for one in held if one not in lost]
        members = {f"{folder}/lib/{name}": "" for name in names} | {
            f"{package}.dist-info/METADATA": ""
        }
        for tag in TAGS.values():
            file = f"{package.replace('-', '_')}-{version}-py3-none-{tag}.whl"
            index.add(package, file, members)


@pytest.fixture
def cuda_13_9(monkeypatch):
    kit = catalog.toolkits()["13.5"].model_copy(update={"release": "13.9.2"})
    monkeypatch.setitem(catalog.toolkits(), "13.9", kit)


@pytest.mark.usefixtures("cuda_13_9")
def test_a_toolkit_in_wheels_is_pinned_for_each_platform(refresh, index, folder):
    toolkit_of_wheels(index)
    assert refresh("toolkits", "--write")[::2] == (0, {"toolkit_wheels.yaml"})
    made = load(folder / "toolkit_wheels.yaml", models.WheelToolkits).toolkits["13.9"]
    assert made.layout == "cu13"
    assert set(made.wheels) == {"linux-x86_64", "linux-aarch64", "windows-x86_64"}
    for platform, found in made.wheels.items():
        assert {wheel.package for wheel in found} == {
            name for names in made.components.values() for name in names
        }
        assert all(TAGS[platform] in str(wheel.file) for wheel in found)
        assert all(
            wheel.sha256 == hashlib.sha256(index.files[str(wheel.file)]).hexdigest()
            for wheel in found
        )


@pytest.mark.usefixtures("cuda_13_9")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"lost": ["libcufft.so.12"]},
            "nvidia_cufft-13.9.8-py3-none-manylinux_2_27_x86_64.whl has no libcufft.so.12",
        ),
        (
            {"moved": "nvidia-nvvm"},
            "nvidia_nvvm-13.9.15-py3-none-manylinux_2_27_x86_64.whl has nvidia/cu14/lib/x.so",
        ),
    ],
)
def test_a_toolkit_that_lies_otherwise_is_left_to_a_person(refresh, index, change, message):
    toolkit_of_wheels(index, **change)
    code, output, changed = refresh("toolkits", "--write", "--check")
    assert (code, changed) == (1, set())
    assert message in output.err
    assert output.err.rstrip().endswith("write a layout")


def test_code_for_one_gpu_counts_for_a_cudnns_sms(refresh, index, folder):
    """Kernels for sm_90a and sm_103a stand beside others in cuDNN 9.28.1."""
    specific = 0x100011  # the flag of the "a"
    code = fat_container(
        fat_entry("sass", 75), fat_entry("sass", 90, flags=specific), fat_entry("sass", 120)
    )
    library = build_elf(fatbin=code)
    for major in (11, 12, 13):
        index.pages[f"nvidia-cudnn-cu{major}"] = []
    members = {f"nvidia/cudnn/lib/libcudnn_{part}.so.9": library for part in ("cnn", "ops", "adv")}
    index.add(
        "nvidia-cudnn-cu13",
        "nvidia_cudnn_cu13-99.1.0.7-py3-none-manylinux_2_27_x86_64.whl",
        members,
    )
    assert refresh("cudnn", "--write")[::2] == (0, {"cudnn.yaml"})
    release = load(folder / "cudnn.yaml", models.CudnnReleases).releases["99.1.0"]
    assert (release.sm_min, release.sm_max, release.cuda_majors) == (75, 120, [13])


def test_an_index_that_fails_changes_nothing(refresh, index):
    new_torch(index)
    index.ranges = False
    code, output, changed = refresh("torch", "--write")
    assert (code, changed) == (9, set())
    assert output.err.startswith("refresh-catalogue: ")
    for listing in ([{"filename": "torch"}, {}], ["torch"], {"a": 1}, [{"filename": 3}], 7):
        index.pages["torch"] = listing
        code, output, changed = refresh("torch", "--write")
        assert (code, changed) == (9, set())
        assert "no index of PEP 691" in output.err
    del index.pages["torch"]
    code, output, changed = refresh("torch", "--write")
    assert (code, changed) == (9, set())
    assert "404" in output.err
