"""Pages as pure functions: what is on them, escaped, and that what we write we can read."""

import json
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from farm.base.errors import InfrastructureError, PublishRefusedError, UsageError
from farm.index import html as html_of
from farm.index import naming, pages
from farm.index.pages import File, Hashes

A = "torch-2.0.1+cu118.sm35.avx-cp311-cp311-manylinux_2_31_x86_64.whl"


def entry(filename=A, sha256="a" * 64, **changes):
    values = {
        "filename": filename,
        "url": pages.page_url(filename),
        "hashes": Hashes(sha256=sha256),
        "size": 7,
        "upload_time": "2026-11-21T01:02:03.000000Z",
        "requires_python": ">=3.7",
        "core_metadata": Hashes(sha256="b" * 64),
    }
    return File(**(values | changes))


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
    page = pages.with_files(None, "torch", entry())
    assert json.loads(page.render()) == {
        "meta": {"api-version": "1.4", "_generation": 1},
        "name": "torch",
        "project-status": {"status": "active"},
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
                "_generation": 1,
            }
        ],
    }
    assert pages.parse_page(page.render(), "key") == page


def test_a_page_grows_by_generations_in_the_order_of_versions():
    names = [f"torch-{version}-py3-none-any.whl" for version in ("2.10", "2.9", "2.9+cu118", "1!0")]
    page = None
    for name in names:
        page = pages.with_files(page, "torch", entry(name))
    assert page.generation == 4
    assert page.versions == ("2.9", "2.9+cu118", "2.10", "1!0")
    assert [file.filename for file in page.files] == [names[1], names[2], names[0], names[3]]


def test_the_same_file_again_is_the_same_page_and_other_bytes_are_refused():
    page = pages.with_files(None, "torch", entry())
    assert pages.with_files(page, "torch", entry()) is page
    with pytest.raises(PublishRefusedError, match="other bytes"):
        pages.with_files(page, "torch", entry(sha256="c" * 64))


def three():
    """A page of generation 3 with `torch` 1, 2 and 3, of two channels."""
    names = [f"torch-{number}-py3-none-any.whl" for number in (1, 2, 3)]
    page = None
    for name, channel in zip(names, ("old", "old", "new"), strict=True):
        page = pages.with_files(page, "torch", entry(name, channel=channel))
    return page, names


def test_only_the_name_of_a_removed_wheel_stays_taken():
    page, (one, two, three_) = three()
    page = pages.without(page, {two: page.entries[two]})
    assert (page.generation, [file.filename for file in page.files]) == (4, [one, three_])
    assert [(file.filename, file.generation, file.channel) for file in page.removed] == [(two, 4, "old")]
    assert pages.without(page, {two: page.removed[0]}) == page
    with pytest.raises(PublishRefusedError, match="its name stays taken"):
        pages.with_files(page, "torch", entry(two))
    for other in ("torch-1.5-py3-none-any.whl", "torch-2.5-py3-none-any.whl"):
        assert other in pages.with_files(page, "torch", entry(other)).entries


def test_the_channels_of_a_page_are_those_of_all_wheels_that_it_ever_had():
    page, (_, _, last) = three()
    assert page.channels == {"old", "new"}
    page = pages.without(page, {last: page.entries[last]})
    assert page.channels == {"old", "new"}
    assert (page.generation_in("old"), page.generation_in("new"), page.generation_in(None)) == (2, 4, 4)
    assert page.generation_in("none") == 4


def test_changed_entries_leave_the_project_as_it_is():
    page, (one, two, _) = three()
    assert pages.with_changes(page, {}) == page
    yanked = pages.with_changes(page, {one: page.entries[one].model_copy(update={"yanked": "bad"})}, event=9)
    assert (yanked.generation, yanked.meta.event, yanked.project_status.status) == (4, None, "active")
    assert [file.generation for file in yanked.files] == [4, 2, 3]
    status = pages.Status(status="quarantined", reason="looked into")
    held = pages.with_changes(yanked, {}, status=status, event=9, alternate_locations=("https://example.org/torch/",))
    assert (held.files, held.versions, held.meta.event, held.generation) == ((), (), 9, 5)
    assert [(file.url, file.generation) for file in held.withheld] == [(None, 5)] * 3
    assert held.alternate_locations == ("https://example.org/torch/",)
    back = pages.with_changes(held, {}, status=pages.Status(status="active"), event=10)
    assert {file.filename: file.url for file in back.files}[two] == pages.page_url(two)
    assert back.withheld is None


def test_a_link_is_made_where_there_is_none_and_kept_where_there_is_one():
    page = pages.with_files(None, "torch", entry(url=None))
    assert page.files[0].url == pages.page_url(A)
    elsewhere = "https://example.org/torch.whl"
    assert pages.with_files(None, "torch", entry(url=elsewhere)).files[0].url == elsewhere


def test_the_html_page_says_what_pep_503_629_and_714_ask_for():
    page = pages.with_files(None, "torch", entry())
    html = Anchors(html_of.project_html(page))
    href = "../../../files/torch-2.0.1%2Bcu118.sm35.avx-cp311-cp311-manylinux_2_31_x86_64.whl"
    assert html.anchors == [
        {
            "href": f"{href}#sha256={'a' * 64}",
            "data-requires-python": ">=3.7",
            "data-core-metadata": f"sha256={'b' * 64}",
        }
    ]
    assert html.metas == {"pypi:repository-version": "1.4", "farm:generation": "1"}
    assert b'data-requires-python="&gt;=3.7"' in html_of.project_html(page)
    assert html_of.project_html(page).startswith(b"<!DOCTYPE html>\n")


@pytest.mark.parametrize(("yanked", "shown"), [(True, ""), ("broken <b>", "broken <b>"), (False, None)])
def test_yanked_files_say_so(yanked, shown):
    page = pages.with_files(None, "torch", entry(yanked=yanked))
    assert Anchors(html_of.project_html(page)).anchors[0].get("data-yanked") == shown
    assert json.loads(page.render())["files"][0]["yanked"] == yanked


@given(st.text(max_size=40), st.text(max_size=40))
def test_nothing_breaks_out_of_an_attribute(requires_python, reason):
    page = pages.with_files(None, "torch", entry(requires_python=requires_python, yanked=reason))
    plain = Anchors(html_of.project_html(pages.with_files(None, "torch", entry())))
    html = html_of.project_html(page)
    read = Anchors(html)
    assert read.tags == plain.tags
    assert set(read.anchors[0]) == set(plain.anchors[0]) | {"data-yanked"}
    links = html_of.links_html("g", {"torch": html_of.links_section(page)})
    assert html_of.parse_links(links, "key") == {"torch": html_of.links_section(page)}
    assert html_of.generation_of(html, "key") == 1


def test_links_hold_all_projects_and_are_read_back():
    sections = {
        name: html_of.links_section(pages.with_files(None, name, entry(f"{name}-1-py3-none-any.whl")))
        for name in ("torch", "canary")
    }
    html = html_of.links_html("sm35-avx", sections)
    assert html_of.parse_links(html, "key") == sections
    assert [anchor["href"].split("#")[0] for anchor in Anchors(html).anchors] == [
        "../files/canary-1-py3-none-any.whl",
        "../files/torch-1-py3-none-any.whl",
    ]


def test_the_root_page_lists_projects_and_is_read_back():
    html = html_of.root_html("sm35-avx", {"torch", "canary"})
    assert [anchor["href"] for anchor in Anchors(html).anchors] == ["canary/", "torch/"]
    assert html_of.parse_root(html, "key") == {"canary", "torch"}


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
def test_what_is_not_ours_is_never_taken_for_an_empty_page(data):
    readers = [pages.parse_page, html_of.generation_of, html_of.parse_links, html_of.parse_root]
    for read in readers:
        with pytest.raises(InfrastructureError, match="not a page of this farm"):
            read(data, "key")


def test_unknown_keys_of_a_page_are_refused_since_writing_would_lose_them():
    document = json.loads(pages.with_files(None, "torch", entry()).render())
    document["files"][0]["new-key"] = 1
    with pytest.raises(InfrastructureError, match="Extra inputs"):
        pages.parse_page(json.dumps(document).encode(), "key")


@pytest.mark.parametrize("group", ["sm35-avx", "kepler-sse41", "torch-2.0.1", "0"])
def test_groups(group):
    assert naming.check_group(group) == group


@pytest.mark.parametrize("group", ["", "files", "SM35", "../x", ".x", "a/b", "a b", "a\n", "ä", "x" * 65])
def test_bad_groups(group):
    with pytest.raises(UsageError, match="not a group"):
        naming.check_group(group)


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
        naming.parse_wheel_name(filename)


@given(st.text(alphabet="torch-2.0+!_ py3noneanywhl/<>\"'", max_size=40))
def test_wheel_names_never_crash_the_parser(text):
    try:
        project, version = naming.parse_wheel_name(f"{text}.whl")
    except ValueError:
        return
    assert f"{text}.whl".count("-") in {4, 5}
    assert project == project.lower()
    assert str(version)


@pytest.mark.parametrize(
    ("filename", "build", "label"),
    [
        ("canary-1.0+cu118-py3-none-any.whl", (), None),
        ("canary-1.0-1-py3-none-any.whl", (1, ""), None),
        ("canary-1.0-py3-none-any-sm61_v3.whl", (), "sm61_v3"),
        ("canary-1.0-2_1-cp311-cp311-linux_x86_64-cpu_v2.whl", (2, "_1"), "cpu_v2"),
    ],
)
def test_labels_and_builds_in_wheel_names(filename, build, label):
    assert naming.wheel_identity(filename)[:3] == ("canary", Version(filename.split("-")[1]), build)
    assert naming.wheel_identity(filename)[4] == label


@pytest.mark.parametrize(
    "more",
    [{"source": "canary-1.0-py3-none-any.whl"}, {"properties": {}}, {"filename": "canary-1.0-py3-none-any-v3.whl"}],
)
def test_a_label_comes_with_its_source_and_properties(more):
    with pytest.raises(ValueError, match="without the others"):
        File(**{"filename": "canary-1.0-py3-none-any.whl", "hashes": Hashes(sha256="0" * 64), **more})
