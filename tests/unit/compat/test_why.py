"""`farm why` from the command line to its answer, with this project's own channels."""

import json
import shlex
from pathlib import Path

import pytest
import yaml

from farm.cli.main import main
from tests.schemas import valid

CASES = yaml.safe_load(Path(__file__).with_name("why.yaml").read_text(encoding="utf-8"))

PROJECT = Path(__file__).parents[3]


@pytest.fixture
def why(capsys):
    def ask(*words):
        code = main(["--project", str(PROJECT), "why", "--package", "torch", *words])
        return code, capsys.readouterr()

    return ask


def test_questions_of_public_threads(why):
    """`questions.yaml`: questions of public threads, each with its source."""
    codes, wrong = {True: 0, False: 3, "refused": 2}, []
    for thread, rows in yaml.safe_load(
        Path(__file__).with_name("questions.yaml").read_text()
    ).items():
        for answer, words, says in rows:
            code, output = why("--official", "--gpu", *shlex.split(words))
            if (code, str(says) in " ".join((output.out + output.err).split())) != (
                codes[answer],
                True,
            ):
                wrong.append((thread, words, output))
    assert wrong == []


def rules(out):
    return {reason["rule"]: reason for reason in json.loads(out)["reasons"]}


def test_the_rtx_5070_log(why):
    code, output = why(
        *(
            "--variant",
            "sm120-avx2-py311",
            "--platform",
            "windows",
            "--torch",
            "2.7",
            "--cuda",
            "12.3",
        ),
        *("--gpu", "NVIDIA GeForce RTX 5070", "--msvc", "2022", "--arch-list", "8.9", "--json"),
    )
    found = rules(output.out)
    assert code == 3
    assert {"cuda-sm", "arch-list-gpu", "cuda-msvc"} <= set(found)
    assert "NVIDIA GeForce RTX 5070 (sm_120)" in found["arch-list-gpu"]["text"]
    assert json.loads(output.out)["nearest"] == "--cuda 12.8, arch list 12.0"


def test_a_warning_does_not_forbid(why):
    code, output = why(
        "--variant", "sm35-avx-py311", "--gpu", "Tesla K40c", "--driver", "470", "--json"
    )
    assert code == 0
    assert json.loads(output.out)["buildable"] is True
    assert rules(output.out)["driver-limited"]["severity"] == "warning"


def test_a_version_by_its_beginning(why):
    code, output = why("--variant", "sm35-avx-py311", "--cudnn", "8.9", "--json")
    assert code == 3
    assert "cuDNN 8.9.7" in rules(output.out)["cudnn-sm"]["text"]


def test_the_answer_reads_from_cause_to_cure(why):
    words = (
        "--channel",
        "kepler-2.0.1",
        "--variant",
        "sm35-avx-py311",
        "--numpy",
        "2.0.2",
        "--flash-attention",
    )
    code, output = why(*words)
    assert code == 3
    assert output.out.startswith("torch for sm35-avx-py311 on linux cannot be built\n")
    assert "\nnearest that the rules allow: numpy 1.26.4, without flash attention\n" in output.out
    assert "(unconfirmed" not in output.out


def test_titan_x_is_two_cards(why):
    code, (_, err) = why("--official", "--gpu", "TITAN X")
    assert (code, "several chips: sm52, sm61" in err, "--gpu sm_52 or --gpu sm_61" in err) == (
        2,
        True,
        True,
    )
    for name, sm in (
        ("GeForce GTX TITAN X", 52),
        ("NVIDIA TITAN X (Pascal)", 61),
        ("Titan X Maxwell", 52),
    ):
        code, output = why("--official", "--gpu", name)
        assert (code, f"(sm_{sm})" in output.out) == (0, True)


def test_no_official_wheel_leads_to_proved_builds_first(why):
    code, output = why("--official", "--gpu", "GTX 1080 Ti", "--torch", "2.15.0")
    assert (code, "--channel legacy-2.14.1" in output.out) == (3, True)
    code, output = why("--official", "--gpu", "K40")
    own = output.out.split("of your own: ")[1:]
    assert (
        code,
        "--channel debian-2.6.0" in own[0],
        "; about 9.2 CPU hours)" in own[0].replace("\n  ", " "),
    ) == (
        3,
        True,
        True,
    )
    assert [("(tested" in each) for each in own] == [True, True]
    assert "conda-forge: torch 2.5.1, CUDA 11.8" in output.out
    assert "--channel" not in why("--official", "--gpu", "RTX 4090")[1].out


@pytest.mark.parametrize(("card", "sm"), CASES["names_that_people_and_tools_write"])
def test_names_that_people_and_tools_write(why, card, sm):
    code, output = why("--official", "--gpu", card)
    assert (code in (0, 3), output.err, f"({sm})" in output.out) == (True, "", True), output


def test_gb10_is_arm_alone_and_only_a_warning(why):
    code, output = why("--variant", "sm121-avx512-py313", "--json")
    assert (code, "gpu-arm" in output.out) == (0, True)
    assert "gpu-arm" not in why("--variant", "sm121-armv9-py313", "--json")[1].out


def test_a_card_with_several_chips_takes_the_one_of_the_variant(why):
    assert why("--variant", "sm35-avx-py311", "--gpu", "GT 730")[0] == 0
    code, output = why("--variant", "sm52-avx-py311", "--gpu", "GT 730")
    assert code == 2
    assert "was sold with several chips" in output.err
    assert "`farm detect` on its machine says" in output.err


@pytest.mark.parametrize("name", ["sm_35", "sm35", "3.5", "35"])
def test_a_card_by_its_sm(why, name):
    assert why("--variant", "sm35-avx-py311", "--gpu", name)[0] == 0
    assert why("--variant", "sm75-avx-py311", "--gpu", name)[0] == 3


@pytest.mark.parametrize(("words", "says"), CASES["what_cannot_be_read_is_a_usage_error"])
def test_what_cannot_be_read_is_a_usage_error(why, words, says):
    code, output = why("--variant", "sm35-avx-py311", *words)
    assert code == 2
    assert says in output.err
    assert "Traceback" not in output.err


@pytest.mark.parametrize(
    ("card", "python", "code", "line"),
    CASES["the_official_wheel_for_a_python_that_the_farm_may_not_build_for"],
)
def test_the_official_wheel_for_a_python_that_the_farm_may_not_build_for(
    why, card, python, code, line
):
    got, output = why("--official", "--gpu", card, "--python", python)
    assert (got, line in output.out) == (code, True), output.out
    assert f"-{python} " not in output.out  # the farm's variant, where one is named, can be built


@pytest.mark.parametrize(
    ("words", "message"), CASES["a_question_that_cannot_be_answered_is_refused"]
)
def test_a_question_that_cannot_be_answered_is_refused(why, words, message):
    code, output = why(*words)
    assert code == 2
    assert message in output.err


@pytest.mark.parametrize(("line", "code", "says", "hides"), CASES["plan_and_why_tell_one_truth"])
def test_plan_and_why_agree(farm, line, code, says, hides):
    got, output = farm(*line.split())
    text = " ".join((output.out + output.err).split())
    assert (got, [each for each in says if each not in text], hides in text) == (code, [], False), (
        text
    )


@pytest.mark.parametrize("gcc", ["13", "gcc-13", "g++-13", "13.2.0"])
def test_a_gcc_as_people_name_it(why, gcc):
    code, output = why("--variant", "sm35-avx-py311", "--gcc", gcc)
    assert (code, "CUDA 11.8 takes gcc up to 11, not gcc 13" in output.out) == (3, True)


@pytest.mark.parametrize("driver", ["390", "R390", " r390.157 "])
def test_a_driver_as_people_name_it(why, driver):
    code, output = why("--variant", "sm35-avx-py311", "--driver", driver, "--json")
    assert (code, rules(output.out)["driver-cuda"]["severity"]) == (3, "error")
    code, output = why("--official", "--gpu", "V100", "--driver", driver, "--torch", "2.7.1")
    assert (
        code,
        f"driver {driver.strip().lower().removeprefix('r')} is too old" in output.out,
    ) == (3, True)


def test_a_card_of_an_arm_machine_gets_the_wheel_for_arm(why):
    """The x86 index page of torch 2.9.1 has a wheel of the same name for CPUs alone on Arm."""
    code, output = why("--official", "--gpu", "NVIDIA GB10", "--torch", "2.9.1")
    assert (
        code,
        "torch==2.9.1 --index-url https://download.pytorch.org/whl/cu130" in output.out,
    ) == (0, True)
    code, output = why("--official", "--gpu", "Jetson AGX Orin")
    assert (code, "NVIDIA for Jetson" in output.out, "farm submit" in output.out) == (
        3,
        True,
        False,
    )


def test_a_driver_that_no_longer_knows_the_card(why):
    code, output = why("--official", "--gpu", "GTX 1080", "--driver", "590.44")
    assert code == 3
    assert "no: driver 590.44 does not know sm_61" in output.out
    assert "another driver is enough: 525 or newer, up to branch 580" in output.out


@pytest.mark.parametrize(
    ("variant", "card", "code"),
    [
        ("sm90-avx512-py312", "NVIDIA GH200 480GB", 3),
        ("sm90-armv9-py312", "NVIDIA GH200 480GB", 0),
        ("sm90-avx512-py312", "NVIDIA H100 NVL", 0),
        ("sm100-avx512-py312", "GB200", 3),
    ],
)
def test_grace_is_no_x86_machine(why, variant, card, code):
    found, output = why("--variant", variant, "--gpu", card, "--json")
    assert (found, "gpu-machine" in rules(output.out)) == (code, code == 3)
    assert code == 0 or json.loads(output.out)["nearest"].startswith("--variant ")


@pytest.mark.parametrize(
    ("card", "reason"),
    [
        ("GTX 580", "CUDA 8.0 was the last toolkit for Fermi"),
        ("Quadro K2000", "CUDA 10.2 was the last toolkit for sm_30"),
        ("Jetson Nano", "the farm's wheels for Arm start at Armv8.2"),
    ],
)
def test_no_variant_is_named_that_the_farm_itself_refuses(why, card, reason):
    code, output = why("--official", "--gpu", card)
    assert (code, output.err, "--variant" in output.out) == (3, "", False)
    assert "no wheel of your own either: " in output.out
    assert reason in " ".join(output.out.split())


@pytest.mark.parametrize("card", ["RTX 5070", "K40", "GTX 580", "GTX 1080 Ti"])
def test_the_document_about_pytorchs_own_wheel(why, card):
    found = valid("why", why("--official", "--gpu", card, "--json")[1].out)
    assert (found["no_variant"] is not None) == (card == "GTX 580")


def test_the_cores_of_a_jetson_nano_are_older_than_every_level(why):
    """Cortex-A57: LSE atomics, which -march=armv8.2-a uses, are an illegal instruction there."""
    code, output = why("--variant", "sm53-armv8_2-py311", "--json")
    assert (code, "Armv8.0" in rules(output.out)["gpu-machine"]["text"]) == (3, True)


@pytest.mark.parametrize(
    ("variant", "cuda", "code"),
    [
        ("sm87-armv8_2-py310", "12.6", 3),
        ("sm72-armv8_2-py310", "11.8", 3),
        ("sm110-armv9-py313", "13.0", 0),
    ],
)
def test_archives_for_arm_servers_do_not_run_on_older_jetsons(why, variant, cuda, code):
    """CUDA 12.6 has aarch64-jetson beside arm64-sbsa; from 13.0 on there is one."""
    got, output = why("--variant", variant, "--cuda", cuda, "--json")
    assert (got, "jetson-cuda" in rules(output.out)) == (code, code == 3)
    assert "jetson-system" in rules(output.out) or code == 3


def test_a_recipe_that_has_a_switch_off_is_asked_too(why):
    code, output = why(
        "--variant", "sm61-avx2-py311", "--channel", "debian-2.6.0", "--fbgemm", "--json"
    )
    assert (code, rules(output.out)["switch-recipe"]["source"]) == (
        3,
        "farm/recipes/torch-debian-2-6/recipe.yaml",
    )


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        (("--torch", "2.14.1"), "--torch 2.7.1"),
        # What was asked for last is kept first: of two that exclude each other, the first gives
        # way.
        (("--cudnn", "8.7.0", "--cuda", "12.6"), "--cuda 11.8"),
    ],
)
def test_the_nearest_is_the_closest(why, words, nearest):
    code, output = why("--variant", "sm35-avx-py311", *words, "--json")
    assert (code, json.loads(output.out)["nearest"]) == (3, nearest)


@pytest.mark.parametrize(("first", "moved"), [("--torch", "--torch "), ("--cuda", "--cuda ")])
def test_the_option_named_last_is_kept(why, first, moved):
    given = [("--torch", "2.9.1"), ("--cuda", "11.8")]
    words = [word for pair in sorted(given, key=lambda pair: pair[0] != first) for word in pair]
    assert json.loads(why("--variant", "sm75-avx2-py312", *words, "--json")[1].out)[
        "nearest"
    ].startswith(moved)


@pytest.mark.parametrize("cuda", ["13.3", "13.4", "13.5"])
def test_a_cuda_whose_driver_is_not_known_counts_as_its_neighbour(why, cuda):
    words = (
        "--variant",
        "sm100-avx2-py312",
        "--gpu",
        "B200",
        "--driver",
        "580",
        "--arch-list",
        "9.0+PTX",
    )
    code, output = why(*words, "--cuda", cuda, "--torch", "2.15.0", "--json")
    assert (code, rules(output.out)["ptx-driver"]["severity"]) == (3, "error")
    assert ("unconfirmed" in rules(output.out)["ptx-driver"]["fact"]) == (cuda == "13.5")
