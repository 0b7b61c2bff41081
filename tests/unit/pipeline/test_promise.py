"""What a plan promises reaches verify: the recipe's rules, those of the channel in their place, the
bound on numpy.
"""

import re
import shlex
import zipfile
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import yaml

from farm.base.errors import BuildFailedError
from farm.cli.main import main
from farm.plan.matrix import load_matrix
from farm.plan.recipe import recipe
from farm.policy.rules import defaults
from farm.run.mainjob import republish_hint
from farm.run.repair_step import repair_built
from farm.wheel.repair import RepairOptions, repair
from farm.wheel.verify import verify
from tests.indexes.wheels import build_wheel
from tests.plans import plan_of

ROOT = Path(__file__).parents[3]


def test_rules_of_the_torch_recipe():
    policy = plan_of("sm35-avx-py311", channel="kepler-2.0.1").verify
    assert (policy.numpy, policy.cpu, policy.sass) == ("<2", "avx", (35,))
    assert "torch/lib/libtorch_cpu.so" in policy.dispatching
    for member in (
        "torch/lib/torch_cpu.dll",
        "torch/bin/fbgemm.dll",
    ):  # both are in the wheels of 1.12 to 2.0
        assert any(fnmatchcase(member, pattern) for pattern in policy.dispatching)
    assert policy.forbidden == defaults("forbidden")
    assert policy.foreign == defaults("foreign")
    assert (policy.mixed, policy.cpu_exempt, policy.allow_other_sass) == ((), (), False)


def test_the_only_rule_of_the_canary_is_for_nvidias_runtime_on_windows():
    policy = plan_of("cpu-avx-py311", "canary").verify
    assert (policy.dispatching, policy.numpy) == (("canary/lib/cudart64_*.dll",), None)


def test_a_channel_replaces_rules_key_by_key(tmp_path):
    text = yaml.safe_load((ROOT / "ci" / "matrix.yaml").read_text(encoding="utf-8"))
    rules = {"allow_other_sass": True, "forbidden": ["*/secret"], "numpy": False}
    text["channels"]["kepler-2.0.1"]["verify"] = rules
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / "matrix.yaml").write_text(
        yaml.safe_dump(text, sort_keys=False), encoding="utf-8"
    )
    plan = plan_of("sm35-avx-py311", project=tmp_path, channel="kepler-2.0.1")
    policy = plan.verify
    assert (policy.allow_other_sass, policy.forbidden, policy.numpy) == (True, ("*/secret",), None)
    assert policy.dispatching == tuple(recipe("torch").verify.dispatching)
    assert policy != plan_of("sm35-avx-py311", channel="kepler-2.0.1").verify
    assert (
        plan.digest == plan_of("sm35-avx-py311", channel="kepler-2.0.1").digest
    )  # what is built is the same
    matrix = load_matrix(tmp_path)
    assert matrix.channel("kepler-compat").text.verify == matrix.channel("kepler-2.0.1").text.verify


def test_repair_writes_what_verify_asks_for(tmp_path):
    plan = plan_of("cpu-avx2-py311", torch="2.0.1")
    wheel = build_wheel(tmp_path, "torch-2.0.1-cp311-cp311-linux_x86_64.whl").path
    found = {}
    for name, requires in (("without", []), ("with", plan.requires)):
        folder = tmp_path / name
        folder.mkdir()
        done = repair(
            wheel, folder, RepairOptions(into="torch/lib", version=plan.version, requires=requires)
        )
        report = verify(done.wheel, plan.verify)
        found[name] = next(check.status for check in report.checks if check.id == "metadata")
    assert found == {"without": "failed", "with": "passed"}


def test_repair_adds_what_the_recipe_requires_and_the_build_did_not_write(tmp_path):
    plan = plan_of("cpu-avx-py311", package="torchvision", channel="debian-2.6.0")
    written = "Requires-Dist: numpy\nRequires-Dist: torch==2.6.0+cpu.avx\n"
    build_wheel(tmp_path / "built/wheel", "torchvision-0.21.0-cp311-cp311-any.whl", extra=written)
    repaired = repair_built(plan, tmp_path / "built", tmp_path / "repaired").wheel
    with zipfile.ZipFile(repaired) as archive:
        text = archive.read(f"torchvision-{plan.version}.dist-info/METADATA").decode()
    found = [
        line.partition(": ")[2] for line in text.splitlines() if line.startswith("Requires-Dist")
    ]
    assert found == ["numpy", "torch==2.6.0+cpu.avx", "numpy<3"]


def windows_wheel(folder, version):
    """A torch for Windows as setup.py leaves it: without the bound on numpy."""
    return build_wheel(folder, f"torch-{version}-cp311-cp311-win_amd64.whl").path


@pytest.mark.parametrize("channel", ["kepler-2.0.1", "kepler-2.7.1", "rtx50-windows"])
def test_the_command_that_a_build_on_windows_prints_leaves_nothing_out(
    tmp_path, monkeypatch, channel
):
    """As build.cmd's last line has it. With `--into` alone verify refused the wheel: numpy 2 could
    be installed.
    """
    variant = {"rtx50-windows": "sm120-avx2-py311"}.get(channel, "sm35-avx-py311")
    plan = plan_of(variant, channel=channel, platform="windows")
    built = windows_wheel(tmp_path / "built" / "wheel", plan.version.partition("+")[0])
    (tmp_path / "plan.json").write_text(plan.to_json())
    monkeypatch.chdir(tmp_path)
    words = ["--lib-dir", str(tmp_path), "--plan", "plan.json"]
    template = (ROOT / "dockerfiles/windows/build.cmd.j2").read_text()
    assert (
        'farm repair "%FARM_WHEEL%" --lib-dir "%FARM_OUT%\\lib" --plan C:\\farm\\job\\plan.json'
        in template
    )
    assert main(["repair", str(built), *words]) == 0
    (mine,) = Path("repaired").iterdir()
    assert (
        mine.read_bytes()
        == repair_built(plan, tmp_path / "built", tmp_path / "theirs").wheel.read_bytes()
    )
    report = verify(mine, plan.verify)
    assert [check.status for check in report.checks if check.id == "metadata"] in (
        ["passed"],
        ["not_run"],
    )
    assert main(["repair", str(built), "--into", "torch/lib", "-o", "by-hand"]) == 0
    if plan.verify.numpy:
        (other,) = Path("by-hand").iterdir()
        assert "failed" in {
            check.status for check in verify(other, plan.verify).checks if check.id == "metadata"
        }


def test_options_that_a_plan_fixes_are_refused_together_with_it(tmp_path, capsys):
    words = [
        "repair",
        str(tmp_path / "a.whl"),
        "--plan",
        str(tmp_path / "plan.json"),
        "--require",
        "numpy<2",
    ]
    assert main([*words, "-o", str(tmp_path / "out")]) == 2
    assert "--require cannot be given with --plan" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("built", "taken"),
    [
        ("0.21.0", True),
        ("0.21", True),
        ("0.21.0a0+abc", True),  # what its source says in every release
        ("0.21.0rc1", False),  # pip takes no such release unless it is asked to
        ("0.21.0.post1", False),
        ("0.22.0.dev3+g1234567", True),  # setuptools-scm, where the tag is not there
        ("0.0.0", True),
        ("0+unknown", True),  # versioneer
        ("0.22.0", False),
        ("0.20.1", False),
        ("21.0", False),
        ("1!0.21.0", False),  # an epoch: pip would take the wheel for an older one
    ],
)
def test_a_wheel_of_another_release_than_the_recipes_is_refused(tmp_path, built, taken):
    """Its version would be written over, and the index would offer other code under that name."""
    plan = plan_of("cpu-avx-py311", package="torchvision", channel="debian-2.6.0")
    build_wheel(tmp_path / "built/wheel", f"torchvision-{built}-cp311-cp311-any.whl")
    if taken:
        repaired = repair_built(plan, tmp_path / "built", tmp_path / "repaired").wheel
        assert repaired.name.startswith(f"torchvision-{plan.version}-")
    else:
        message = re.escape(f"made torchvision {built}, and the recipe's version is 0.21.0")
        with pytest.raises(BuildFailedError, match=message):
            repair_built(plan, tmp_path / "built", tmp_path / "repaired")


def test_a_wheel_of_another_package_is_refused_and_names_the_recipe(tmp_path):
    plan = plan_of("cpu-avx-py311", package="torchvision", channel="debian-2.6.0")
    (tmp_path / "wheel").mkdir()
    (tmp_path / "wheel" / "Other_Name-0.21.0-cp311-cp311-linux_x86_64.whl").touch()
    with pytest.raises(
        BuildFailedError, match="made Other_Name, and the recipe's package is torchvision"
    ) as caught:
        repair_built(plan, tmp_path, tmp_path / "repaired")
    assert "recipe.yaml" in caught.value.hint


def test_what_is_printed_for_a_wrong_rule_takes_the_wheel_that_was_built(
    tmp_path, monkeypatch, capsys
):
    """The line reaches the verification of that very wheel, under the same plan."""
    plan = plan_of("cpu-avx-py311", "canary")
    wheel = tmp_path / "a run" / "repaired" / "canary-0.1.0-cp311-cp311-any.whl"
    wheel.parent.mkdir(parents=True)
    wheel.write_bytes(b"not one")
    line = republish_hint(plan, wheel).rpartition(": ")[2]
    command, *arguments = shlex.split(line)
    assert command == "farm"
    monkeypatch.chdir(ROOT)
    assert main([*arguments, "--index", str(tmp_path / "index")]) == 6
    assert f"{wheel.name} does not hold what its name promises" in capsys.readouterr().err
    assert arguments[-1] == str(tmp_path / "a run" / "built" / "inputs.json")
