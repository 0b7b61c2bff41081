"""Every command that an answer prints is accepted by the farm, and every answer fits a terminal of
80 by 24.
"""

import json
import re
from functools import partial
from pathlib import Path

import pytest

from farm.catalog import gpus
from farm.site.pages import own_builds
from tests.unit.detect.conftest import FOLDER, RecordedMachine

PROJECT = Path(__file__).parents[3]
CARDS = [card.name for card in gpus.cards()[::11]]
CARDS += ["Tesla K40", "Tesla K80", "GH200", "Jetson AGX Orin", "Radeon VII"]
COMMAND = re.compile(r"^ *(?:why: )?.*?\bfarm (submit|plan|why) (--.*)$")
COPIED = ("  pip ", "  conda ", "  farm ", "  spack ", "  next: ")


def accepted(farm, text):
    """How many commands of the farm a text holds, each of which it takes."""
    found = [match for line in text.splitlines() if (match := COMMAND.match(line))]
    for command, words in (match.groups() for match in found):
        ask = "plan" if command == "submit" else command
        code, output = farm(ask, *words.split())
        assert (code == 0 or (ask == "why" and code == 3), output.err) == (True, ""), (
            command,
            words,
        )
    return len(found)


def fits(text):
    lines = text.splitlines()
    assert [line for line in lines if len(line) > 80 and not line.startswith(COPIED)] == []
    return len(lines) <= 24


@pytest.mark.parametrize("platform", ["linux", "windows"])
def test_answers_about_upstreams_wheels(farm, platform):
    printed = 0
    for card in CARDS:
        code, output = farm("why", "--official", "--gpu", card, "--platform", platform)
        assert (code in (0, 2, 3), fits(output.out)) == (True, True), output.out
        printed += accepted(farm, output.out)
    assert printed > 5


def test_answers_about_builds(farm):
    """What is nearest can be built, and so can the builds that are named instead."""
    printed = nearest = 0
    for card in {card.sm: card.name for card in gpus.cards()}.values():
        code, output = farm("why", "--gpu", card)
        example = re.search(r"--variant (\S+)(?=;)", output.err)
        assert (code, output.out) == (2, "")
        if not example:
            continue
        arguments = {"--variant": example[1], "--torch": "2.7.1", "--cuda": "12.3"}
        code, output = farm("why", *sum(arguments.items(), ()))
        assert (code in (0, 3), output.err, fits(output.out)) == (True, "", True), output.out
        if words := re.search(r"nearest that the rules allow: (.*)", output.out):
            kept = [
                word
                for pair in arguments.items()
                if pair[0] not in words[1].split()
                for word in pair
            ]
            assert farm("why", *kept, *words[1].split())[0] == 0, (arguments, words[1])
            nearest += 1
        printed += accepted(farm, output.out)
    assert (printed > 10, nearest > 10) == (True, True)


def test_recommendations_for_machines(farm, monkeypatch):
    printed = 0
    record = json.loads((FOLDER / "gtx1080ti-haswell.json").read_text())
    for card in CARDS:
        record["nvml"] = {"driver": "580.65.06", "devices": [[card, None, 8192]]}
        monkeypatch.setattr("farm.cli.detect.Machine", partial(RecordedMachine, record))
        code, output = farm("detect")
        lines = [
            line
            for line in output.out.splitlines()
            if len(line) > 80 and not line.startswith(COPIED)
        ]
        assert (code, lines) == (0, []), output.out
        printed += accepted(farm, output.out)
    assert (
        printed > 40
    )  # a Jetson in such a machine has no build, nor has a card that driver 580 does not know


def test_builds_on_the_page(farm):
    rows = [
        row for builds in own_builds(PROJECT).values() for rows in builds.values() for row in rows
    ]
    assert len(rows) > 50
    lines = sorted({f"farm submit {row[3]}" for row in rows})[::3]
    assert accepted(farm, "\n".join(lines)) > 10
