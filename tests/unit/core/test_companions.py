"""torchvision and torchaudio of channel debian-2.6.0: built against the farm's torch of the same
variant.
"""

from pathlib import Path

import pytest

from farm import catalog
from farm.base.errors import NotBuildableError
from farm.plan.recipe import GitSource, names, recipe
from tests.plans import plan_of

ROOT = Path(__file__).parents[3]


def plan(package, variant="sm35-avx-py311", channel="debian-2.6.0", **options):
    return plan_of(variant, package, channel, **options)


@pytest.mark.parametrize(
    ("package", "version"), [("torchvision", "0.21.0"), ("torchaudio", "2.6.0")]
)
@pytest.mark.parametrize(
    "variant", ["sm35-avx-py311", "sm90-avx512-py311", "kepler-sse41-py311", "cpu-avx-py311"]
)
def test_a_companion_is_of_the_release_and_needs_the_torch_of_its_variant(
    package, version, variant
):
    made, torch = plan(package, variant), plan("torch", variant)
    assert made.version == torch.version.replace("2.6.0", version)
    assert made.needs == [f"torch=={torch.version}"]
    assert made.env["PYTORCH_VERSION"] == torch.version
    assert bool(made.toolkit) == bool(torch.toolkit)


@pytest.mark.parametrize("package", ["torchvision", "torchaudio"])
@pytest.mark.parametrize("channel", ["debian-2.6.0", "kepler-2.7.1"])
def test_a_build_that_imports_torch_has_the_libraries_that_torch_loads(package, channel):
    made, torch = plan(package, channel=channel), plan("torch", channel=channel)
    assert "cupti" in torch.toolkit.components
    assert set(torch.toolkit.components) <= {
        *made.toolkit.components,
        "driver_stub",
        "nvml",
        "profiler_api",
    }
    assert "nvidia-nccl-cu11" in {wheel.package for wheel in made.build_requires}


@pytest.mark.parametrize("package", ["torch", "torchvision", "torchaudio"])
@pytest.mark.parametrize("python", ["py310", "py312", "py313"])
def test_another_python_is_built_by_the_same_compiler_so_that_the_compiler_cache_serves_both(
    package, python
):
    made, other = plan(package, f"sm35-avx-{python}", channel=None), plan(package)
    assert (
        (made.channel, made.base)
        == (other.channel, other.base)
        == ("debian-2.6.0", "debian-bullseye")
    )
    assert (made.python is None, other.python is None) == (False, False)
    assert all(made.env[name] == other.env[name] for name in ("CC", "CXX", "CUDAHOSTCXX"))
    assert (made.toolkit, made.source, made.parts) == (other.toolkit, other.source, other.parts)
    assert not [name for name in made.apt if name.startswith("python3-")]
    assert {"numpy", "typing-extensions"} <= {wheel.package for wheel in made.build_requires}


def test_the_default_for_a_k40_is_the_channel_of_its_torch():
    for package in ("torchvision", "torchaudio"):
        assert (
            plan(package, channel=None).channel
            == plan("torch", channel=None).channel
            == "debian-2.6.0"
        )


@pytest.mark.parametrize("package", ["torch", "torchvision", "torchaudio"])
def test_a_tarball_is_of_one_release(package):
    with pytest.raises(NotBuildableError, match=r"belongs to torch 2\.6\.0, not 2\.5\.1") as caught:
        plan(package, torch="2.5.1")
    assert "--torch 2.6.0" in f"{caught.value} {caught.value.hint}"


def test_a_recipe_of_a_fixed_version_says_which_release_it_is_of_and_is_what_the_catalogue_says():
    for name in names():
        found = recipe(name)
        if found.torch_release is None:
            # Nothing else of PyTorch comes from a source of one fixed version.
            assert isinstance(found.source, GitSource) or found.package not in (
                "torch",
                "torchvision",
                "torchaudio",
            )
            continue
        release = catalog.torch_releases()[found.torch_release]
        versions = {
            "torch": found.torch_release,
            "torchvision": release.vision,
            "torchaudio": release.audio,
        }
        assert found.version == versions[found.package]
