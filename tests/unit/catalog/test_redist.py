"""The redist catalogue: hashes against an independent table, and what the loader refuses.

The hashes stand here by hand, from a table of these archives that was drawn up before the YAML
files were generated; nixpkgs (11.4.4), Yggdrasil (cuda_nvcc of 11.8.0) and Spack (cuDNN 8.7.0.84)
pin the same.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from farm.base.errors import UsageError
from farm.base.yamlfile import load
from farm.catalog import redist


@pytest.mark.parametrize(
    ("platform", "name", "sha256", "size"),
    [
        (
            "windows-x86_64",
            "cudnn-windows-x86_64-8.7.0.84_cuda11-archive.zip",
            "55328581df06e161284b25c4869afb5fe59b7e9782d8743d8ee0c621892ad09c",
            708092962,
        ),
        (
            "linux-x86_64",
            "cudnn-linux-x86_64-8.7.0.84_cuda11-archive.tar.xz",
            "976c4cba7233c97ae74006afab5172976300ba40f5b250a21f8cf71f59c9f76d",
            886423308,
        ),
    ],
)
def test_cudnn_is_chosen_by_cuda_major(platform, name, sha256, size):
    [archive] = redist.archives("cudnn", "8.7.0", platform, ["cudnn"], cuda_major=11)
    base = "https://developer.download.nvidia.com/compute/cudnn/redist/cudnn"
    url = f"{base}/{platform}/{name}"
    assert archive == redist.Archive(
        component="cudnn", version="8.7.0.84", url=url, sha256=sha256, size=size
    )
    [other] = redist.archives("cudnn", "8.7.0", platform, ["cudnn"], cuda_major=10)
    assert other.sha256 != sha256


def test_order_is_kept_and_a_name_given_twice_counts_once():
    names = ["libcublas", "cuda_nvcc", "libcublas", "cuda_cudart"]
    got = [a.component for a in redist.archives("cuda", "11.8.0", "linux-x86_64", names)]
    assert got == ["libcublas", "cuda_nvcc", "cuda_cudart"]


def test_every_file_loads_and_holds_what_a_build_needs_and_no_driver():
    assert redist.versions("cuda")[:3] == ("11.4.4", "11.7.1", "11.8.0")
    assert redist.versions("cudnn")[-2:] == ("9.10.2", "9.13.0")  # by number, not by letter
    needed = {
        "cuda_nvcc",
        "cuda_cudart",
        "cuda_nvrtc",
        "cuda_cccl",
        "libcublas",
        "libcufft",
        "libcusparse",
    }
    for version in redist.versions("cuda"):
        for platform in ("linux-x86_64", "linux-sbsa", "windows-x86_64"):
            names = set(redist.components("cuda", version, platform))
            assert needed <= names, (version, platform)
            assert not names & {
                "nvidia_driver",
                "fabricmanager",
                "cuda_compat",
                "nsight_systems",
                "cuda_gdb",
            }
        assert "visual_studio_integration" in redist.components("cuda", version, "windows-x86_64")
    for version in redist.versions("cudnn"):
        assert redist.components("cudnn", version, "windows-x86_64") == ("cudnn",)


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        (("cuda", "11.8.0", "linux-x86_64", ["cuda_nvc"]), "cuda_nvc has no archive", "cuda_nvcc"),
        (
            ("cuda", "11.8.0", "linux-x86_64", ["nsight_nvtx"]),
            "no archive for linux-x86_64",
            "windows-x86_64",
        ),
        (
            ("cudnn", "8.7.0", "linux-x86_64", ["cudnn"], 12),
            "no archive for linux-x86_64 and CUDA 12",
            "linux",
        ),
    ],
)
def test_what_has_no_archive_is_refused(call, message, hint):
    with pytest.raises(UsageError, match=message) as caught:
        redist.archives(*call)
    assert hint in caught.value.hint


GOOD = """
product: cuda
version: "11.8.0"
base_url: https://example.org/redist/
components:
  cuda_nvcc:
    version: "11.8.89"
    license: CUDA Toolkit
    platforms:
      linux-x86_64: {path: a/b.tar.xz, sha256: %s, size: 12}
""" % ("ab" * 32)


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("ab" * 32, "AB" * 32, "sha256"),
        ("a/b.tar.xz", "../b.tar.xz", "path"),
        ("a/b.tar.xz", "/b.tar.xz", "path"),
        ("a/b.tar.xz", r"a\b.tar.xz", "path"),
        ("a/b.tar.xz", "a/b.exe", "path"),
        ("size: 12", "size: 0", "size"),
        ("linux-x86_64:", "linux-ppc64le:", "platforms"),
        ("https://example.org", "http://example.org", "base_url"),
        ("https://example.org", "https://me:secret@example.org", "base_url"),
    ],
)
def test_a_damaged_document_is_refused_with_the_field(tmp_path, old, new, where):
    path = tmp_path / "cuda-11.9.0.yaml"
    path.write_text(GOOD)
    assert load(path, redist.Redist).version == "11.8.0"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(UsageError, match=where):
        load(path, redist.Redist)


def test_a_file_is_named_after_what_it_holds():
    for path in redist.FOLDER.glob("*.yaml"):
        found = load(path, redist.Redist)
        assert path.stem == f"{found.product}-{found.version}"
        files = [
            f
            for c in found.components.values()
            for e in c.platforms.values()
            for f in (e.values() if isinstance(e, dict) else [e])
        ]
        assert len({file.path for file in files}) == len(files)


def test_manifest_for_linux():
    chosen = redist.archives("cuda", "11.8.0", "linux-x86_64", ["cuda_nvcc"])
    chosen += redist.archives("cudnn", "8.7.0", "linux-x86_64", ["cudnn"], 11)
    document = redist.install_manifest(chosen, "linux-x86_64")
    assert json.loads(json.dumps(document)) == document
    assert (document["schema"], document["layout"], document["target"]) == (
        1,
        "linux",
        "x86_64-linux",
    )
    assert [(row["component"], row["kind"], row["place"]) for row in document["archives"]] == [
        ("cuda_nvcc", "tar.xz", "toolkit"),
        ("cudnn", "tar.xz", "toolkit"),
    ]
    assert document["archives"][0]["url"] == chosen[0].url


def test_manifest_for_windows_places_nvtx_and_visual_studio():
    names = ["cuda_nvcc", "nsight_nvtx", "visual_studio_integration"]
    platform = "windows-x86_64"
    document = redist.install_manifest(redist.archives("cuda", "11.8.0", platform, names), platform)
    assert document["layout"] == "windows"
    assert "target" not in document
    assert [(row["kind"], row["place"]) for row in document["archives"]] == [
        ("zip", "toolkit"),
        ("zip", "nvtx"),
        ("zip", "visual-studio"),
    ]


def test_manifest_refuses_two_of_one():
    [nvcc] = redist.archives("cuda", "11.8.0", "linux-x86_64", ["cuda_nvcc"])
    [older] = redist.archives("cuda", "11.7.1", "linux-x86_64", ["cuda_nvcc"])
    with pytest.raises(UsageError, match="cuda_nvcc"):
        redist.install_manifest([nvcc, older], "linux-x86_64")


ROOT = Path(__file__).parents[3]


def run_import(*arguments):
    command = [sys.executable, "-m", "tools.import_redist", *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )


def test_import_leaves_out_what_a_build_never_needs_and_is_idempotent(tmp_path):
    def file(name):
        return {"relative_path": f"{name}.tar.xz", "sha256": "cd" * 32, "md5": "0", "size": "77"}

    component = {"name": "n", "license": "CUDA Toolkit", "version": "1.2"}
    manifest = {
        "release_date": "2022-10-03",
        "cuda_cudart": {**component, "linux-x86_64": file("a"), "linux-ppc64le": file("b")},
        "nvidia_driver": {**component, "linux-x86_64": file("c")},
    }
    (tmp_path / "redistrib_11.9.0.json").write_text(json.dumps(manifest))
    assert run_import(tmp_path, "--out", tmp_path).returncode == 0
    first = (tmp_path / "cuda-11.9.0.yaml").read_bytes()
    assert first.startswith(b"# generated by ")
    got = load(tmp_path / "cuda-11.9.0.yaml", redist.Redist)
    assert list(got.components) == ["cuda_cudart"]
    assert list(got.components["cuda_cudart"].platforms) == ["linux-x86_64"]
    assert got.components["cuda_cudart"].platforms["linux-x86_64"].size == 77
    assert run_import(tmp_path, "--out", tmp_path).returncode == 0
    assert (tmp_path / "cuda-11.9.0.yaml").read_bytes() == first

    manifest["cuda_cudart"]["linux-x86_64"]["sha256"] = "short"
    (tmp_path / "redistrib_11.9.1.json").write_text(json.dumps(manifest))
    refused = run_import(tmp_path, "--out", tmp_path)
    assert refused.returncode == 2
    assert "sha256" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "cuda-11.9.1.yaml").exists()
