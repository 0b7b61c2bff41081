"""CUDA 13.0 out of NVIDIA's wheels: the image is made, compiles, and the wheel goes all the way to
a user's pip.
"""

import json


def test_a_wheel_is_built_with_a_compiler_out_of_wheels(farm, client):
    result = farm.run(
        "submit",
        "--variant",
        "sm120-avx2-py311",
        "--package",
        "canary",
        "--channel",
        "cuda13-wheels",
        "--json",
    )
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert {step["outcome"] for step in document["steps"]} <= {"done", "not run"}
    inside = farm.json("inspect", document["wheel"])
    assert inside["version"] == "0.1.0+cu130.sm120.avx2"
    assert {
        tuple(f["sass"]): tuple(f["ptx"]) for lib in inside["libraries"] for f in lib["fatbins"]
    } == {(120,): ()}
    assert "canary/lib/libcudart.so.13" in [lib["path"] for lib in inside["libraries"]]
    record = next((farm.index / "records").glob("canary-*.json")).read_text()
    definition = json.loads(record)["provenance"]["slsa"]["buildDefinition"]
    assert definition["externalParameters"]["toolkit"] == "wheels 13.0"
    uris = {str(each.get("uri")).partition("?")[0] for each in definition["resolvedDependencies"]}
    assert uris >= {
        "pkg:pypi/nvidia-cuda-nvcc",
        "pkg:pypi/nvidia-nvvm",
        "pkg:pypi/nvidia-cuda-runtime",
    }
    image = (farm.folder(document["run"]) / "image.id").read_text()
    compiled = client.containers.run(
        image, ["sh", "-c", "ls /opt/cuda/lib/stubs; nvcc --version"], remove=True
    )
    assert "libcuda.so" in compiled.decode()
    assert "release 13.0" in compiled.decode()
