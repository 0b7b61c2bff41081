"""A wrong ci/matrix.yaml: the error names the file, the line and the likely intended key or
word.
"""

from pathlib import Path

import pytest
import yaml

from farm.base.errors import UsageError
from farm.plan.matrix import load_matrix

CASES = yaml.safe_load(Path(__file__).with_name("bad_input.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("old", "new", "line", "text"), CASES["wrong_channel"])
def test_invalid_channels_are_refused_with_their_line(
    read, channels, tmp_path, old, new, line, text
):
    assert channels.count(old) == 1
    with pytest.raises(UsageError) as caught:
        read(channels.replace(old, new))
    assert f"{tmp_path}/ci/matrix.yaml:{line}: {text}" in str(caught.value)


@pytest.mark.parametrize(("rules", "line", "text"), CASES["wrong_rule"])
def test_invalid_rules_are_refused_with_their_line(read, channels, tmp_path, rules, line, text):
    with pytest.raises(UsageError) as caught:
        read(f"{channels}    {rules}\n")
    assert f"{tmp_path}/ci/matrix.yaml:{line}: {text}" in str(caught.value)


def test_cycle_over_several_channels(read, tmp_path):
    text = "channels:\n" + "".join(
        f"  {name}:\n    summary: {name}\n    extends: {parent}\n"
        for name, parent in ("ab", "bc", "ca")
    )
    with pytest.raises(UsageError) as caught:
        read(text)
    expected = (
        f"{tmp_path}/ci/matrix.yaml:10: channels.c.extends: a cycle of inheritance: a -> b -> "
        "c -> a"
    )
    assert str(caught.value) == expected


def test_fault_of_an_inherited_rule_is_shown_where_it_is_written(read, channels, tmp_path):
    heir = "  two:\n    extends: one\n    summary: without sm90\n    gpus: [cpu, sm80]\n"
    with pytest.raises(UsageError) as caught:
        read(f"{channels}    exclude:\n      - {{gpus: [sm90]}}\n{heir}")
    assert str(caught.value).startswith(
        f"{tmp_path}/ci/matrix.yaml:14: channels.one.exclude.0.gpus.0, inherited by two: the "
        "channel has no 'sm90'"
    )


def test_a_project_without_the_file_has_the_channels_that_the_farm_ships(shipped, tmp_path):
    assert list(load_matrix(tmp_path).channels) == list(shipped.channels)


def test_an_empty_matrix_is_refused(read):
    with pytest.raises(UsageError, match=r"ci/matrix\.yaml: empty"):
        read("")
    with pytest.raises(
        UsageError, match=r"ci/matrix\.yaml:1: channels: must have at least one entry"
    ):
        read("channels: {}\n")


def test_a_changed_file_is_read_again(read, channels):
    assert len(read(channels).channel("one").builds) == 4 + 16
    assert len(read(channels.replace(", py312", "")).channel("one").builds) == 2 + 8
