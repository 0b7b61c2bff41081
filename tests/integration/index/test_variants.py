"""uv with its preview of wheel variants takes the wheel for the GPU that it is told of."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.version import Version

from farm.cli.main import main
from farm.index.variants import cuda_of, properties, variant_json, with_driver
from tests.indexes.wheels import build_wheel
from tests.servers.process import environment
from tests.servers.static import serving

GPUS = {
    "sm50": "5.0",
    "sm52": "5.2",
    "sm60": "6.0",
    "sm61": "6.1",
    "sm70": "7.0",
    "sm90": "9.0",
    "sm120": "12.0",
}


def whole_wheel(folder, filename, payload):
    return build_wheel(folder, filename, payload).path


@pytest.fixture
def publish_copy(tmp_path, monkeypatch):
    """Publishes wheels and their labelled copies, twice, as a command is repeated."""
    monkeypatch.chdir(tmp_path)
    index = str(tmp_path / "index")

    def publish(filename, group, payload="", headers=""):
        wheel = str(build_wheel(tmp_path, filename, payload, headers).path)
        assert main(["publish", wheel, "--to", group, "--index", index]) == 0
        variant = ["index", "variant", wheel, "--variant", f"{group}-py311", "--index", index]
        assert main(variant) == 0
        assert main(variant) == 0

    return publish


@pytest.fixture
def install(tmp_path):
    """What uv installs from the tree for a card with this driver, by file below the target."""
    if " avx2 " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this CPU has no AVX2, so uv takes none of the wheels")
    uv = Path(sys.executable).with_name("uv")

    def run(requirement, capability=None, driver="12.8"):
        variables = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "UV_NO_CONFIG": "1",
            "NO_PROXY": "*",
            "UV_PREVIEW_FEATURES": "wheel-variants",
        }
        if capability:
            variables["NV_VARIANT_PROVIDER_FORCE_SM_ARCH"] = capability
            variables["NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION"] = driver
        target = tmp_path / f"target-{len(list(tmp_path.glob('target-*')))}"
        words = ["--no-cache", "--python", sys.executable, "--target", target]
        with serving(tmp_path / "index") as url:
            words += ["--index-url", f"{url}/whl/variant/simple/", requirement]
            done = subprocess.run(
                [uv, "pip", "install", *words],
                env=variables,
                check=False,
                capture_output=True,
                text=True,
                timeout=120,
            )
        assert done.returncode == 0, done.stderr
        return target

    return run


def test_each_gpu_gets_its_wheel(publish_copy, install):
    for gpu in (*GPUS, "cpu"):
        name = f"canary-1.0+cu118.{gpu}.avx2-py3-none-any.whl"
        publish_copy(name, f"{gpu}-avx2", f"gpu = {gpu!r}\n")
    chosen = {}
    for gpu, capability in {**GPUS, "kepler": "3.5", "none": None}.items():
        target = install("canary", capability)
        chosen[gpu] = (target / "canary/__init__.py").read_text()
    assert chosen == {gpu: f"gpu = {gpu!r}\n" for gpu in GPUS} | {
        "kepler": "gpu = 'cpu'\n",
        "none": "gpu = 'cpu'\n",
    }


@pytest.mark.parametrize(
    ("cuda", "driver", "expected"),
    [
        ("cu126", "12.8", "sm61"),
        ("cu126", "12.0", "sm61"),  # minor version compatibility
        ("cu126", "11.8", "cpu"),
        ("cu126", "11.0", "cpu"),
        ("cu118", "12.8", "sm61"),
        ("cu118", "11.0", "sm61"),
        ("cu118", "10.2", "cpu"),
        ("cu130", "12.8", "cpu"),
        ("cu130", "13.0", "sm61"),
    ],
)
def test_a_driver_that_is_too_old_gets_the_wheel_for_the_cpu(
    publish_copy, install, cuda, driver, expected
):
    publish_copy(f"canary-1.0+{cuda}.sm61.avx2-py3-none-any.whl", "sm61-avx2", "gpu = 'sm61'\n")
    publish_copy("canary-1.0+cpu.avx2-py3-none-any.whl", "cpu-avx2", "gpu = 'cpu'\n")
    target = install("canary", "6.1", driver)
    assert (target / "canary/__init__.py").read_text() == f"gpu = {expected!r}\n"


def test_a_companion_that_requires_the_farms_own_wheel_is_installed_with_it(publish_copy, install):
    own = "+cu126.sm61.avx2"
    publish_copy(f"torch-2.6.0{own}-py3-none-any.whl", "sm61-avx2", "gpu = 'sm61'\n")
    publish_copy(
        f"torchvision-0.21.0{own}.1-py3-none-any.whl",
        "sm61-avx2",
        "",
        f"Requires-Dist: torch==2.6.0{own}\n",
    )
    target = install("torchvision", "6.1")
    assert (target / "torch/__init__.py").read_text() == "gpu = 'sm61'\n"
    assert (target / "torchvision/__init__.py").is_file()


def test_a_wheel_for_a_gpu_that_does_not_say_its_cuda_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    index = str(tmp_path / "index")
    wheel = str(build_wheel(tmp_path, "canary-1.0-py3-none-any.whl", "x = 1\n").path)
    assert main(["publish", wheel, "--to", "sm61-avx2", "--index", index]) == 0
    words = ["index", "variant", wheel, "--variant", "sm61-avx2-py311", "--index", index]
    assert main(words) == 2
    assert "which CUDA it is built with" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("version", "members", "requires", "cuda"),
    [
        ("2.6.0+cu118.sm35.avx", ["libcudart.so.12"], [], "11.8"),
        ("1.0", ["x.libs/libcudart-1a2b3c.so.11.0"], [], "11"),
        ("1.0", ["x/cudart64_12.dll"], [], "12"),
        ("1.0", ["x.py"], ["numpy", "nvidia-cuda-runtime-cu12==12.6.77"], "12"),
        ("1.0", ["x.py"], ["nvidia-cuda-runtime==13.0.48; platform_system == 'Linux'"], "13"),
        ("1.0+cpu", ["x.py"], ["numpy"], None),
    ],
)
def test_the_cuda_of_a_wheel(version, members, requires, cuda):
    assert cuda_of(Version(version), members, requires) == cuda


@pytest.mark.parametrize("sms", [(), (61,), (50, 60, 61, 70), (90, 100, 120)])
def test_a_document_is_as_the_revision_of_august_2026_has_it(sms):
    """PEP 825: what a format of version 0.1.1 must be, beside PEP 850's `providers`."""
    label, labelled = properties("many" if sms else "cpu", sms, "avx2")
    document = variant_json({label: with_driver(labelled, "12.6" if sms else None)})
    assert set(document) == {"$schema", "default-priorities", "providers", "variants"}
    assert set(document["default-priorities"]) == {"namespace"}  # none of features any more
    used = {namespace for each in document["variants"].values() for namespace in each}
    assert used <= set(document["default-priorities"]["namespace"])
    assert used <= set(document["providers"])
    [(name, namespaces)] = document["variants"].items()
    assert re.fullmatch(r"[0-9a-z_.]+", name)
    for features in namespaces.values():
        for feature, values in features.items():
            assert re.fullmatch(r"[a-z0-9_]+", feature)
            assert values == sorted(set(values))  # sets, sorted as text
            assert all(re.fullmatch(r"[0-9a-z_.]+", value) for value in values)


def test_variantlib_reads_what_is_published(publish_copy, tmp_path):
    """The reference implementation of the drafts: the index's document and each wheel's."""
    publish_copy("canary-1.0+cu126.sm61.avx2-py3-none-any.whl", "sm61-avx2")
    publish_copy("canary-1.0+cpu.avx2-py3-none-any.whl", "cpu-avx2")
    programs = environment("variantlib", "variantlib==0.2.2")
    root = tmp_path / "index/whl/variant"
    document = root / "simple/canary/canary-1.0-variants.json"
    program = """
import json, sys, zipfile
from variantlib.variants_json import VariantsJson
whole = VariantsJson(json.load(open(sys.argv[1])))
for wheel in sys.argv[2:]:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [n for n in archive.namelist() if n.endswith(".dist-info/variant.json")]
        own = VariantsJson(json.loads(archive.read(name)))
    [label] = own.variants
    assert own.variants[label] == whole.variants[label], label
    print(label, *sorted(p.to_str() for p in own.variants[label].properties), sep="; ")
"""
    wheels = sorted(root.glob("files/*.whl"))
    done = subprocess.run(
        [programs / "python", "-c", program, document, *wheels],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    driver = "nvidia :: cuda_version_lower_bound :: 12.0"
    assert done.stdout.splitlines() == [
        "cpu_v3; x86_64 :: level :: v3",
        f"sm61_v3; {driver}; nvidia :: sm_arch :: 61_real; x86_64 :: level :: v3",
    ]


@pytest.mark.parametrize(
    "variant", ["sm35-avx2-py311", "kepler-avx-py311", "sm61-avx512vnni-py311", "mps-arm64-py311"]
)
def test_what_the_drafts_have_no_words_for_is_refused(tmp_path, monkeypatch, variant, capsys):
    monkeypatch.chdir(tmp_path)
    wheel = whole_wheel(tmp_path, "canary-1.0+x-py3-none-any.whl", "x = 1\n")
    index = tmp_path / "index"
    assert main(["index", "variant", str(wheel), "--variant", variant, "--index", str(index)]) == 2
    assert "have no words for" in capsys.readouterr().err
    assert not index.exists()
