"""YAML files into checked models: every error names the file and the line."""

import os
from pathlib import Path
from typing import Annotated, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from farm.base import yamlfile
from farm.base.errors import UsageError
from farm.base.text import nearest
from farm.base.yamlfile import Model, load

CASES = yaml.safe_load(Path(__file__).with_name("yamlfile.yaml").read_text(encoding="utf-8"))


class PathLike(Model):
    kind: Literal["path"]
    folder: str


class GitLike(Model):
    kind: Literal["git"]
    remote: str


class Inner(Model):
    cuda: str
    jobs: int = 1
    share: float = 1.0
    wanted: bool = False


class Document(Model):
    stacks: dict[str, Inner] = {}
    words: Annotated[list[str], Field(min_length=1, max_length=9)] = ["one"]
    sizes: list[Annotated[int, Field(gt=0, lt=9)]] = []
    shares: list[Annotated[float, Field(ge=0, le=9)]] = []
    names: list[Annotated[str, Field(min_length=1, max_length=3, pattern="^[a-z]*$")]] = []
    pair: tuple[int, ...] = ()
    source: Annotated[PathLike | GitLike, Field(discriminator="kind")] | None = None


@pytest.fixture
def file(tmp_path):
    return tmp_path / "some.yaml"


def refusal(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError) as caught:
        load(path, Document)
    return str(caught.value).replace(str(path), "FILE")


def test_a_good_file_is_read(file):
    file.write_text(
        '# a comment\nstacks:\n  a: {cuda: "11.8", jobs: 2, share: 0.5, wanted: true}\nwords: '
        '["1", b*c]\n'
    )
    read = load(file, Document)
    assert read.stacks["a"] == Inner(cuda="11.8", jobs=2, share=0.5, wanted=True)
    assert read.words == ["1", "b*c"]


def test_an_unquoted_version_is_explained_as_it_is_written(file):
    assert refusal(file, "stacks:\n  a:\n    cuda: 11.10\n") == (
        'FILE:3: stacks.a.cuda: 11.10 is a number here; write it in quotes: "11.10"'
    )
    assert refusal(file, "words:\n  - fine\n  - 11.8\n") == (
        'FILE:3: words.1: 11.8 is a number here; write it in quotes: "11.8"'
    )


def test_an_unquoted_version_as_a_key_is_explained(file):
    assert refusal(file, 'stacks:\n  11.8: {cuda: "11.8"}\n') == (
        'FILE:2: stacks.11.8: 11.8 is a number here; write it in quotes: "11.8"'
    )


def test_a_word_that_is_a_truth_value_is_explained(file):
    assert refusal(file, "\nwords: [no]\n") == (
        'FILE:2: words.0: no is a truth value here; write it in quotes: "no"'
    )


@pytest.mark.parametrize(
    ("content", "line", "part"),
    CASES["the_error_names_the_line_and_what_is_wrong"]
    + [
        (b"words: []\n# \xff\n", 2, "not UTF-8"),
        (b"words: []\n\n# \x01\n", 3, "not valid YAML: control characters are not allowed"),
        ("words: " + "[" * 200000, 1, "nested deeper than 50 levels"),
    ],
)
def test_the_error_names_the_line_and_what_is_wrong(file, content, line, part):
    text = refusal(file, content)
    assert text.startswith(f"FILE:{line}: ")
    assert part in text


def test_a_required_key_that_is_misspelt_is_one_mistake(file):
    one = "FILE:3: unknown key 'stacks.a.cdua'; did you mean 'cuda'?"
    assert refusal(file, "stacks:\n  a:\n    cdua: '1'\n") == one
    assert refusal(file, "stacks:\n  a:\n    cdua: '1'\n    job: 1\n").splitlines() == [
        one,
        "FILE:4: unknown key 'stacks.a.job'; did you mean 'jobs'?",
    ]
    assert refusal(file, "stacks:\n  a:\n    zzz: '1'\n").splitlines() == [
        "FILE:2: stacks.a.cuda: this key is missing",
        "FILE:3: unknown key 'stacks.a.zzz'; known here: cuda, jobs, share, wanted",
    ]


def test_all_errors_of_a_file_are_reported_at_once(file):
    text = refusal(file, "words: [1]\nstacks:\n  a: {cuda: 2, jbs: 3}\n")
    assert [row.split(": ")[0] for row in text.splitlines()] == ["FILE:1", "FILE:3", "FILE:3"]


@pytest.mark.parametrize("content", ["", "# nothing\n", "---\n"])
def test_an_empty_file_is_refused(file, content):
    assert refusal(file, content) == "FILE: empty"


def test_an_absent_file_and_a_folder_are_refused(file, tmp_path):
    with pytest.raises(UsageError, match=r"some\.yaml: cannot be read: No such file"):
        load(file, Document)
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        load(tmp_path, Document)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no such files")
def test_a_pipe_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(
        UsageError, match=r"pipe\.yaml: cannot be read: a pipe, a socket or a device, not a file"
    ):
        load(tmp_path / "pipe.yaml", Document)


def test_a_file_that_is_too_large_is_refused(file):
    assert refusal(file, b"#" * (yamlfile.MAX_BYTES + 1)) == "FILE: larger than 4 MiB"


@given(
    content=st.binary(max_size=60)
    | st.text(alphabet="ab: -[]{}&*!?|>'\"\n\t#%@`,0123._<", max_size=40).map(str.encode)
)
def test_any_content_gives_a_usage_error_or_a_model(content, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(content)
    try:
        load(path, Document)
    except UsageError as error:
        assert str(error).startswith(str(path))  # noqa: PT017 - either outcome is right


def test_nearest_is_best_first_and_empty_when_nothing_is_near():
    assert nearest("avx3", ["sse41", "avx512", "avx2", "avx"])[0] in {"avx", "avx2"}
    assert nearest("openblass", ("mkl", "openblas")) == ["openblas"]
    assert nearest("zzz", ("mkl", "openblas")) == []


class Renamed(Model):
    old_keys = {"worker": "runner"}
    runner: str


class Nested(Model):
    machines: dict[str, Renamed]


def test_a_key_of_an_earlier_release_is_read_and_the_new_line_is_given(file, capsys):
    file.write_text("machines:\n  one:\n    worker: m1  # of the lab\n  two: {runner: m2}\n")
    loaded = load(file, Nested)
    assert loaded.machines["one"].runner == "m1"
    assert capsys.readouterr().err == (
        f"warning: {file}:3: key 'worker' is now 'runner'; write: runner: m1  # of the lab\n"
    )


def test_an_old_key_together_with_the_new_one_is_a_duplicate(file):
    file.write_text("machines:\n  one:\n    worker: m1\n    runner: m2\n")
    with pytest.raises(UsageError, match="key 'runner' appears twice"):
        load(file, Nested)
