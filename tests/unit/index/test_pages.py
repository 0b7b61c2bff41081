"""Pages as pure functions: what is on them, escaped, and that what we write we can read."""

import json
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.base.errors import InfrastructureError, UsageError
from farm.index import layout, pages
from farm.index.records import Record, State, Wheel

A = "torch-2.0.1+cu118.sm35.avx-cp311-cp311-manylinux_2_31_x86_64.whl"


def wheel(filename=A, sha256="a" * 64, *, state=State(), **changes):  # noqa: B008
    project, version = layout.parse_wheel_name(filename)
    values = {
        "filename": filename,
        "project": project,
        "version": str(version),
        "sha256": sha256,
        "size": 7,
        "upload_time": "2026-11-21T01:02:03.000000Z",
        "requires_python": ">=3.7",
        "metadata_sha256": "b" * 64,
        "groups": ("g",),
        "provenance": {},
    }
    return Wheel(Record(**(values | changes)), state)


def page_of(*wheels, page=None):
    for each in wheels:
        page = pages.updated(page, each.record.project, [each]).page
    return page


class Anchors(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.anchors, self.metas, self.tags = [], {}, []
        self.feed(html.decode())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "a":
            self.anchors.append(dict(attrs))
        if tag == "meta" and "name" in dict(attrs):
            self.metas[dict(attrs)["name"]] = dict(attrs)["content"]


def test_the_json_page_says_all_that_pep_691_and_700_ask_for():
    page = page_of(wheel())
    assert json.loads(page.render()) == {
        "meta": {"api-version": "1.1", "_generation": 1},
        "name": "torch",
        "versions": ["2.0.1+cu118.sm35.avx"],
        "files": [
            {
                "filename": A,
                "url": "../../../files/torch-2.0.1%2Bcu118.sm35.avx-cp311-cp311-manylinux_2_31_x86_64.whl",
                "hashes": {"sha256": "a" * 64},
                "size": 7,
                "upload-time": "2026-11-21T01:02:03.000000Z",
                "requires-python": ">=3.7",
                "core-metadata": {"sha256": "b" * 64},
                "yanked": False,
                "_record": wheel().record.digest,
            }
        ],
    }
    assert pages.parse_page(page.render(), "key") == page


def test_a_page_grows_by_generations_in_the_order_of_versions():
    names = [f"torch-{version}-py3-none-any.whl" for version in ("2.10", "2.9", "2.9+cu118", "1!0")]
    page = page_of(*map(wheel, names))
    assert page.generation == 4
    assert page.versions == ("2.9", "2.9+cu118", "2.10", "1!0")
    assert [file.filename for file in page.files] == [names[1], names[2], names[0], names[3]]


def test_the_same_wheel_again_is_the_same_page_and_another_spelling_is_refused():
    page = page_of(wheel())
    assert pages.updated(page, "torch", [wheel()]).page is page
    again = pages.updated(page, "torch", [wheel(A.replace("torch", "Torch"))])
    assert again.page is page
    assert "is to installers the same wheel as" in next(iter(again.refused.values()))


def three():
    """A page of generation 3 with `torch` 1, 2 and 3."""
    wheels = [wheel(f"torch-{number}-py3-none-any.whl") for number in (1, 2, 3)]
    return page_of(*wheels), wheels


def test_only_the_name_of_a_removed_wheel_stays_taken():
    page, (one, two, three_) = three()
    page = page_of(two._replace(state=State(1, removed="x")), page=page)
    assert (page.generation, [file.filename for file in page.files]) == (4, [one.name, three_.name])
    assert [file.filename for file in page.removed] == [two.name]
    assert pages.updated(page, "torch", [two._replace(state=State(1, removed="x"))]).page is page
    assert "its name stays taken" in pages.updated(page, "torch", [two]).refused[two.name]
    for other in ("torch-1.5-py3-none-any.whl", "torch-2.5-py3-none-any.whl"):
        assert other in page_of(wheel(other), page=page).entries


@given(st.permutations([1, 2, 3]))
def test_whatever_the_order_in_which_writers_come_the_newest_event_is_shown(order):
    states = {1: State(1, "slow"), 2: State(2), 3: State(3, "broken")}
    page = page_of(wheel())
    for number in order:
        page = page_of(wheel(state=states[number]), page=page)
    [file] = page.files
    assert (file.yanked, file.event) == ("broken", 3)


def test_the_html_page_says_what_pep_503_629_and_714_ask_for():
    page = page_of(wheel())
    html = Anchors(pages.project_html(page))
    href = "../../../files/torch-2.0.1%2Bcu118.sm35.avx-cp311-cp311-manylinux_2_31_x86_64.whl"
    assert html.anchors == [
        {
            "href": f"{href}#sha256={'a' * 64}",
            "data-requires-python": ">=3.7",
            "data-core-metadata": f"sha256={'b' * 64}",
        }
    ]
    assert html.metas == {"pypi:repository-version": "1.1", "farm:generation": "1"}
    assert b'data-requires-python="&gt;=3.7"' in pages.project_html(page)
    assert pages.project_html(page).startswith(b"<!DOCTYPE html>\n")


@pytest.mark.parametrize(
    ("yanked", "shown"), [(True, ""), ("broken <b>", "broken <b>"), (False, None)]
)
def test_yanked_files_carry_their_reason(yanked, shown):
    page = page_of(wheel(state=State(1, yanked)))
    assert Anchors(pages.project_html(page)).anchors[0].get("data-yanked") == shown
    assert json.loads(page.render())["files"][0]["yanked"] == yanked


@given(st.text(max_size=40), st.text(max_size=40))
def test_nothing_breaks_out_of_an_attribute(requires_python, reason):
    page = page_of(wheel(requires_python=requires_python, state=State(1, reason)))
    plain = Anchors(pages.project_html(page_of(wheel())))
    html = pages.project_html(page)
    read = Anchors(html)
    assert read.tags == plain.tags
    assert set(read.anchors[0]) == set(plain.anchors[0]) | {"data-yanked"}
    assert pages.generation_of(html, "key") == 1


def test_the_root_page_lists_projects_and_is_read_back():
    html = pages.list_html("sm35-avx", {"torch", "canary"})
    assert [anchor["href"] for anchor in Anchors(html).anchors] == ["canary/", "torch/"]
    assert pages.parse_list(html, "key") == {"canary", "torch"}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"<html><body></body></html>",
        b"<body>\n<h1>x</h1>\n<p>hello</p>\n</body>",
        b'<body>\n<h1>x</h1>\n<a href="x">no heading before</a>\n</body>',
        b"</body>\n<body>\n<h1>",
        b"<body>\n</body>",
    ],
)
def test_foreign_content_is_never_read_as_an_empty_page(data):
    readers = [pages.parse_page, pages.generation_of, pages.parse_list]
    for read in readers:
        with pytest.raises(InfrastructureError, match="not of this farm"):
            read(data, "key")


def test_unknown_keys_of_a_page_are_refused_since_writing_would_lose_them():
    document = json.loads(page_of(wheel()).render())
    document["files"][0]["new-key"] = 1
    with pytest.raises(InfrastructureError, match="this key is unknown"):
        pages.parse_page(json.dumps(document).encode(), "key")


@pytest.mark.parametrize("group", ["sm35-avx", "kepler-sse41", "torch-2.0.1", "0"])
def test_group_names_follow_from_variants(group):
    assert layout.check_group(group) == group


@pytest.mark.parametrize("group", ["", "SM35", "../x", ".x", "a/b", "a b", "a\n", "ä", "x" * 65])
def test_invalid_group_names_are_refused(group):
    with pytest.raises(UsageError, match="not a group"):
        layout.check_group(group)


@pytest.mark.parametrize(
    "filename",
    [
        "",
        "torch",
        "torch-2.0.1.tar.gz",
        "torch-2.0.1-py3-none.whl",
        "torch-nonsense-py3-none-any.whl",
        "../torch-2.0.1-py3-none-any.whl",
        "torch-2.0.1-py3-none-any.whl\n",
        "törch-2.0.1-py3-none-any.whl",
        'to"rch-2.0.1-py3-none-any.whl',
        f"torch-2.0.1-py3-none-{'x' * 240}.whl",
    ],
)
def test_bad_wheel_names(filename):
    with pytest.raises(ValueError, match=r"."):
        layout.parse_wheel_name(filename)


@given(st.text(alphabet="torch-2.0+!_ py3noneanywhl/<>\"'", max_size=40))
def test_wheel_names_never_crash_the_parser(text):
    try:
        project, version = layout.parse_wheel_name(f"{text}.whl")
    except ValueError:
        return
    assert f"{text}.whl".count("-") in {4, 5}
    assert project == project.lower()
    assert str(version)
