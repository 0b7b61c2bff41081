"""The page and the command answer alike: random questions, names and pasted texts, asked of Python
and JavaScript.
"""

import json
import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from farm import catalog
from farm.catalog import gpus
from farm.plan.compat import official
from farm.plan.compat.official import Question
from farm.plan.recommend import buildable_here, machine_of
from farm.site import pages

ROOT = Path(__file__).parents[3]
QUESTIONS = 2000
SEED = 20261126
DRIVERS = (
    "390.157",
    "418.40",
    "450.51",
    "450.80.02",
    "470",
    "470.256.02",
    "472.50",
    "525.60.13",
    "550.54.14",
    "570",
    "580",
)
DRIVERS += ("580.65.06", "590.48.01", "610.43.02", "R")
RUN = """
const [script, facts, cases] = process.argv.slice(1);
const read = (path) => JSON.parse(require("fs").readFileSync(path));
const answers = require(script)(read(facts)), { questions, texts, names, builds } = read(cases);
const own = ([sm, platform, driver]) => answers.own({ sms: [sm], platform, driver, python: null });
const rows = (q) => answers.others(q).map((row) => [row.maker, row.torch, row.install]);
process.stdout.write(JSON.stringify({
  best: questions.map(answers.best), others: questions.map(rows), read: texts.map(answers.read),
  find: names.map(answers.find), maker: names.map(answers.maker), own: builds.map(own),
}));
"""

TABLE = """\
user@thor:~$ nvidia-smi
| NVIDIA-SMI 580.65.06    Driver Version: 580.65.06    CUDA Version: 13.0     |
|   0  {card:<19}Off  | 00000000:03:00.0 Off |                    0 |
|   1  NVIDIA A10          Off  | 00000000:04:00.0 Off |                    0 |
|    0   N/A  N/A      1234      C   /opt/h100/bin/python             123MiB |
"""
TEXTS = [
    TABLE.format(card="Tesla K40c"),
    TABLE.format(card="NVIDIA GeForce ... "),
    "GPU 0: NVIDIA GeForce GTX 780 (UUID: GPU-a2b4c6d8-a2b4)\nGPU 1: Tesla P100",
    (
        "Driver Version                            : 470.256.02\n    Product Name                     "
        "     : Tesla K40m"
    ),
    (
        "03:00.0 VGA compatible controller [0300]: NVIDIA Corporation GK208B [GeForce GT 730] "
        "[10de:1287] (rev a1)"
    ),
    (
        "a2:00.0 3D controller: NVIDIA Corporation GF117M [GeForce 610M/710M/810M/820M / GT "
        "620M/625M/630M/720M] (rev a1)"
    ),
    "driver_version, name\n535.104.05, Tesla T4\n",
    "535.104.05, NVIDIA A100-SXM4-40GB",
    "NVIDIA GeForce RTX 4090\nDriver 32.0.15.6094",
    "Failed to initialize NVML: Driver/library version mismatch",
    "No devices were found",
    'Der Befehl "nvidia-smi" ist entweder falsch geschrieben oder konnte nicht gefunden werden.',
    "bash: nvidia-smi: command not found",
    "user@h100:~/v100$ ls /opt/a100/bin",
    "RTX 4090",
    "Radeon RX 7900 XTX",
    "",
    "\x00|{}<script>",
]
BUILDS = [
    (sm, place, driver)
    for sm, drivers in (
        (35, ("470", "450.51", "535.54")),
        (61, (None, "550.54", "590.44")),
        (75, ("450.80.02", "570")),
    )
    for place in ("linux-x86_64", "windows-x86_64")
    for driver in drivers
]


@pytest.fixture(scope="module")
def node():
    found = shutil.which("node")
    if not found and os.environ.get("FARM_REQUIRE") == "all":
        pytest.fail("node is missing: install the Debian package nodejs")
    if not found:
        pytest.skip("node is missing: install the Debian package nodejs")
    return found


def questions():
    """Random questions, of which most can be asked by a person."""
    draw = random.Random(SEED)
    sms = [int(name[2:]) for name in (*catalog.architectures().architectures, *gpus.gpus().too_old)]
    toolkits, wheels = list(catalog.toolkits()), official.wheels()
    for _ in range(QUESTIONS):
        wheel = draw.choice(wheels)
        cards = draw.sample(
            sms if draw.random() < 0.4 else [*wheel.sm, 86, 121], draw.choice((1, 1, 1, 2))
        )
        yield Question(
            tuple(dict.fromkeys(cards)),
            wheel.platform,
            draw.choice((None, None, *DRIVERS[:-1])),
            draw.choice((None, None, None, "py39", "py311", "py313t", "py315")),
            draw.choice((None, wheel.torch)),
            draw.choice((None, None, wheel.cuda, draw.choice(toolkits))),
            draw.choice((None, None, None, "2.17", "2.28", "2.39")),
            draw.choice((None, None, "avx2", "avx", "sse41")),
        )


def names():
    draw = random.Random(SEED)
    for card in gpus.cards():
        before, after = (
            draw.choice(("", "NVIDIA ", "GPU 0: ")),
            draw.choice(("", " (TM)", " 24GB", " Laptop GPU")),
        )
        yield draw.choice(
            (card.name, f"{before}{card.name}{after}", card.name.lower().replace(" ", ""))
        )
    yield from (
        "",
        "Voodoo 2",
        "GK208B [GeForce GT 730]",
        "gfx1100",
        "MI250X",
        "Gaudi2",
        "Apple M5",
        "constructor",
        "İ",
    )


def test_python_and_javascript_give_the_same_answers(node, tmp_path):
    cases = {
        "questions": list(questions()),
        "texts": TEXTS,
        "names": list(names()),
        "builds": BUILDS,
    }
    document = {**cases, "questions": [vars(question) for question in cases["questions"]]}
    (tmp_path / "facts.json").write_text(json.dumps(pages.data(ROOT, [])))
    (tmp_path / "cases.json").write_text(json.dumps(document))
    script = pages.TEMPLATES / "answers.js"
    command = [
        node,
        "-e",
        RUN,
        str(script),
        str(tmp_path / "facts.json"),
        str(tmp_path / "cases.json"),
    ]
    theirs = json.loads(
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    )
    for question, answer in zip(cases["questions"], theirs["best"], strict=True):
        assert official.best(question).to_json() == answer, question
    for question, found in zip(cases["questions"], theirs["others"], strict=True):
        ours = [
            [row.maker, row.torch, official.install(row, question)]
            for row in official.others(question)
        ]
        assert ours == found, question
    for text, found in zip(TEXTS, theirs["read"], strict=True):
        ours = gpus.read_paste(text)
        assert {
            "cards": list(ours.cards),
            "driver": ours.driver,
            "problem": ours.problem,
        } == found, text
    for name, found, company in zip(cases["names"], theirs["find"], theirs["maker"], strict=True):
        assert sorted({(card.name, card.sm) for card in gpus.find(name)}) == [
            tuple(pair) for pair in found
        ], name
        assert gpus.maker(name) == company, name
    for (sm, place, driver), found in zip(BUILDS, theirs["own"], strict=True):
        ours = [
            build.words for build in buildable_here(ROOT, machine_of((sm,), place, driver=driver))
        ]
        assert ours == [row[3] for row in found], (sm, place, driver)
    runs = [official.best(question).runs for question in cases["questions"]]
    assert 200 < sum(runs) < QUESTIONS - 200  # both answers come


@pytest.mark.parametrize(
    ("text", "cards", "driver"),
    [
        (TEXTS[0], ("Tesla K40c", "NVIDIA A10"), "580.65.06"),
        (TEXTS[2], ("NVIDIA GeForce GTX 780", "Tesla P100"), None),
        (TEXTS[3], ("Tesla K40m",), "470.256.02"),
        (TEXTS[6], ("Tesla T4",), "535.104.05"),
        (TEXTS[7], ("NVIDIA A100-SXM4-40GB",), "535.104.05"),
        (TEXTS[8], ("NVIDIA GeForce RTX 4090",), "560.94"),
        (
            "Name          : NVIDIA GeForce GTX 1080\nDriverVersion : 31.0.15.3623",
            ("NVIDIA GeForce GTX 1080",),
            "536.23",
        ),
        (TEXTS[13], (), None),
        (TEXTS[14], ("RTX 4090",), None),
    ],
)
def test_pasted_text_names_cards_and_never_paths_or_prompts(text, cards, driver):
    assert gpus.read_paste(text)[:2] == (cards, driver)


def test_a_message_says_what_to_do():
    for place in (9, 10, 11, 12):
        found = gpus.read_paste(TEXTS[place])
        assert (found.cards, bool(found.problem)) == ((), True)
