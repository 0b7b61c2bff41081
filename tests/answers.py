"""What tests ask of the answer of any command."""

import re

CANARY = ("--variant", "sm35-avx-py311", "--package", "canary")
HOSTILE = "\x1b]0;owned\x07\x1b[31mred\x1b[0m\x9b2J"


def control(text):
    return re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)


def failed(answer, code):
    """The error text of a command that ended with `code`, after what holds for every failure."""
    assert answer.returncode == code, answer.stderr
    assert "Traceback" not in answer.stderr
    assert re.search(r"^farm: ", answer.stderr, re.MULTILINE)
    assert not control(answer.stderr + answer.stdout)
    return answer.stderr
