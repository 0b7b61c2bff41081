"""`farm why --official` about a CPU: the newest wheel that it can run, and why not newer ones."""

import io
from pathlib import Path

import pytest

from farm.cli.main import main
from tests.schemas import valid

PROJECT = Path(__file__).parents[3]
CPUINFO = "vendor_id : GenuineIntel\nflags : fpu sse sse2 ssse3 cx16 sse4_1 {more}\n"


@pytest.fixture
def official(capsys, monkeypatch):
    def ask(*words, stdin=""):
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        code = main(["--project", str(PROJECT), "why", "--official", *words])
        output = capsys.readouterr()
        return code, " ".join((output.out + output.err).split())

    return ask


@pytest.mark.parametrize(
    ("words", "code", "texts"),
    [
        (["--cpu", "avx"], 0, ["torch 2.15.0 runs on a CPU with avx", "whl/cpu", "without AVX2"]),
        (["--cpu", "sse41"], 0, ["Illegal instruction", 'install "numpy<2.4"']),
        (
            ["--cpu", "avx2", "--glibc", "2.17"],
            0,
            ["pip install torch==2.6.0 --index-url", "newer ones: torch 2.15.0 needs glibc 2.28"],
        ),
        (
            ["--cpu", "avx2", "--python", "3.9"],
            0,
            ["torch==2.8.0", "newer ones: there is no wheel of torch 2.15.0 for py39"],
        ),
        (["--variant", "cpu-avx2-py39"], 0, ["torch==2.8.0"]),
        (
            ["--cpu", "avx2", "--platform", "macos"],
            0,
            ["pip install torch==2.2.2", "is the last for macos-x86_64", "conda-forge"],
        ),
        (["--cpu", "arm64", "--platform", "macos"], 0, ["pip install torch==2.15.0"]),
        (["--cpu", "avx2", "--platform", "macos", "--torch", "2.6"], 3, ["no: torch 2.2.2 is the"]),
        (["--cpu", "avx2", "--platform", "windows"], 0, ["pip install torch==2.15.0 windows"]),
        (["--platform", "macos"], 2, ["--cpu arm64 (Apple), or --cpu avx2 (Intel)"]),
        (["--cpu", "avx", "--driver", "470"], 2, ["name it with --gpu"]),
        (["--cpu", "avx99"], 2, ["is no CPU level"]),
        ([], 2, ["--gpu or --cpu"]),
    ],
)
def test_a_cpu_has_its_newest_wheel(official, words, code, texts):
    answered, said = official(*words)
    assert answered == code
    assert [text for text in texts if text not in said] == []


@pytest.mark.parametrize(
    ("text", "code", "texts"),
    [
        (CPUINFO.format(more=""), 0, ["a CPU with sse41", "no card is named"]),
        (CPUINFO.format(more="sse4_2 avx"), 0, ["a CPU with avx"]),
        ("OS: macOS 12.7 (x86_64)\nPython version: 3.11.4\n", 0, ["torch==2.2.2", "Python 3.11"]),
        ("OS: macOS 14.4 (arm64)\n", 0, ["pip install torch==2.15.0"]),
        (CPUINFO.format(more="") + "bash: nvidia-smi: command not found", 2, ["no nvidia-smi"]),
        ("nothing of use", 2, ["no card"]),
    ],
)
def test_a_pasted_text_without_a_card_is_about_the_cpu(official, text, code, texts):
    answered, said = official("--gpu", "-", stdin=text)
    assert answered == code
    assert [words for words in texts if words not in said] == []


def test_the_document_is_that_of_a_card(official):
    code, said = official("--cpu", "avx", "--json")
    document = valid("why", said)
    assert (code, document["sms"], document["answer"]["cuda"]) == (0, [], None)
    assert document["own"][0]["words"].startswith("--variant cpu-avx-py311")


def test_an_intel_mac_is_offered_its_last_release(capsys):
    words = ["--variant", "cpu-avx2-py311", "--platform", "macos"]
    assert main(["--project", str(PROJECT), "why", *words]) == 3
    said = " ".join(capsys.readouterr().out.split())
    assert "PyTorch's own last release for macos-x86_64 is 2.2.2" in said


def test_a_card_with_a_report_against_it_says_so(capsys):
    words = ["why", "--official", "--gpu", "K80", "--torch", "2.7.1"]
    assert main(["--project", str(PROJECT), *words]) == 0
    assert "reports an error on a K80" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("card", "code", "texts", "absent"),
    [
        ("Rubin", 2, ["is the name of an architecture", "--gpu sm_107"], "nearest"),
        ("VR200", 2, ["is sm_107", "no PyTorch of the catalogue is built for it"], "yes"),
        ("RTX 6000", 2, ["--gpu sm_75 or --gpu sm_89 or --gpu sm_120"], "yes"),
        ("Jetson Nano", 3, ["Armv8.0", "for JetPack 4 to 6 NVIDIA has wheels"], "the end"),
        ("Jetson AGX Xavier", 3, ["nv23.06-cp38", "for JetPack 4 to 6"], "the end"),
        ("GTX 1080 Ti", 0, ["the end: torch 2.14 is the last"], "torchruntime"),
        ("Tesla K80", 0, ["made for use with torch, by torchruntime"], "nothing"),
        ("H100", 0, ["pip install torch==2.15.0"], "the end"),
    ],
)
def test_cards_of_which_less_is_known(official, card, code, texts, absent):
    answered, said = official("--gpu", card)
    assert answered == code
    assert [text for text in texts if text not in said] == []
    assert absent not in said
