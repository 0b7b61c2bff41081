"""`farm verify --waive` and `farm publish --waive`, as typed."""

import json
from pathlib import Path

import pytest

from farm.cli.main import main
from tests.indexes.wheels import build_wheel
from tests.schemas import valid

ROOT = Path(__file__).parents[3]
SELECT = ["--variant", "cpu-avx-py311", "--package", "canary"]


@pytest.fixture
def farm(capsys):
    def run(*arguments):
        code = main(["--project", str(ROOT), *arguments])
        seen = capsys.readouterr()
        return code, seen.out, seen.err

    return run


@pytest.fixture
def wheel(farm, tmp_path):
    """A pure wheel with one forbidden member, for the plan's version."""
    _, out, _ = farm("plan", *SELECT, "--json")
    version = json.loads(out)["version"]
    name = f"canary-{version}-cp311-cp311-manylinux_2_17_x86_64.whl"
    return str(build_wheel(tmp_path, name, more={"torch/lib/x_test.so": b""}).path)


def test_verify(farm, wheel):
    code, out, err = farm("verify", wheel, *SELECT)
    assert (code, "torch/lib/x_test.so: has no place" in err) == (6, True)
    code, out, err = farm(
        "verify", wheel, *SELECT, "--waive", "members:torch/lib/*=the testers want it"
    )
    assert (code, err) == (0, "")
    assert "waived: torch/lib/x_test.so: has no place" in out
    assert "the testers want it" in out
    code, out, _ = farm(
        "verify", wheel, *SELECT, "--json", "--waive", "members:torch/lib/*=the testers want it"
    )
    assert (code, json.loads(out)["waivers"][0]["reason"]) == (0, "the testers want it")


def test_publish(farm, wheel, tmp_path):
    index = tmp_path / "index"
    code, _, err = farm("publish", wheel, *SELECT, "--index", str(index))
    assert (code, "has no place" in err, index.exists()) == (6, True, False)
    code, _, err = farm(
        "publish", wheel, *SELECT, "--index", str(index), "--waive", "members:torch/*=wanted", "-q"
    )
    assert (code, err) == (0, "")
    code, out, _ = farm(
        "publish",
        wheel,
        *SELECT,
        "--index",
        str(index),
        "--waive",
        "members:torch/*=wanted",
        "--json",
    )
    assert (code, valid("publish", out)["changed"]) == (0, False)
    assert any(
        '"reason":"wanted"' in path.read_text().replace(" ", "") for path in index.rglob("*.json")
    )


def test_publish_into_another_index_than_the_projects(capsys, wheel, tmp_path, monkeypatch):
    """A path as a shell means it, and a pip line that does not name the public address of the
    project's index.
    """
    (tmp_path / "own" / "ci").mkdir(parents=True)
    (tmp_path / "own" / "ci" / "farm.yaml").write_text(
        "index_public_url: https://wheels.example.org\n"
    )
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    waive = ["--index", "other", "--waive", "members:torch/*=wanted"]
    assert main(["--project", str(tmp_path / "own"), "publish", wheel, *SELECT, *waive]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert f" @ {(tmp_path / 'here' / 'other').as_uri()}/whl/files/" in last
    assert [path.name for path in (tmp_path / "here" / "other").rglob("*.whl")] == [
        Path(wheel).name
    ]


@pytest.mark.parametrize("waiver", ["members:*", "members:*= ", "archive:*=why"])
def test_a_waiver_without_reason_is_a_usage_error(farm, wheel, waiver):
    code, _, err = farm("verify", wheel, *SELECT, "--waive", waiver)
    assert (code, "CHECK:PATTERN=REASON" in err) == (2, True)


def test_the_name_of_the_wheel_says_the_package(farm, wheel, tmp_path):
    variant = ("--variant", "cpu-avx-py311", "--waive", "members:torch/*=wanted")
    for command in (
        ("verify", wheel),
        ("publish", wheel, "--index", str(tmp_path / "index"), "-q"),
    ):
        assert farm(*command, *variant)[0] == 0
        code, _, err = farm(*command, *variant, "--package", "torch")
        assert (code, "the policy says torch" in err) == (6, True)


def test_the_error_for_an_unknown_package_lists_the_packages(farm, wheel):
    other = Path(wheel).rename(Path(wheel).with_name(Path(wheel).name.replace("canary", "fob")))
    code, _, err = farm("verify", str(other), "--variant", "cpu-avx-py311")
    assert (code, "unknown package 'fob'" in err, "canary" in err) == (2, True, True)
