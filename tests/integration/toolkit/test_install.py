"""Layouts, merging and running again: what a good set of archives becomes."""

import hashlib
import os
from pathlib import Path

import pytest

from farm.catalog.redist import Archive, install_manifest

NVCC = {
    "bin/nvcc": b"#!/bin/sh\n",
    "bin/nvcc.profile": b"TOP = $(_HERE_)/..\n",
    "include/crt/host_config.h": b"// host\n",
    "nvvm/bin/cicc": b"cicc",
    "LICENSE": b"licence of nvcc",
}
CUDART = {
    "include/cuda_runtime.h": b"// runtime\n",
    "lib/libcudart.so.11.8.89": b"\x7fELF cudart",
    "lib/stubs/libcuda.so": b"\x7fELF stub",
    "pkg-config/cudart-11.8.pc": b"Name: cudart\n",
    "LICENSE": b"licence of cudart",
}
CUDART_LINKS = (
    ("lib/libcudart.so.11.0", "libcudart.so.11.8.89"),
    ("lib/libcudart.so", "libcudart.so.11.0"),
    ("lib64", "lib"),
    ("nvvm/lib/libcudart.so", "../../lib/libcudart.so"),
)


@pytest.fixture
def linux(case, make_tar):
    case.add("cuda_nvcc", make_tar("cuda_nvcc-linux-x86_64-11.8.89-archive", NVCC))
    case.add(
        "cuda_cudart", make_tar("cuda_cudart-linux-x86_64-11.8.89-archive", CUDART, CUDART_LINKS)
    )
    return case


def test_linux_has_the_runfile_layout(linux, tree_of):
    output = linux.installed()
    got = {path: content for path, content in tree_of(linux.prefix).items() if content is not None}
    del got[".redist.json"]
    assert got == {
        "bin/nvcc": b"#!/bin/sh\n",
        "bin/nvcc.profile": b"TOP = $(_HERE_)/..\n",
        "nvvm/bin/cicc": b"cicc",
        "pkg-config/cudart-11.8.pc": b"Name: cudart\n",
        "licenses/cuda_nvcc/LICENSE": b"licence of nvcc",
        "licenses/cuda_cudart/LICENSE": b"licence of cudart",
        "targets/x86_64-linux/include/crt/host_config.h": b"// host\n",
        "targets/x86_64-linux/include/cuda_runtime.h": b"// runtime\n",
        "targets/x86_64-linux/lib/libcudart.so.11.8.89": b"\x7fELF cudart",
        "targets/x86_64-linux/lib/libcudart.so.11.0": Path("libcudart.so.11.8.89"),
        "targets/x86_64-linux/lib/libcudart.so": Path("libcudart.so.11.0"),
        "targets/x86_64-linux/lib/stubs/libcuda.so": b"\x7fELF stub",
        # the folder moved, so the link that led to it was written anew
        "nvvm/lib/libcudart.so": Path("../../targets/x86_64-linux/lib/libcudart.so"),
        "include": Path("targets/x86_64-linux/include"),
        "lib64": Path("targets/x86_64-linux/lib"),
    }
    assert (linux.prefix / "lib64" / "libcudart.so").read_bytes() == b"\x7fELF cudart"
    assert (linux.prefix / "nvvm" / "lib" / "libcudart.so").read_bytes() == b"\x7fELF cudart"
    assert os.access(linux.prefix / "bin" / "nvcc", os.X_OK)
    assert not os.access(linux.prefix / "include" / "cuda_runtime.h", os.X_OK)
    assert linux.prefix.stat().st_mode & 0o055 == 0o055  # another user of the image can read it
    assert "cuda_nvcc: 0.0 of 0.0 MB, 100%" in output


def test_windows_layout_nvtx_and_visual_studio(case, make_zip, tree_of):
    case.layout = "windows"
    case.add(
        "cuda_cudart",
        make_zip(
            "cuda_cudart-windows-x86_64-11.8.89-archive",
            {
                "bin/cudart64_110.dll": b"MZ",
                "include/a.h": b"a",
                "lib/x64/cudart.lib": b"!",
                "LICENSE": b"L",
            },
        ),
        "zip",
    )
    case.add(
        "cudnn",
        make_zip(
            "cudnn-w",
            {"bin/cudnn64_8.dll": b"MZ8", "include/cudnn.h": b"c", "lib/x64/cudnn.lib": b"?"},
        ),
        "zip",
    )
    case.add(
        "nsight_nvtx",
        make_zip("nsight_nvtx-w", {"NvToolsExt/lib/x64/nvToolsExt64_1.lib": b"n", "LICENSE": b"N"}),
        "zip",
        "nvtx",
    )
    nested = "visual_studio_integration/MSBuildExtensions"
    case.add(
        "visual_studio_integration",
        make_zip(
            "vs-w",
            {
                f"{nested}/CUDA 11.8.props": b"<P/>",
                f"{nested}/CUDA 11.8.ico": b"i",
                "readme.txt": b"r",
            },
        ),
        "zip",
        "visual-studio",
    )
    rules = case.folder / "VS" / "BuildCustomizations"
    case.installed("--msbuild-dir", rules)
    got = {path for path, content in tree_of(case.prefix).items() if content is not None}
    assert got == {
        ".redist.json",
        "bin/cudart64_110.dll",
        "bin/cudnn64_8.dll",
        "include/a.h",
        "include/cudnn.h",
        "lib/x64/cudart.lib",
        "lib/x64/cudnn.lib",
        "licenses/cuda_cudart/LICENSE",
        "licenses/nsight_nvtx/LICENSE",
        "NvToolsExt/lib/x64/nvToolsExt64_1.lib",
        "extras/visual_studio_integration/readme.txt",
        "extras/visual_studio_integration/MSBuildExtensions/CUDA 11.8.props",
        "extras/visual_studio_integration/MSBuildExtensions/CUDA 11.8.ico",
    }
    assert tree_of(rules) == {"CUDA 11.8.props": b"<P/>"}


def test_the_farms_own_manifest_is_understood(case, make_tar):
    content = make_tar("x-archive", NVCC)
    case.served.files["/x.tar.xz"] = content
    digest = hashlib.sha256(content).hexdigest()
    archive = Archive.model_construct(  # http: the server is on this machine
        component="cuda_nvcc",
        version="11.8.89",
        url=case.served.url + "/x.tar.xz",
        sha256=digest,
        size=len(content),
    )
    case.rows = install_manifest([archive], "linux-x86_64")["archives"]
    case.installed()
    assert (case.prefix / "bin" / "nvcc").exists()


def test_running_again_downloads_nothing_and_changes_nothing(linux, tree_of):
    linux.installed()
    before, requests = tree_of(linux.prefix), len(linux.served.log)
    assert "all 2 components are there already" in linux.installed()
    assert tree_of(linux.prefix) == before
    assert len(linux.served.log) == requests


def test_a_later_component_is_merged_into_the_prefix(linux, make_tar, tree_of):
    linux.installed()
    before = tree_of(linux.prefix)
    linux.add("cudnn", make_tar("cudnn-a", {"include/cudnn.h": b"c", "lib/libcudnn.so.8": b"8"}))
    linux.installed()
    after = tree_of(linux.prefix)
    new = {path for path in after if path not in before}
    assert new == {"targets/x86_64-linux/include/cudnn.h", "targets/x86_64-linux/lib/libcudnn.so.8"}
    assert {p for p in before if before[p] != after[p]} == {".redist.json"}
    assert linux.served.paths().count("/cuda_nvcc/cuda_nvcc.tar.xz") == 1


def test_another_version_of_a_component_needs_another_prefix(linux, make_tar):
    linux.installed()
    linux.rows = []
    linux.add("cuda_nvcc", make_tar("cuda_nvcc-other", {"bin/other": b"o"}))
    assert "holds another cuda_nvcc" in linux.refused(2)


def test_same_path_with_the_same_bytes_is_fine_with_others_a_conflict(case, make_tar):
    case.add("liba", make_tar("a", {"include/shared.h": b"same", "lib/a": b"a"}))
    case.add("libb", make_tar("b", {"include/shared.h": b"same", "lib/b": b"b"}))
    case.installed()
    case.add("libc", make_tar("c", {"lib/c": b"c", "include/shared.h": b"different"}))
    assert "shared.h exists with other content" in case.refused(6)
    case.prefix.rename(case.folder / "elsewhere")  # now all three at once
    error = case.refused(6)
    assert "libc" in error
    assert "include/shared.h is in liba too, with other bytes" in error


def test_a_path_that_differs_in_case_only_is_a_conflict_on_windows_only(case, make_zip):
    case.add("liba", make_zip("a", {"include/Shared.h": b"1"}), "zip")
    case.add("libb", make_zip("b", {"include/shared.h": b"2"}), "zip")
    case.installed()
    case.prefix.rename(case.folder / "elsewhere")
    case.layout = "windows"
    assert "include/shared.h is in liba too" in case.refused(6)


def test_a_file_where_another_component_has_a_folder_is_a_conflict(case, make_tar):
    case.add("liba", make_tar("a", {"share/x": b"1"}))
    case.add("libb", make_tar("b", {"share/x/y": b"2"}))
    assert "share/x/y is below what is a file elsewhere" in case.refused(6)
    case.rows.reverse()
    assert "share/x is a file here and a folder elsewhere" in case.refused(6)


def test_a_prefix_with_other_content_keeps_it(linux, tree_of):
    linux.prefix.mkdir()
    (linux.prefix / "mine.txt").write_bytes(b"mine")
    linux.installed()
    assert tree_of(linux.prefix)["mine.txt"] == b"mine"
    assert (linux.prefix / "bin" / "nvcc").exists()


def test_a_merge_that_fails_half_way_is_undone(linux, monkeypatch):
    linux.prefix.mkdir()
    (linux.prefix / "mine.txt").write_bytes(b"mine")
    # The installer as it is, but the fourth move fails as a full disk would.
    breaker = linux.folder / "breaker.py"
    breaker.write_text(
        "import runpy, shutil, sys\n"
        "real, count = shutil.move, [0]\n"
        "def move(a, b):\n"
        "    count[0] += 1\n"
        "    if count[0] == 4: raise OSError(28, 'No space left on device')\n"
        "    return real(a, b)\n"
        "shutil.move = move\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    command = linux.command()
    monkeypatch.setattr(linux, "command", lambda *_: [command[0], str(breaker), *command[1:]])
    assert "No space left on device" in linux.refused(9)


def test_a_prefix_whose_folder_is_a_link_is_not_followed(linux, tree_of):
    outside = linux.folder / "outside"
    outside.mkdir()
    linux.prefix.mkdir()
    (linux.prefix / "bin").symlink_to(outside)
    assert "bin exists and is no folder" in linux.refused(6)
    assert tree_of(outside) == {}


def test_hard_links_become_files(case, make_tar):
    import tarfile

    info = tarfile.TarInfo("a/bin/second")
    info.type, info.linkname = tarfile.LNKTYPE, "a/bin/first"
    case.add("liba", make_tar("a", {"bin/first": b"tool"}, extra=[info]))
    case.installed()
    assert (case.prefix / "bin" / "second").read_bytes() == b"tool"
    assert os.access(case.prefix / "bin" / "second", os.X_OK)


def test_archives_are_kept_only_when_asked(linux, tree_of):
    linux.installed("--cache", linux.cache)
    assert tree_of(linux.cache) == {}
    linux.prefix.rename(linux.folder / "first")
    linux.installed("--cache", linux.cache, "--keep-archives")
    assert sorted(tree_of(linux.cache)) == sorted(f"{row['sha256']}.tar.xz" for row in linux.rows)
    linux.prefix.rename(linux.folder / "second")
    requests = len(linux.served.log)
    assert "from the cache" in linux.installed("--cache", linux.cache, "--keep-archives")
    assert len(linux.served.log) == requests


def test_keep_archives_without_a_cache_is_a_usage_error(linux):
    done = linux.run("--keep-archives")
    assert done.returncode == 2
    assert "--keep-archives needs --cache" in done.stderr
