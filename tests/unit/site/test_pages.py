"""The pages: whole, escaped, within their size; what is there first, then what could be built."""

import gzip
import html
import html.parser
import json
import re
from dataclasses import replace
from urllib.parse import unquote

import jsonschema
import pytest
from packaging.utils import parse_wheel_filename

from farm.cli.main import main
from farm.index.changes import record_event
from farm.plan.build_variables import absent_features
from farm.site.files import Contents, SiteSource, build, site_files
from farm.site.overview import by_project, newest_version
from farm.site.pages import embedded
from farm.site.smoke_reports import Smoke
from farm.site.wheels import Wheel, wheels, with_tests
from tests.plans import plan_of

URL = "https://wheels.example.org/"
EVIL = '</script><script>alert(1)</script><img src=x onerror="alert(1)">&\u2028'


def words(group, filename):
    name, version, _, _ = parse_wheel_filename(filename)
    return (f"{name}=={version}", "--index-url", f"{URL}whl/{group}/simple/")


def source(project=None):
    return SiteSource(project=project, root=URL)


def make(there, project=None, projects=()):
    return site_files(Contents(tuple(projects), there, words), source(project))


@pytest.fixture(scope="module")
def offered(root):
    """The pages of a project with channels, above an index without wheels."""
    return make([], project=root)


class Reader(html.parser.HTMLParser):
    """Collects elements and the text of scripts."""

    def __init__(self):
        super().__init__()
        self.tags, self.scripts, self.attributes = [], [], []
        self.inside = False

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.inside = tag == "script"
        if self.inside:
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.inside = self.inside and tag != "script"

    def handle_data(self, data):
        if self.inside:
            self.scripts[-1] += data


def read(page):
    reader = Reader()
    reader.feed(page.decode())
    return reader


def test_the_page_begins_with_what_is_there(there, root):
    made = make(there, project=root)
    page = made["index.html"].decode()
    assert page.index("Projects</h2>") < page.index("Groups</h2>")
    assert "What could be built</h2>" not in page
    assert re.search(r'<a href="project/torch.html">torch</a>.*2\.0\.1\+cu117\.sm35\.avx', page)
    project = made["project/torch.html"].decode()
    for text in (
        "torch-2.0.1+cu117.sm35.avx-cp311-cp311-manylinux_2_28_x86_64.whl",
        f"pip install torch==2.0.1+cu117.sm35.avx --index-url {URL}whl/sm35-avx/simple/",
        "adopted and not verified",
        "published, not tested",
        "2026-11-21",
        'not verified<td data-label="groups">sm35-avx<td',
    ):
        assert text in project, text
    assert "for ever" not in page + project


def test_withdrawn_wheels_are_shown_and_not_offered(store, there):
    record_event(store, [there[0].filename], "yank", "wrong flags")
    page = make(with_tests(wheels(store), {}))["project/torch.html"].decode()
    assert "yanked: wrong flags" in page
    assert "pip install" not in page
    assert f'href="../whl/files/{there[0].filename}"' not in page


def test_what_could_be_built_is_a_page_by_card_with_what_was_tested_first(offered):
    page = offered["buildable.html"].decode()
    kepler = page[page.index('<h2 id="sm35">sm35: Kepler, Tesla K40') :]
    kepler = kepler[: kepler.index("</section>")]
    assert kepler.index("debian-2.6.0<td ") < kepler.index("never built for it</summary>")
    assert "Tested channels for sm35" in kepler


def test_a_project_without_wheels_has_a_page_that_says_so():
    page = make([], projects=["canary"])
    assert "No wheel of this project" in page["project/canary.html"].decode()


def test_the_target_of_a_link_is_inside_of_what_a_browser_opens_for_it(there):
    """The block of the version was closed, and that of another card open."""
    page = make(there)["project/torch.html"].decode()
    block = page[page.index("<details") : page.index("</details>")]
    assert f'<div id="{there[0].version}"' in block
    assert "<details id=" not in page


def test_newest_is_what_pip_takes(put, store):
    for version in ("1.0", "2.0rc1", "1.5.dev1"):
        put(f"canary-{version}-py3-none-any.whl", "g")
    assert newest_version(wheels(store)) == "1.0"
    record_event(store, ["canary-1.0-py3-none-any.whl"], "yank", "old")
    assert newest_version(wheels(store)) == "2.0rc1"


def test_torch_is_first(put, store):
    for name in ("aa", "torch", "torchvision"):
        put(f"{name}-1.0-py3-none-any.whl", "g")
    assert list(by_project(wheels(store))) == ["torch", "aa", "torchvision"]


@pytest.mark.parametrize(("card", "sm"), [("K40", "35"), ("GTX 1080 Ti", "61"), ("V100", "70")])
def test_the_page_names_the_builds_that_the_command_names(offered, capsys, root, card, sm):
    main(["--project", str(root), "why", "--official", "--gpu", card, "--json"])
    commands = [each["words"] for each in json.loads(capsys.readouterr().out)["own"]]
    data = json.loads(read(offered["index.html"]).scripts[0])
    assert [row[3] for row in data["own"]["linux-x86_64"][sm]][:3] == commands


def test_a_build_and_a_wheel_say_what_the_official_wheel_has_in_addition(
    offered, store, put_verified
):
    data = json.loads(read(offered["index.html"]).scripts[0])
    plan = plan_of("sm35-avx-py311", channel="debian-2.6.0")
    lacking = absent_features(plan.without)
    assert "FBGEMM (needs AVX2)" in lacking
    assert lacking in [without for *_, without in data["own"]["linux-x86_64"]["35"]]
    put_verified(
        "torch-2.6.0+cpu.avx-cp311-cp311-linux_x86_64.whl",
        "cpu-avx",
        {"without": f"{lacking} {EVIL}"},
    )
    made = make(with_tests(wheels(store), {}))
    (row,) = json.loads(read(made["index.html"]).scripts[0])["there"]
    assert lacking in row["without"]
    page = made["project/torch.html"].decode()
    assert f"Without {html.escape(lacking, quote=False)}".replace("'", "&#39;") in page
    assert "<img" not in page


def test_hostile_text_stays_text(there):
    evil = replace(there[0], channel=EVIL, withdrawn=EVIL, tests=(Smoke(EVIL, EVIL, EVIL),))
    plain, made = make(there), make([evil])
    for name in plain:
        if name.endswith(".html"):
            before, after = read(plain[name]), read(made[name])
            assert after.tags.count("script") == before.tags.count("script")
            assert "img" not in after.tags
            assert not [
                attribute for attribute, _ in after.attributes if attribute.startswith("on")
            ]
    assert "alert(1)" in made["project/torch.html"].decode()  # it is shown, as text
    assert json.loads(embedded({"x": EVIL})) == {"x": EVIL}
    assert "<" not in embedded({"x": EVIL})


def test_the_policy_of_a_page_allows_its_own_script_alone(there):
    for name in ("index.html", "project/torch.html"):
        text = make(there)[name].decode()
        policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text).group(1)
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert "http" not in policy
        assert not re.search(r'(?:src|href)="(?:https?:)?//', text)


def many(count):
    """Wheels of 40 projects in 60 groups; digests that do not compress."""
    for number in range(count):
        digest = f"{number * 0x9E3779B97F4A7C15F39CC0605CEDC834 % 2**128:032x}" * 2
        name, group = (
            f"project-{number % 40}",
            f"sm{(35, 50, 61, 70, 75, 86)[number % 6]}-avx{number % 10}",
        )
        file = f"{name.replace('-', '_')}-2.{number // 40}-cp311-cp311-manylinux_2_28_x86_64.whl"
        yield Wheel(file, name, f"2.{number // 40}", (group,), 10**8 + number, digest, "2026-11-21")


def test_the_first_view_of_five_thousand_wheels_is_below_100_kilobytes(root):
    page = make(list(many(5000)), project=root)["index.html"]
    assert len(gzip.compress(page)) < 100_000


def test_only_changed_pages_are_written(there, store, put):
    files, changed = build(store, source())
    assert set(changed) == set(files)
    assert build(store, source())[1] == []
    put("torch-2.0.1+cu117.sm37.avx-cp311-cp311-manylinux_2_28_x86_64.whl", "sm37-avx")
    again = build(store, source())[1]
    assert set(again) == {"index.html", "project/torch.html", "catalog.wheels.json"}


def test_a_wheel_leads_to_its_record(there, store):
    page = make(there)["project/torch.html"]
    (link,) = (
        value for _, value in read(page).attributes if value and value.startswith("../records/")
    )
    assert (
        json.loads(store.get(unquote(link.removeprefix("../"))).data)["sha256"] == there[0].sha256
    )


def test_the_catalogue_is_as_its_published_schema_says(there, store):
    schema = json.loads(make(there)["catalog.schema.json"])
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    catalogue = json.loads(store.get("catalog.json").data)
    validator.validate(catalogue)
    assert catalogue["groups"] == {"sm35-avx": ["torch"]}
    for wrong in ({**catalogue, "schema": 1}, {**catalogue, "groups": {"sm35-avx": {"torch": {}}}}):
        assert not validator.is_valid(wrong)


def test_what_this_index_has_of_a_channel_is_not_called_never_built(there, root):
    """Only the evidence that the farm comes with counted."""
    wheel = replace(
        there[0],
        filename="torch-2.15.0+cu128.sm120.avx2-cp313-cp313-manylinux_2_28_x86_64.whl",
        version="2.15.0+cu128.sm120.avx2",
        groups=("sm120-avx2",),
        channel="main",
        tests=(Smoke("a real CPU (x86_64)", "2026-11-28", "CPU part passed", passed=True),),
    )
    before = section(make([], project=root)["buildable.html"], "sm120")
    assert "in this index" not in before
    after = section(make([wheel], project=root)["buildable.html"], "sm120")
    line = "torch 2.15.0+cu128.sm120.avx2 for sm120-avx2, py313: published, CPU part tested"
    assert f"in this index: {line}" in after
    assert '<th scope="row" class="mono">main<td ' in after[: after.index("never built for it")]


def test_the_evidence_of_the_farm_is_named_as_that(offered):
    kepler = section(offered["buildable.html"], "sm35")
    assert "by the farm&#39;s own evidence: sm35-avx-py311: built and run" in kepler


def test_a_tested_channel_counts_for_the_cards_that_were_tested(offered):
    """debian-2.6.0 was tested for sm35, and was shown as tested for all of its cards."""
    for match in re.finditer(
        r"by the farm&#39;s own evidence: (\w+)-", offered["buildable.html"].decode()
    ):
        before = offered["buildable.html"].decode()[: match.start()]
        assert before.rpartition('<h2 id="')[2].startswith(f'{match[1]}"')


def section(page, gpu):
    text = page.decode()
    start = text.index(f'<h2 id="{gpu}">')
    return text[start : text.index("</section>", start)]


def test_a_build_of_ones_own_says_that_this_index_has_it(there, root):
    plan = plan_of("sm35-avx-py311", channel="debian-2.6.0")
    wheel = replace(
        there[0],
        filename=f"torch-{plan.version}-cp311-cp311-manylinux_2_28_x86_64.whl",
        version=plan.version,
        channel="debian-2.6.0",
    )
    data = json.loads(read(make([wheel], project=root)["index.html"]).scripts[0])
    texts = {row[3]: row[2] for row in data["own"]["linux-x86_64"]["35"]}
    text = texts["--variant sm35-avx-py311 --channel debian-2.6.0"]
    assert text.startswith(
        "in this index: published, not tested; by the farm's own evidence: built"
    )
