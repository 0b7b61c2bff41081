"""PyTorch's own wheels: every row of the release table is answered with yes, and what runs on which
card.
"""

import re
from pathlib import Path

import pytest
import yaml

from farm import catalog
from farm.base.errors import UsageError
from farm.catalog import gpus
from farm.catalog.gpus import ptx_compiles, sass_runs
from farm.plan.compat import official, official_wheels, other_makers
from farm.plan.compat.answer import Question
from farm.plan.compat.rules import check
from farm.plan.compat.stack import Stack, parse_driver
from farm.plan.variant import Variant

CASES = yaml.safe_load(Path(__file__).with_name("official.yaml").read_text(encoding="utf-8"))

PLATFORMS = ("linux", "windows")


def ask(card, platform, torch=None, driver=None, python=None, cuda=None):
    cards = card if isinstance(card, tuple) else (card,)
    return official.best(Question(cards, platform, driver, python, torch, cuda))


def pip(answer):
    return answer.wheel.pip if answer.runs else None


LINUX = "linux-x86_64"


def rows():
    """(torch, CUDA, cuDNN, platform) of every combination that upstream published, 1.12 to
    today.
    """
    names = {release.version: name for name, release in catalog.cudnn_releases().items()}
    for torch, release in catalog.torch_releases().items():
        for each in release.official:
            for platform in PLATFORMS:
                yield torch, each.cuda, names[each.cudnn] if each.cudnn else None, platform


def test_the_table_reaches_from_1_12_to_2_15():
    minors = {tuple(map(int, torch.split(".")[:2])) for torch, *_ in rows()}
    assert minors == {(1, 12), (1, 13), *((2, minor) for minor in range(16))}
    assert (
        len(list(rows()))
        == 2 * sum(len(release.official) for release in catalog.torch_releases().values())
        >= 150
    )


def _stack(torch, cuda, cudnn, platform, python):
    sm = next(sm for sm in (75, 70) if sm in catalog.toolkits()[cuda].sm)
    return Stack(
        "torch", Variant(f"sm{sm}", "avx2", python), platform, cuda=cuda, torch=torch, cudnn=cudnn
    )


@pytest.mark.parametrize(("torch", "cuda", "cudnn", "platform"), list(rows()))
def test_every_official_row_is_possible(torch, cuda, cudnn, platform):
    for python in catalog.torch_releases()[torch].pythons.on(platform):
        found = check(_stack(torch, cuda, cudnn, platform, python))
        assert [reason for reason in found if reason.severity == "error"] == []
        built = cuda in catalog.torch_releases()[torch].official_cudas(platform)
        assert ("torch-official" in {reason.rule for reason in found}) == (not built)


def test_wheels_that_were_read_say_so():
    read = [row for row in catalog.official().wheels if row.index == "pypi"]
    assert len(read) >= 90
    assert all(
        row.sha256 and row.file and row.pythons and row.file.startswith(f"torch-{row.torch}-")
        for row in read
    )
    assert all(row.source != "wheel" for row in catalog.official().wheels if row.sha256 is None)


def test_wheels_that_were_read_agree_with_the_release_table():
    """The CUDA of a wheel of the Python index is one that RELEASE.md names for its release."""
    for row in catalog.official().wheels:
        if row.index == "pypi" and row.cuda:
            assert row.cuda in {
                each.cuda for each in catalog.torch_releases()[row.torch].official
            }, row


@pytest.mark.parametrize(
    ("card", "torch", "runs", "line"), CASES["which_official_wheel_runs_on_a_card"]
)
def test_which_official_wheel_runs_on_a_card(card, torch, runs, line):
    answer = ask(card, LINUX, torch)
    assert (answer.runs, pip(answer)) == (runs, line)


def test_the_newest_for_each_generation():
    newest = {sm: ask(sm, LINUX) for sm in (35, 37, 50, 61, 70, 75, 86, 90, 100, 120)}
    assert newest.pop(35).wheel is None
    assert {sm: answer.wheel.torch for sm, answer in newest.items()} == {
        37: "2.7.1",
        50: "2.14.1",
        61: "2.14.1",
        70: "2.14.1",
        **dict.fromkeys((75, 86, 90, 100, 120), "2.15.0"),
    }


@pytest.mark.parametrize(
    ("card", "driver", "torch"),
    [
        (75, "570.86", "2.14.1"),
        (75, "525.60.13", "2.14.1"),
        (86, "535.104.05", "2.14.1"),
        (120, "570.86", "2.11.0"),
        (75, "580.65.06", "2.15.0"),
    ],
)
def test_an_older_driver_gets_an_older_flavour(card, driver, torch):
    """CUDA 13 needs driver 580; 12.6 keeps older drivers going, but has no code for Blackwell."""
    answer = ask(card, LINUX, driver=driver)
    assert answer.runs
    assert answer.wheel.torch == torch


def test_a_driver_that_suits_no_wheel_is_named():
    answer = ask(120, LINUX, driver="550.54")
    assert not answer.runs
    assert "570" in answer.problem or "580" in answer.problem


def test_windows_wheels_of_the_python_index_are_for_cpus():
    assert pip(ask(86, "windows-x86_64", "2.8.0")).endswith("whl/cu129")
    assert all(
        each.index != "pypi"
        for each in official_wheels.wheels()
        if each.platform == "windows-x86_64"
    )


@pytest.mark.parametrize(
    ("torch", "cuda", "card", "applies"), CASES["what_upstream_dropped_is_said"]
)
def test_cards_that_upstream_dropped_are_named(torch, cuda, card, applies):
    found = check(
        Stack("torch", Variant(f"sm{card}", "avx2", "py311"), "linux", cuda=cuda, torch=torch)
    )
    assert ("torch-official-gpu" in {reason.rule for reason in found}) == applies


@pytest.mark.parametrize(("code", "suffix", "card", "runs"), CASES["binary_compatibility"])
def test_binary_compatibility(code, suffix, card, runs):
    """CUDA C++ Programming Guide, Binary Compatibility; Architecture-Specific and Family-Specific
    Features.
    """
    assert sass_runs(code, card, suffix) == runs


def test_ptx_runs_only_on_newer_cards():
    assert ptx_compiles(89, 120)
    assert not ptx_compiles(120, 89)
    assert not ptx_compiles(90, 100, "a")


AARCH64 = "linux-aarch64"


@pytest.mark.parametrize(
    ("card", "torch", "platform", "python", "line"), CASES["with_a_python_and_a_machine"]
)
def test_an_answer_depends_on_python_and_machine(card, torch, platform, python, line):
    assert pip(ask(card, platform, torch, python=python)) == line


@pytest.mark.parametrize(
    ("card", "driver", "update"),
    [
        # NVIDIA, UNIX driver legacy list: 470 is the last branch for Kepler, 580 for Maxwell,
        # Pascal and Volta.
        (61, "590.44", "525 or newer, up to branch 580"),
        (37, "535.54", "450.80.02 or newer, up to branch 470"),
        (70, "595.71.05", "525 or newer, up to branch 580"),
        (61, "390.157", "525 or newer, up to branch 580"),
        (86, "390.157", "580 or newer"),
    ],
)
def test_a_driver_that_is_too_old_or_too_new_for_the_card(card, driver, update):
    answer = ask(card, LINUX, driver=driver)
    assert (answer.runs, answer.update) == (False, update)
    assert driver in answer.problem


def test_another_driver_is_no_help_against_a_python():
    answer = ask(61, LINUX, "2.8.0", "590.44", "py314")
    assert (answer.runs, answer.update) == (False, None)


@pytest.mark.parametrize(
    ("torch", "platform", "line"),
    [("2.6.0", AARCH64, "whl/cu126"), ("2.4.0", AARCH64, "whl/cu124"), ("2.3.1", AARCH64, None)],
)
def test_grace_has_wheels_from_2_4_on(torch, platform, line):
    found = pip(ask(90, platform, torch))
    assert found.endswith(line) if line else found is None


@pytest.mark.parametrize(
    ("cards", "torch", "lost"),
    [
        # V100 and RTX 5090: 2.8 to 2.10 with CUDA 12.8 have both; K40 is in none.
        ((70, 120), "2.10.0", ()),
        ((61, 86), "2.14.1", ()),
        ((35, 86), "2.15.0", (35,)),
        ((37, 120), "2.15.0", (37,)),
    ],
)
def test_several_cards_are_asked_as_a_set(cards, torch, lost):
    answer = ask(cards, LINUX)
    assert (answer.wheel.torch, answer.lost, answer.runs) == (torch, lost, not lost)


def test_a_question_may_name_only_a_cuda_version():
    """GTX 1080 with the cu128 wheel of 2.8: it has no code for Pascal, whatever the cu126 one
    has.
    """
    assert ask(61, LINUX, "2.8.0", cuda="12.8").wheel is None
    assert ask(61, LINUX, "2.8.0", cuda="12.6").runs
    assert not ask(70, LINUX, "2.10.0", cuda="13.0").runs


def test_kepler_with_a_cudnn_that_has_no_kepler():
    """cuDNN 9.1.0.70, which torch 2.7.1+cu118 brings, begins at sm_50; 8.7.0.84 of 2.3.1+cu118 at
    sm_35.
    """
    assert "cuDNN on sm_37" in ask(37, LINUX, driver="470").without[0]
    assert ask(37, LINUX, "2.3.1").without == ()


def test_an_answer_says_pythons_and_glibc():
    answer = ask(75, LINUX, driver="450.51")
    assert (answer.wheel.torch, answer.wheel.pythons) == (
        "1.12.1",
        ("py37", "py38", "py39", "py310"),
    )
    assert (answer.wheel.glibc, ask(75, LINUX).wheel.glibc) == ("2.17", "2.28")
    assert ask(75, "windows-x86_64").wheel.glibc is None


def test_other_makers_are_named_with_what_they_lack():
    """conda-forge's recipe/build.sh for CUDA 11.8 begins at 3.5; it was removed on 2024-11-22, at
    2.5.1.
    """
    found = {row.maker: row for row in other_makers.others(Question((35,), LINUX))}
    assert (found["conda-forge"].torch, found["conda-forge"].cuda) == ("2.5.1", "11.8")
    assert "cuda_arch=35 " in other_makers.install(found["Spack"], Question((35,), LINUX))
    assert all(row.unconfirmed for row in found.values())
    assert other_makers.others(Question((35,), "windows-x86_64")) == []
    assert "NVIDIA for Jetson" in {
        row.maker for row in other_makers.others(Question((87,), AARCH64))
    }


@pytest.mark.parametrize(("name", "sm", "machine"), CASES["the_machine_that_a_card_is_in"])
def test_the_machine_that_a_card_is_in(name, sm, machine):
    assert gpus.machine(name, sm) == machine


@pytest.mark.parametrize("torch", ["2.9.1", "2.10.0", "2.11.0"])
def test_the_wheels_with_cuda_12_9_that_no_matrix_names_are_known(torch):
    answer = ask(86, LINUX, torch, cuda="12.9")
    assert answer.verdict == "yes"
    assert pip(answer).endswith("whl/cu129")


@pytest.mark.parametrize(
    ("torch", "cuda", "named"),
    [
        ("2.9.1", "12.4", "CUDA 12.6, CUDA 12.8, CUDA 12.9, CUDA 13.0"),
        ("2.0.1", "12.8", "CUDA 11.7"),
    ],
)
def test_a_wheel_that_the_catalogue_lacks_is_not_known(torch, cuda, named):
    answer = ask(86, LINUX, torch, cuda=cuda)
    assert (answer.verdict, answer.runs) == ("not known", False)
    assert f"torch {torch} came with {named}" in answer.unknown


@pytest.mark.parametrize(
    ("sm", "torch", "cuda", "knows"),
    [
        (103, "2.10.0", "12.8", False),  # NVRTC 12.8 refuses compute_103
        (89, "1.12.1", "11.3", False),  # pytorch/pytorch#87595
        (103, "2.10.0", "13.0", True),
        (86, "1.12.1", "11.3", True),
    ],
)
def test_a_card_that_the_compilers_of_the_wheel_do_not_know_runs_with_a_caveat(
    sm, torch, cuda, knows
):
    answer = ask(sm, LINUX, torch, cuda=cuda)
    assert answer.runs
    assert any("NVRTC" in text for text in answer.but) != knows


@pytest.mark.parametrize(
    ("torch", "faults"),
    [
        ("1.13.0", ["CVE-2022-45907", "CVE-2025-32434", "CVE-2026-24747"]),
        ("2.5.1", ["CVE-2025-32434", "CVE-2026-24747"]),
        ("2.6.0", ["CVE-2026-24747"]),
        ("2.10.0", []),
    ],
)
def test_known_security_faults_of_a_release_are_said(torch, faults):
    said = re.findall(r"CVE-[0-9-]+", " ".join(ask(80, LINUX, torch).but))
    assert said == faults


def test_a_patch_that_is_named_after_a_fault_mends_it():
    patch = ["patches/0004-CVE-2026-24747.patch"]
    assert official_wheels.faults_text("2.6.0", patch) == "patched by the recipe: CVE-2026-24747"
    old = official_wheels.faults_text("2.5.1", patch)
    assert "can run code: CVE-2025-32434; fixed in torch 2.6.0; patched by" in old
    assert "patched" not in official_wheels.faults_text(
        "2.6.0", ["patches/0001-mkl-fft-strides.patch"]
    )


def test_an_old_glibc_gets_the_last_release_for_it_and_why_not_a_newer_one():
    question = Question((70,), LINUX, glibc="2.17")
    answer = official.best(question)
    assert (answer.wheel.torch, answer.wheel.cuda, answer.runs) == ("2.6.0", "12.4", True)
    assert "needs glibc 2.28 or newer" in official.why_not_newer(question, answer.wheel)
    newest = official.best(Question((70,), LINUX)).wheel
    assert official.why_not_newer(Question((70,), LINUX), newest) is None


@pytest.mark.parametrize(("cpu", "said"), [("sse41", True), ("avx", True), ("avx2", False)])
def test_a_cpu_that_upstream_does_not_test_is_a_caveat(cpu, said):
    answer = official.best(Question((70,), LINUX, cpu=cpu))
    assert (answer.runs, any("on a CPU without AVX" in text for text in answer.but)) == (True, said)


@pytest.mark.parametrize(
    ("sm", "word"), [(52, "Maxwell"), (61, "Pascal"), (70, "Volta"), (75, None), (35, None)]
)
def test_the_end_of_upstreams_wheels_for_a_card(sm, word):
    end = official_wheels.end_of_support(sm)
    assert (end is not None and word in end.text) if word else end is None


def test_the_announcement_for_pascal_is_not_voltas():
    assert "Pascal" in official_wheels.left_behind("2.11.0", "12.8", 61).text
    assert "Volta" in official_wheels.left_behind("2.11.0", "12.8", 70).text


@pytest.mark.parametrize(
    ("text", "version"), [("32.0.15.7688", "576.88"), ("31.0.15.3623", "536.23"), ("R470", "470")]
)
def test_a_driver_in_windows_own_numbers(text, version):
    assert parse_driver(text) == version


def test_a_cuda_version_is_no_driver():
    with pytest.raises(UsageError, match="looks like a CUDA version"):
        parse_driver("12.4")


@pytest.mark.parametrize("name", ["RTX 4000", "rtx5000", "NVIDIA RTX 6000"])
def test_the_name_of_three_generations_asks_back(name):
    assert {card.sm for card in gpus.find(name)} == {"sm75", "sm89", "sm120"}


@pytest.mark.parametrize(
    ("name", "sm"),
    [("Quadro RTX 6000", "sm75"), ("RTX 6000 Ada", "sm89"), ("RTX 6000 Pro", "sm120")],
)
def test_a_full_card_name_needs_no_question(name, sm):
    assert {card.sm for card in gpus.find(name)} == {sm}


@pytest.mark.parametrize(
    ("sm", "makers"),
    [
        (35, []),
        (61, ["sasha0552/pascal-pkgs-ci", "torchruntime"]),
        (86, ["mjun0812/flash-attention-prebuild-wheels", "PozzettiAndrea/cuda-wheels"]),
    ],
)
def test_makers_of_other_packages_that_cards_need(sm, makers):
    assert [row.maker for row in other_makers.makers_beside(Question((sm,), LINUX))] == makers


def test_orin_with_jetpack_6_is_served_by_others():
    makers = [row.maker for row in other_makers.others(Question((87,), "linux-aarch64"))]
    assert {"conda-forge for Jetson", "Jetson AI Lab"} <= set(makers)
