"""uv with its preview of wheel variants takes the wheel for the GPU that it is told of."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from farm.cli.main import main
from tests.indexes.wheels import build_wheel
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
def tree(tmp_path, monkeypatch):
    """Variant wheels of each GPU over HTTP: the URL of the root."""
    monkeypatch.chdir(tmp_path)
    index = tmp_path / "index"
    for gpu in (*GPUS, "cpu"):
        wheel = whole_wheel(
            tmp_path, f"canary-1.0+cu118.{gpu}.avx2-py3-none-any.whl", f"gpu = {gpu!r}\n"
        )
        assert main(["publish", str(wheel), "--to", f"{gpu}-avx2", "--index", str(index)]) == 0
        for _again in range(2):
            assert (
                main(
                    [
                        "index",
                        "variant",
                        str(wheel),
                        "--variant",
                        f"{gpu}-avx2-py311",
                        "--index",
                        str(index),
                    ]
                )
                == 0
            )
    with serving(index) as url:
        yield f"{url}/whl/variant/simple/"


def test_each_gpu_gets_its_wheel(tree, tmp_path):
    if " avx2 " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this CPU has no AVX2, so uv takes none of the wheels")
    uv = Path(sys.executable).with_name("uv")
    got = {}
    for gpu, capability in {**GPUS, "kepler": "3.5", "none": None}.items():
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "UV_NO_CONFIG": "1",
            "NO_PROXY": "*",
            "UV_PREVIEW_FEATURES": "wheel-variants",
        }
        if capability:
            environment["NV_VARIANT_PROVIDER_FORCE_SM_ARCH"] = capability
            environment["NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION"] = "12.8"
        target = tmp_path / f"target-{gpu}"
        command = [
            uv,
            "pip",
            "install",
            "--no-cache",
            "--python",
            sys.executable,
            "--target",
            target,
        ]
        done = subprocess.run(
            [*command, "--index-url", tree, "canary"],
            env=environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        got[gpu] = (target / "canary/__init__.py").read_text()
    wanted = {gpu: f"gpu = {gpu!r}\n" for gpu in GPUS} | {
        "kepler": "gpu = 'cpu'\n",
        "none": "gpu = 'cpu'\n",
    }
    assert got == wanted


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
