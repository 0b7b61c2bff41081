"""The page's program and the command have the same rules: random questions and names, asked of
both.
"""

import random
from pathlib import Path

from farm import catalog
from farm.catalog import gpus
from farm.plan.compat import official, official_wheels, other_makers
from farm.plan.compat.answer import Question
from farm.plan.recommend import buildable_here, machine_of

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
const own = ([sm, platform, driver]) => answers.own({ sms: [sm], platform, driver, python: null });
const rows = (q) => answers.others(q).map((row) => [row.maker, row.torch, row.install]);
result = {
  best: cases.questions.map(answers.best), others: cases.questions.map(rows),
  find: cases.names.map(answers.find), maker: cases.names.map(answers.maker),
  own: cases.builds.map(own),
};
"""
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


def questions():
    """Random questions, of which most can be asked by a person."""
    draw = random.Random(SEED)
    sms = [int(name[2:]) for name in (*catalog.architectures().architectures, *gpus.gpus().too_old)]
    toolkits, wheels = list(catalog.toolkits()), official_wheels.wheels()
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


def test_python_and_javascript_give_the_same_answers(page, cards_typed):
    cases = {"questions": list(questions()), "names": cards_typed, "builds": BUILDS}
    document = {**cases, "questions": [vars(question) for question in cases["questions"]]}
    javascript = page(RUN, document)
    for question, answer in zip(cases["questions"], javascript["best"], strict=True):
        assert official.best(question).to_json() == answer, question
    for question, rows in zip(cases["questions"], javascript["others"], strict=True):
        makers = [
            [row.maker, row.torch, other_makers.install(row, question)]
            for row in other_makers.others(question)
        ]
        assert makers == rows, question
    found = zip(cases["names"], javascript["find"], javascript["maker"], strict=True)
    for name, pairs, company in found:
        cards = sorted({(card.name, card.sm) for card in gpus.find(name)})
        assert cards == [tuple(pair) for pair in pairs], name
        assert gpus.maker(name) == company, name
    for (sm, place, driver), rows in zip(BUILDS, javascript["own"], strict=True):
        builds = buildable_here(ROOT, machine_of((sm,), place, driver=driver))
        assert [build.words for build in builds] == [row[3] for row in rows], (sm, place, driver)
    runs = [official.best(question).runs for question in cases["questions"]]
    assert 200 < sum(runs) < QUESTIONS - 200  # both answers come
