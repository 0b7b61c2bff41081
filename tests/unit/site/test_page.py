"""The page answers as the command does: the page itself runs, with texts that people type and
paste.
"""

import json
import random
import re
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from farm import catalog
from farm.base.errors import UsageError
from farm.catalog import gpus, paste
from farm.cli import official_cpu
from farm.cli.main import parser
from farm.cli.official import headline
from farm.cli.official_request import request_of
from farm.plan.compat import official, official_wheels
from farm.plan.compat.answer import Question
from farm.plan.compat.official_cpu import best as best_for_cpu

RANDOM_TEXTS = 2000
SEED = 20261128
RUN = "result = cases.map(([text, platform]) => page(text, platform));"
RECORDED = Path(__file__).parents[1] / "catalog" / "pastes.yaml"
PASTES = [case["text"] for case in yaml.safe_load(RECORDED.read_text(encoding="utf-8"))]
TYPED = Path(__file__).with_name("typed.txt").read_text(encoding="utf-8").splitlines()
FORMS = (
    "{card}",
    "{count}x {card}",
    "{card}, driver {driver}",
    "{card} on Windows 11, Python 3.{minor}",
    "{card} + {other}",
    "GPU 0: {card} (UUID: GPU-1)\nGPU 1: {other} (UUID: GPU-2)",
    (
        "| NVIDIA-SMI {driver}   Driver Version: {driver}   CUDA Version: 12.4 |\n"
        "|   0  {card}      Off  | 00000000:03:00.0 Off |        0 |"
    ),
    (
        "| NVIDIA-SMI {driver}   KMD Version: {driver}   CUDA UMD Version: 13.3 |\n"
        "|   0  {card}     WDDM  | 00000000:03:00.0 Off |        0 |"
    ),
    "driver_version, name\n{driver}, {card}\n{driver}, {other}",
    "Name          : NVIDIA {card}\nDriverVersion : 31.0.15.{windows}",
    "    Found GPU0 {card} which is of cuda capability {capability}.",
    "{card} with CUDA capability sm_{sm} is not compatible with the current PyTorch installation.",
    (
        "OS: Ubuntu 22.04.5 LTS (x86_64)\nPython version: 3.{minor}\nLibc version: glibc-2.35\n"
        "GPU models and configuration: GPU 0: {card}\nNvidia driver version: {driver}"
    ),
    (
        "I have a {card} and torch==2.9.1+cu128 says that there is no kernel image for it, why?\n"
        "The driver is version {driver}.\nIt worked last year.\nThanks!"
    ),
)
DRIVERS = ("390.157", "450.51.06", "470.256.02", "535.54", "576.88", "580.65.06", "610.43.02")


def random_texts():
    """Texts of the forms above about cards of the catalogue."""
    draw = random.Random(SEED)
    cards = gpus.cards()
    for _ in range(RANDOM_TEXTS):
        card = draw.choice(cards)
        number = card.sm[2:]
        yield draw.choice(FORMS).format(
            card=card.name,
            other=draw.choice(cards).name,
            count=draw.randint(1, 8),
            driver=draw.choice(DRIVERS),
            minor=draw.randint(8, 15),
            windows=draw.randint(1000, 9999),
            capability=f"{number[:-1]}.{number[-1]}",
            sm=number,
        )


def expected(text, platform):
    """What the command says: its first sentence and the pip line, or None where it refuses."""
    word = re.fullmatch(r"cpu(?:-(\w*))?", text.strip().lower())
    if word:
        cpu = word[1] if word[1] in catalog.cpu_levels() else None
        machine = catalog.cpu_levels()[cpu].machine if cpu else "x86_64"
        return of_cpu(Question((), f"{platform}-{machine}", cpu=cpu))
    pasted = paste.read(text)
    if not pasted.cards:
        return expected_of_cpu(pasted, platform)
    python = pasted.python if pasted.python in official_wheels.pythons() else None
    try:
        request = request_of(
            pasted.cards,
            pasted.platform or platform,
            driver=pasted.driver,
            python=python,
            glibc=pasted.glibc,
            cpu=pasted.cpu,
            machine=pasted.machine,
            skip_unknown=True,
        )
    except UsageError:
        return None
    answer = official.best(request.question)
    sentence = headline(request, answer)
    return as_shown(sentence), answer.wheel.pip if answer.wheel else None


def expected_of_cpu(pasted, platform):
    """The same for a text that names no card."""
    args = parser().parse_args(["why", "--official", "--gpu", "-"])
    if not official_cpu.is_asked(args, pasted):
        return None
    try:
        question = official_cpu.question_of(args, pasted, platform=pasted.platform or platform)
    except UsageError:
        return None
    return of_cpu(question)


def of_cpu(question):
    answer = best_for_cpu(question)
    wheel = answer.wheel
    return as_shown(official_cpu.headline(question, answer)), wheel.pip if wheel else None


def as_shown(sentence):
    return sentence[0].upper() + sentence[1:] + ("" if sentence.endswith(".") else ".")


def shown(parts):
    """The first sentence of the page and its first command, or None where it answers nothing."""
    sentence = next((text for tag, style, text in parts if (tag, style) == ("p", "")), "")
    if not sentence.startswith(("Yes: ", "No: ")):
        return None
    command = next((text for _, style, text in parts if style == "command"), None)
    return sentence, command if command and command.startswith("pip install torch==") else None


def test_the_page_answers_as_the_command_does(page):
    draw = random.Random(SEED)
    texts = [*random_texts(), *PASTES, *TYPED]
    cases = [(text, draw.choice(("linux", "windows"))) for text in texts]
    answers = page(RUN, cases)
    different = []
    for (text, platform), parts in zip(cases, answers, strict=True):
        if expected(text, platform) != shown(parts):
            different.append((text, platform, expected(text, platform), shown(parts)))
    assert different[:5] == []
    answered = [shown(parts) for parts in answers]
    assert 1000 < sum(answer is not None for answer in answered) < len(answered) - 50


def test_wheels_for_the_cpu_are_the_same(page):
    draw = random.Random(SEED)
    cases = []
    for _ in range(RANDOM_TEXTS):
        place = draw.choice(("linux-x86_64", "linux-aarch64", "windows-x86_64", "macos-x86_64"))
        question = {
            "platform": draw.choice((place, "macos-arm64", "windows-aarch64")),
            "python": draw.choice((None, "py37", "py39", "py312", "py314t")),
            "torch": draw.choice((None, None, "1.12.1", "2.2.2", "2.6.0", "2.15.0")),
            "glibc": draw.choice((None, "2.12", "2.17", "2.28", "2.39")),
            "cpu": draw.choice((None, "sse41", "avx", "avx2", "arm64")),
        }
        cases.append(question)
    answers = page("result = cases.map((q) => answers.bestForCpu({ sms: [], ...q }));", cases)
    for case, answer in zip(cases, answers, strict=True):
        mine = asdict(best_for_cpu(Question((), **case)))
        assert json.loads(json.dumps(mine)) == answer, case


@pytest.mark.parametrize(
    ("typed", "platform", "texts"),
    [
        ("Rubin", "linux", ["is the name of an architecture", "sm107"]),
        ("VR200", "linux", ["is sm_107: no PyTorch of the catalogue is built for it"]),
        ("Blackwell", "linux", ["is the name of an architecture"]),
        ("RTX 6000", "linux", ["sold with several chips: sm_75, sm_89, sm_120"]),
        ("GPU 0: NVIDIA RTX 6000 (UUID: GPU-1)", "linux", ["sm_75, sm_89, sm_120"]),
        ("Jetson Nano", "linux", ["Armv8.0", "for JetPack 4 to 6"]),
        ("GTX 680", "linux", ["CUDA 10.2 was the last toolkit for sm_30"]),
        ("Tesla K80", "linux", ["Beside torch, torchruntime"]),
        ("cpu-avx", "linux", ["runs on a CPU with avx", "whl/cpu", "was not examined here"]),
        ("cpu", "windows", ["runs on the CPU", "windows-x86_64"]),
        (
            "OS: macOS 12.7 (x86_64)\nPython version: 3.11.4",
            "linux",
            ["torch 2.2.2", "is the last"],
        ),
    ],
)
def test_what_is_shown_for_a_text(page, typed, platform, texts):
    (parts,) = page(RUN, [(typed, platform)])
    text = " ".join(part[2] for part in parts)
    assert [words for words in texts if words not in text] == []


def test_two_hundred_texts_are_written_by_hand():
    assert len({*PASTES, *TYPED}) >= 200


def test_pasted_texts_are_read_alike(page):
    readings = page("result = cases.map(answers.read);", [*PASTES, *TYPED])
    for text, reading in zip([*PASTES, *TYPED], readings, strict=True):
        python = vars(paste.read(text))
        cards = [card._asdict() for card in python["cards"]]
        assert python | {"cards": cards, "notes": list(python["notes"])} == reading, text


@pytest.mark.parametrize(
    ("typed", "sentence", "line"),
    [
        ("780", "No: none of PyTorch's own wheels", None),
        ("980", "runs on 980 (sm_52)", "pip install torch==2.14.1 --index-url"),
        ("750", "runs on 750 (sm_50)", "pip install torch==2.14.1 --index-url"),
        ("RTX 6000", "", None),
    ],
)
def test_three_digits_are_a_name_before_they_are_an_sm(page, typed, sentence, line):
    ((first, *_), *_) = [page(RUN, [(typed, "linux")])]
    text = " ".join(part[2] for part in first)
    assert sentence in text
    assert line is None or line in text
    assert "sm_780" not in text
