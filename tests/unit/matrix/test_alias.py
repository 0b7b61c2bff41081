"""A build of the matrix asked for by its alias, as the seed's users know it."""

import json
from pathlib import Path

import pytest

from farm.base.errors import UsageError
from farm.cli.main import main
from farm.plan.matrix import load_matrix

ROOT = Path(__file__).parents[3]
ALIAS = "pytorch-python311-cuda12_9-sm103-avx512"


@pytest.fixture
def matrix():
    return load_matrix(ROOT)


def test_every_printed_name_finds_its_build(matrix):
    for name in matrix.channels:
        for build in matrix.builds(name):
            assert matrix.by_alias(f"{name}/{build.alias}") == build
            assert matrix.by_alias(build.alias, name) == build


def test_without_a_channel_the_first_is_taken(matrix):
    assert matrix.by_alias("pytorch-python313-cuda12_8-sm80-avx512").channel == "main"


@pytest.mark.parametrize(
    ("name", "channel", "message"),
    [
        ("pytorch-python313-cuda12_8-sm80-avx513", None, "pytorch-python313-cuda12_8-sm80-avx512"),
        (f"main/{ALIAS}", None, "unknown build"),
        (ALIAS, "main", "in main"),
        (f"mian/{ALIAS}", None, "unknown channel 'mian'"),
    ],
)
def test_an_unknown_name_gives_the_nearest(matrix, name, channel, message):
    with pytest.raises(UsageError) as caught:
        matrix.by_alias(name, channel)
    assert message in f"{caught.value} {caught.value.hint}"


def test_the_alias_names_variant_package_channel_and_cuda(capsys):
    arguments = [
        "--project",
        str(ROOT),
        "why",
        "--json",
        "--variant",
        f"pytorch-2.9-python311/{ALIAS}",
    ]
    main(arguments)
    answer = json.loads(capsys.readouterr().out)
    assert "cuda-sm" not in [reason["rule"] for reason in answer["reasons"]]
    main([*arguments, "--cuda", "12.8"])
    answer = json.loads(capsys.readouterr().out)
    assert "cuda-sm" in [reason["rule"] for reason in answer["reasons"]]
