"""The redist catalogue: hashes against an independent table, and what the loader refuses.

The hashes stand here by hand, from a table of these archives that was drawn up before the YAML files were
generated; nixpkgs (11.4.4), Yggdrasil (cuda_nvcc of 11.8.0) and Spack (cuDNN 8.7.0.84) pin the same.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.base.errors import UsageError
from farm.catalog import redist

WINDOWS = {
    ("11.4.4", "cuda_nvcc"): (
        "11.4.152",
        "460c9e54bd0b99f4f63243eeb6b2090d17193361575b189c050faa10d465d4a9",
    ),
    ("11.4.4", "cuda_nvprof"): (
        "11.4.120",
        "826b85be249e8a518f58b3fdaf36f52871e96e6fe0e86f7fc6facbc619405e81",
    ),
    ("11.4.4", "libcublas"): (
        "11.6.5.2",
        "7ebcfcd9cc327a020f156d9a9f7607ea6a563038834991324230102915bef47c",
    ),
    ("11.4.4", "visual_studio_integration"): (
        "11.4.120",
        "a97171f455c7c3e938958ee02deddf264c63dd9f10197d07954917c04b444ff2",
    ),
    ("11.7.1", "cuda_cudart"): (
        "11.7.99",
        "1eb967fe01843dbe4b41a43352df193018077dd28b06eb2fd5af897b03f92d5c",
    ),
    ("11.7.1", "libcusolver"): (
        "11.4.0.1",
        "bfce43d0437ae10a7250c9f173e04e048fc46f9e5c9ed2c2bd4db4e661c77ba1",
    ),
    ("11.7.1", "libcusparse"): (
        "11.7.4.91",
        "2827643399b92b87af858bf4b004b4a664bc7e838a18e2143258b93c019487b0",
    ),
    ("11.8.0", "cuda_nvcc"): (
        "11.8.89",
        "4cdd7555f31186e5af0b14ab761838bbc8b5e6441589f5bb326930c7a502dcd3",
    ),
    ("11.8.0", "cuda_profiler_api"): (
        "11.8.86",
        "64f9ff04d1660ca0d611c8ac60ace7124f3e647519d67f78f681277e1c9221cc",
    ),
    ("11.8.0", "libcufft"): (
        "10.9.0.58",
        "a4071a85e3983bf42ea7a2e9bebe3b0b3c9ac258668580adc32ee1c385f7556f",
    ),
    ("11.4.4", "nsight_nvtx"): (
        "1.21018621",
        "d99b015bfb1308206f9d7c16ea401bf426fed3a5a99953b855fe4e68be5ed2d1",
    ),
    ("11.8.0", "nsight_nvtx"): (
        "1.21018621",
        "d99b015bfb1308206f9d7c16ea401bf426fed3a5a99953b855fe4e68be5ed2d1",
    ),
}


@pytest.mark.parametrize(("version", "component"), list(WINDOWS))
def test_windows_hashes_are_those_of_the_independent_table(version, component):
    [archive] = redist.archives("cuda", version, "windows-x86_64", [component])
    assert (archive.version, archive.sha256) == WINDOWS[version, component]
    assert archive.url.startswith("https://developer.download.nvidia.com/compute/cuda/redist/")
    assert archive.url.endswith(f"/{component}-windows-x86_64-{archive.version}-archive.zip")


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
    assert archive == redist.Archive("cudnn", "8.7.0.84", f"{base}/{platform}/{name}", sha256, size)
    [other] = redist.archives("cudnn", "8.7.0", platform, ["cudnn"], cuda_major=10)
    assert other.sha256 != sha256


def test_order_is_kept_and_a_name_given_twice_counts_once():
    names = ["libcublas", "cuda_nvcc", "libcublas", "cuda_cudart"]
    got = [a.component for a in redist.archives("cuda", "11.8.0", "linux-x86_64", names)]
    assert got == ["libcublas", "cuda_nvcc", "cuda_cudart"]


def test_every_file_loads_and_holds_what_a_build_needs_and_no_driver():
    assert redist.versions("cuda")[:3] == ("11.4.4", "11.7.1", "11.8.0")
    assert redist.versions("cudnn")[-2:] == ("9.10.2", "9.13.0")  # by number, not by letter
    needed = {"cuda_nvcc", "cuda_cudart", "cuda_nvrtc", "cuda_cccl", "libcublas", "libcufft", "libcusparse"}
    for version in redist.versions("cuda"):
        for platform in ("linux-x86_64", "linux-sbsa", "windows-x86_64"):
            names = set(redist.components("cuda", version, platform))
            assert needed <= names, (version, platform)
            assert not names & {"nvidia_driver", "fabricmanager", "cuda_compat", "nsight_systems", "cuda_gdb"}
        assert "visual_studio_integration" in redist.components("cuda", version, "windows-x86_64")
    for version in redist.versions("cudnn"):
        assert redist.components("cudnn", version, "windows-x86_64") == ("cudnn",)


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        (("cuda", "11.8.1", "linux-x86_64", ["cuda_nvcc"]), "unknown '11.8.1'", "11.8.0"),
        (("cuda", "11.8.0", "linux-x86-64", ["cuda_nvcc"]), "unknown 'linux-x86-64'", "linux-x86_64"),
        (("cuda", "11.8.0", "linux-x86_64", ["cuda_nvc"]), "unknown 'cuda_nvc'", "cuda_nvcc"),
        (("cublas", "11.8.0", "linux-x86_64", ["x"]), "unknown 'cublas'", "cuda"),
        (
            ("cuda", "11.8.0", "linux-x86_64", ["nsight_nvtx"]),
            "no archive for linux-x86_64",
            "windows-x86_64",
        ),
        (("cuda", "11.7.1", "windows-x86_64", ["cuda_profiler_api"]), "unknown 'cuda_profiler_api'", "cuda_"),
        (("cudnn", "8.7.0", "linux-x86_64", ["cudnn"]), "no CUDA major was given", "CUDA 10, 11"),
        (("cudnn", "8.7.0", "linux-x86_64", ["cudnn"], 12), "none for CUDA 12", "CUDA 10, 11"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(call, message, hint):
    with pytest.raises(UsageError) as caught:
        redist.archives(*call)
    assert message in str(caught.value)
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


def test_the_good_document_of_the_next_test_is_good():
    assert redist.parse(GOOD, "x.yaml").components["cuda_nvcc"].version == "11.8.89"


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("ab" * 32, "ab" * 31, "sha256"),
        ("ab" * 32, "AB" * 32, "sha256"),
        ("ab" * 32, "zz" * 32, "sha256"),
        ("a/b.tar.xz", "../b.tar.xz", "path"),
        ("a/b.tar.xz", "/b.tar.xz", "path"),
        ("a/b.tar.xz", "'c:b.tar.xz'", "path"),
        ("a/b.tar.xz", r"a\b.tar.xz", "path"),
        ("a/b.tar.xz", "a/b.exe", "path"),
        ("size: 12", "size: 0", "size"),
        ("size: 12", "size: '12'", "size"),
        ("size: 12", "size: 12, md5: x", "md5"),
        ("linux-x86_64:", "linux-ppc64le:", "platforms"),
        ("https://example.org", "http://example.org", "base_url"),
        ("https://example.org", "https://me:secret@example.org", "base_url"),
        ("product: cuda", "product: [", "not YAML"),
        ("product: cuda", "product: !!python/object:os.system cuda", "not YAML"),
        (GOOD, "[]", "document"),
    ],
)
def test_a_damaged_document_is_refused_with_the_field(old, new, where):
    assert old in GOOD
    with pytest.raises(UsageError) as caught:
        redist.parse(GOOD.replace(old, new), "x.yaml")
    assert str(caught.value).startswith("x.yaml: ")
    assert where in str(caught.value)


@given(st.text(max_size=200))
def test_any_text_is_refused_or_read_never_a_crash(text):
    with pytest.raises(UsageError):  # no text this short holds a whole document
        redist.parse(text, "x.yaml")


def test_manifest_for_linux():
    chosen = redist.archives("cuda", "11.8.0", "linux-x86_64", ["cuda_nvcc"])
    chosen += redist.archives("cudnn", "8.7.0", "linux-x86_64", ["cudnn"], 11)
    document = redist.install_manifest(chosen, "linux-x86_64")
    assert json.loads(json.dumps(document)) == document
    assert (document["schema"], document["layout"], document["target"]) == (1, "linux", "x86_64-linux")
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


def test_manifest_refuses_nothing_and_two_of_one():
    [nvcc] = redist.archives("cuda", "11.8.0", "linux-x86_64", ["cuda_nvcc"])
    [older] = redist.archives("cuda", "11.7.1", "linux-x86_64", ["cuda_nvcc"])
    with pytest.raises(UsageError, match="at least one"):
        redist.install_manifest([], "linux-x86_64")
    with pytest.raises(UsageError, match="cuda_nvcc"):
        redist.install_manifest([nvcc, older], "linux-x86_64")
    with pytest.raises(UsageError, match="linux-arm"):
        redist.install_manifest([nvcc], "linux-arm")


ROOT = Path(__file__).parents[3]


def run_import(*arguments):
    command = [sys.executable, "-m", "tools.import_redist", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


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
    got = redist.parse(first.decode(), "cuda-11.9.0.yaml")
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
