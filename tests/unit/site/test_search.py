"""The search of the first page understands the words of an index: projects, versions, groups."""

import pytest

from farm.site.overview import Overview
from farm.site.wheels import Wheel
from tests.unit.site.conftest import page_of
from tests.unit.site.test_pages import words

WHEELS = [
    ("torch", "2.7.0+cu118.sm37.avx", "sm37-avx"),
    ("torch", "2.6.0+cu118.sm35.avx", "sm35-avx"),
    ("torch", "2.0.1+cu118.sm35.avx", "sm35-avx"),
    ("canary", "2.0", "staging"),
    ("zope-inter-face", "5.1", "staging"),
    ("ext0-sm35-avx", "1.0", "sm35-avx"),
    ("cpu-tools", "1.0", "staging"),
]


@pytest.fixture(scope="module")
def search(node, tmp_path_factory):
    """The text of the answer to each typed text, and the projects that stay in the table."""
    wheels = []
    for project, version, group in WHEELS:
        tags = "cp311-cp311-manylinux_2_28_x86_64"
        name = f"{project.replace('-', '_')}-{version}-{tags}.whl"
        wheels.append(Wheel(name, project, version, (group,), 1, "ab" * 32, "2026-11-21"))
    page = page_of(node, tmp_path_factory.mktemp("search"), Overview.of(wheels, words))
    script = """
        const choices = { platform: "linux", python: null, projects: answersData().projects.map((row) => row.name) };
        result = cases.map((text) => answers.reply(text, choices));
        function answersData() { return JSON.parse(document.getElementById("data").textContent); }
    """

    def ask(typed):
        (answer,) = page(script, [typed])
        return answer["blocks"], answer["projects"]

    return ask


def texts(blocks):
    return [block.get("text", "") for block in blocks]


@pytest.mark.parametrize("typed", ["pytorch", "torch", "Torch", " torch "])
def test_a_project_gives_the_line_of_its_newest_wheel(search, typed):
    blocks, projects = search(typed)
    assert texts(blocks)[1].startswith("pip install torch==")
    assert projects == ["torch"]


@pytest.mark.parametrize(
    "typed", ["torch 2.6.0", "torch==2.6.0", "pytorch==2.6.0", "torch == 2.6.0", "2.6.0"]
)
def test_a_version_gives_its_line(search, typed):
    blocks, _ = search(typed)
    assert texts(blocks)[1].startswith("pip install torch==2.6.0+cu118.sm35.avx ")


def test_an_older_version_leads_to_its_release_on_the_page_of_the_project(search):
    blocks, _ = search("torch==2.0.1")
    (links,) = [block for block in blocks if block["kind"] == "projects"]
    assert (links["names"], links["place"]) == (["torch"], "release-2.0.1")


def test_a_version_that_is_not_there_is_said(search):
    blocks, _ = search("torch==1.0")
    assert "No wheel of torch 1.0 is here." in texts(blocks)


def test_spellings_of_a_name_are_one(search):
    """PEP 503: capitals, and runs of hyphens, dots and underscores, are alike."""
    blocks, projects = search("Zope.inter_face")
    assert projects == ["zope-inter-face"]
    assert texts(blocks)[1].startswith("pip install zope-inter-face==5.1")


@pytest.mark.parametrize("typed", ["staging", "sm35-avx", "SM35-AVX"])
def test_a_group_gives_the_line_of_its_first_wheel(search, typed):
    blocks, _ = search(typed)
    assert f"from the group {typed.lower()}" in texts(blocks)[0]
    assert texts(blocks)[1].startswith("pip install ")


@pytest.mark.parametrize(
    ("typed", "says"),
    [("sm35", "(sm_35)"), ("35", "(sm_35)"), ("cpu", "download.pytorch.org/whl/cpu")],
)
def test_a_project_whose_name_holds_the_text_does_not_hide_the_card(search, typed, says):
    blocks, projects = search(typed)
    assert any(says in text for text in texts(blocks)), texts(blocks)
    assert projects is None
