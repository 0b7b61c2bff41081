"""What a refusal calls the nearest is a plan: it is typed as it stands, and `farm plan` takes
it.
"""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm import catalog
from farm.base.errors import NotBuildableError, UsageError
from farm.plan.matrix import load_matrix
from farm.plan.options import Choice
from farm.plan.request import BuildRequest
from farm.plan.resolve import check_request, resolve
from farm.plan.variant import PYTHONS, Variant, cpu_words, gpu_words
from tests.examples import examples
from tests.plans import plan_of, selectors

ROOT = Path(__file__).parents[3]
CARDS = [gpu for gpu in gpu_words() if gpu != "mps"]
VERSIONS = {
    "cuda": catalog.toolkits,
    "torch": catalog.torch_releases,
    "cudnn": catalog.cudnn_releases,
}


def followed(request: BuildRequest, nearest: str) -> BuildRequest:
    """The request with the options that a refusal names, as a person types them."""
    words = shlex.split(nearest)
    options, variant = dict(request.options), request.variant
    platform, channel = request.platform, request.channel
    while words:
        name = words.pop(0)
        if name == "--variant":
            variant = Variant.parse(words.pop(0))
        elif name == "--platform":
            platform = words.pop(0)
        elif name == "--channel":
            channel = words.pop(0)
        elif name in {"--ptx", "--no-ptx"}:
            options["ptx"] = Choice(name == "--ptx", name)
        else:
            options[name.removeprefix("--")] = Choice(words.pop(0), name)
    return BuildRequest(variant, request.package, platform, channel, options)


def hold(request: BuildRequest) -> bool:
    """Whether there was a nearest to follow; fails where one is refused in its turn."""
    try:
        judged = check_request(ROOT, request)
    except UsageError:
        return False  # a platform for which no channel builds the package
    alternatives = [] if judged.complete else judged.alternatives()
    for text in alternatives:
        try:
            resolve(ROOT, followed(request, text))
        except NotBuildableError as error:
            asked = f"{request.variant} {request.channel} {dict(request.options)}"
            pytest.fail(f"{asked}: {text} is refused: {error}")
    return bool(alternatives)


@pytest.mark.parametrize(
    ("variant", "options"),
    [
        ("sm52-avx2-py313", {"torch": "2.9.1", "cuda": "13.0"}),
        ("sm35-avx-py311", {"cuda": "12.8"}),
        ("sm61-avx2-py311", {"torch": "2.15.0", "cuda": "13.2"}),
        ("sm120-avx2-py313", {"cuda": "12.3"}),
        ("sm70-avx2-py314", {"cuda": "11.3"}),
        ("sm86-avx2-py311", {"torch": "1.12.1", "cuda": "11.3", "cudnn": "8.3.2"}),
        ("sm90-avx512-py313", {"torch": "2.15.0", "cuda": "13.2"}),
    ],
)
def test_nearest_of_known_refusals(variant, options):
    assert hold(selectors(variant, **options))


selectors_ = st.builds(
    BuildRequest,
    variant=st.builds(
        Variant,
        gpu=st.sampled_from(CARDS),
        cpu=st.sampled_from(cpu_words()),
        python=st.sampled_from(
            [name for name in PYTHONS if name != "py314"]
        ),  # Windows has no pinned numpy for 3.14
    ),
    package=st.sampled_from(["torch", "torchvision", "canary"]),
    platform=st.sampled_from(["linux", "linux", "windows"]),
    channel=st.one_of(st.none(), st.sampled_from(list(load_matrix(ROOT).channels))),
    options=st.fixed_dictionaries(
        {},
        optional={
            name: st.sampled_from(list(known())).map(lambda value: Choice(value, "test"))
            for name, known in VERSIONS.items()
        },
    ),
)


@pytest.mark.parametrize(
    ("variant", "channel", "options"),
    [
        ("sm61-avx2-py314", "kepler-1.12.1", {"cuda": "11.6", "torch": "2.14.0"}),
        ("sm100-avx512-py311", "debian-1.13.1", {"torch": "2.0.1"}),
        ("sm35-avx-py311", "rtx50-windows", {}),
    ],
)
def test_a_channel_that_does_not_fit_is_followed_by_a_plan(variant, channel, options):
    assert hold(selectors(variant, channel=channel, **options))


def test_what_no_channel_has_the_sources_of_is_not_called_the_nearest():
    options = {"cuda": "13.4", "cudnn": "9.13.0"}
    refused = replace(selectors("sm60-armv8_2-py314", **options), package="torchvision")
    assert not check_request(ROOT, refused).complete
    hold(refused)


@examples(200)
@given(selectors_)
def test_every_nearest_is_a_plan(build_request):
    hold(build_request)


@pytest.mark.parametrize("gpu", ["sm50", "sm52", "sm60", "sm61", "sm70"])
@pytest.mark.parametrize("cpu", ["avx", "avx2", "avx512"])
def test_old_cards_on_a_current_torch(gpu, cpu):
    plan = resolve(ROOT, BuildRequest(Variant(gpu, cpu, "py313"), channel="legacy-2.14.1"))
    assert plan.version == f"2.14.1+cu126.{gpu}.{cpu}"
    assert {archive.component for archive in plan.toolkit.archives} >= {"cuda_nvcc", "cudnn"}


@pytest.mark.parametrize(
    ("variant", "torch", "channel"),
    [
        ("sm61-avx2-py311", "2.14.1", "legacy-2.14.1"),
        ("sm61-avx2-py314t", "2.14", "legacy-2.14.1"),
        ("sm61-avx2-py311", "2.0.1", "kepler-2.0.1"),
        ("sm61-avx2-py311", "2.15.0", "legacy-2.14.1"),
        ("sm61-avx2-py311", None, "legacy-2.14.1"),
        ("sm61-avx2-py311", "2.6", "debian-2.6.0"),
    ],
)
def test_the_channel_with_the_torch_that_was_asked_for_comes_first(variant, torch, channel):
    assert plan_of(variant, **({"torch": torch} if torch else {})).channel == channel


@pytest.mark.parametrize(
    ("variant", "cuda", "channel"),
    [
        ("sm61-avx2-py311", "12.6", "legacy-2.14.1"),
        ("sm90-avx2-py313", "13.0", "pytorch-2.10-python313"),
        ("sm90-avx2-py313", "12.9", "pytorch-2.9-python313"),
    ],
)
def test_a_channel_with_the_cuda_that_was_asked_for_comes_before_others(variant, cuda, channel):
    plan = plan_of(variant, cuda=cuda)
    assert plan.channel == channel


def test_a_cudnn_without_an_archive_comes_out_of_a_wheel():
    options = {"torch": "2.1.2", "cuda": "12.1", "cudnn": "8.9.2"}
    plan = plan_of("sm86-avx2-py311", **options)
    assert [one.file for one in plan.toolkit.wheels] == [
        "nvidia_cudnn_cu12-8.9.2.26-py3-none-manylinux1_x86_64.whl"
    ]
    assert "cudnn" not in {archive.component for archive in plan.toolkit.archives}


@pytest.mark.parametrize(
    ("option", "value"), [("cuda", "11.9"), ("torch", "2.0.5"), ("cudnn", "9.99")]
)
def test_an_unknown_version_is_not_called_impossible(option, value):
    with pytest.raises(UsageError, match="not in the catalogue"):
        plan_of("sm86-avx2-py311", **{option: value})
