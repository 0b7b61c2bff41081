"""The pages: whole, escaped, within their size, and each line what `farm` itself says."""

import gzip
import html.parser
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import product
from urllib.parse import unquote

import jsonschema
import pytest

from farm.base.errors import InfrastructureError
from farm.cli.main import main
from farm.cli.site import _to_folder
from farm.run.journal import Phase
from farm.site import build
from farm.site.charts import badge, bar, duration
from farm.site.feed import NAMESPACE, feed
from farm.site.pages import TEMPLATES, embedded
from farm.site.payload import payload
from farm.site.state import STATES, Known, RunView, Step, Wheel
from farm.site.tested import Smoke
from tests.faults.disk import full_at

URL = "https://wheels.example.org/"
EVIL = '</script><script>alert(1)</script><img src=x onerror="alert(1)">&\u2028'


def source(group):
    return ("--index-url", f"{URL}whl/{group}/simple/")


def links(group):
    return ("--no-index", "--find-links", f"{URL}whl/{group}/links.html")


def make(offered, known):
    return build.files(offered, known, source=source, links=links, root=URL)


class Reader(html.parser.HTMLParser):
    """Collects elements and the text of the data script."""

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


@pytest.fixture(scope="module")
def evil_run():
    steps = (Step(EVIL, 1.0, EVIL),)
    return RunView(EVIL, "2026", Phase.FAILED, "k", EVIL, EVIL, EVIL, steps, EVIL, (Smoke(EVIL, EVIL, EVIL),))


@pytest.fixture(scope="module")
def selector(offered):
    """What the page of an index without wheels knows."""
    return json.loads(read(make(offered, Known.of([], []))["index.html"]).scripts[0])


def place_of(selector, platform, card):
    """Where selector.js looks as long as no CPU is chosen."""
    return f"{platform}-{'aarch64' if card in selector['arm'] else 'x86_64'}"


ARM = ("GH200", "GB200", "GB300", "GB10", "DGX Spark", "Jetson Thor", "Jetson AGX Orin", "Jetson Nano")


@pytest.mark.parametrize(
    ("platform", "card"),
    [
        *product(["linux", "windows"], ["GTX 1080 Ti", "V100", "RTX 5090", "Tesla K40c", "GTX 480", "H100", "B200"]),
        *product(["linux"], ARM),
    ],
)
def test_the_selector_says_of_pytorchs_own_wheels_what_farm_why_says(selector, capsys, card, platform):
    main(["why", "--official", "--gpu", card, "--platform", platform, "--json"])
    said = json.loads(capsys.readouterr().out)
    newest = said["newest"]
    expected = [newest["torch"], newest["cuda"], newest["drivers"], newest["pip"]] if newest["torch"] else None
    assert selector["official"][place_of(selector, platform, card)][said["sms"][0]] == expected


@pytest.mark.parametrize("card", [*ARM, "sm121", "sm87"])
def test_the_selector_looks_for_cards_beside_arm_alone_under_arm(selector, card):
    assert place_of(selector, "linux", card) == "linux-aarch64"
    # PyTorch publishes nothing there, and `farm why --official` says the same.
    assert place_of(selector, "windows", card) not in selector["official"]


def test_the_selector_holds_every_build_and_the_published_wheel(known, offered):
    page = make(offered, known)["index.html"]
    data = json.loads(read(page).scripts[0])
    assert len(data["builds"]) == len([offer for offer in offered if not offer.blocked])
    ((key, (filename, _, digest, day, _version)),) = data["wheels"].items()
    assert key == "torch|2.0.1+cu117.sm35.avx|py311|linux"
    assert filename.endswith(".whl")
    assert re.fullmatch("[0-9a-f]{64}", digest)
    assert day == "2026-11-21"
    assert data["pip"] == ["--index-url", f"{URL}whl/variant-group/simple/"]
    named = {(name, sm) for name, sm in data["cards"]}
    assert {("Tesla K40c", "sm35"), ("GeForce GTX 1080 Ti", "sm61")} <= named


def test_without_javascript_there_is_a_table_of_the_wheels(offered, known):
    text = make(offered, known)["index.html"].decode()
    table = text[text.index("<noscript>") : text.index("</noscript>")]
    assert "torch==2.0.1+cu117.sm35.avx" in table
    assert "sm35-avx-py311" in table


def test_hostile_text_stays_text(offered, known, evil_run):
    made = make(offered, Known.of(known.wheels, [evil_run]))
    plain_pages = make(offered, known)
    for name in ("index.html", "farm.html"):
        before, after = read(plain_pages[name]), read(made[name])
        assert after.tags.count("script") == before.tags.count("script")
        assert "img" not in after.tags
        assert not [attribute for attribute, _ in after.attributes if attribute.startswith("on")]
    assert "alert(1)" in made["farm.html"].decode()  # it is shown, as text
    parsed = json.loads(embedded({"x": EVIL}))
    assert parsed == {"x": EVIL}
    assert "<" not in embedded({"x": EVIL})


def test_the_policy_of_a_page_allows_its_own_script_alone(offered, known):
    for name in ("index.html", "farm.html"):
        text = make(offered, known)[name].decode()
        policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text).group(1)
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert "http" not in policy
        assert not re.search(r'(?:src|href)="(?:https?:)?//', text)


def test_two_thousand_wheels_fit_into_250_kilobytes(offered):
    some = [offer for offer in offered if not offer.blocked]
    many = []
    for number in range(2000):
        offer = some[number % len(some)]
        digest = f"{number * 0x9E3779B97F4A7C15F39CC0605CEDC834 % 2**128:032x}" * 2
        key = offer.key if number < len(some) else f"{offer.key}{number}"
        filename = f"{offer.package}-{offer.version}-{number}-cp311-cp311-manylinux_2_28_x86_64.whl"
        many.append(Wheel(key, filename, offer.package, offer.version, 10**8 + number, digest, "2026-11-21"))
    page = make(offered, Known.of(many, []))["index.html"]
    assert len(gzip.compress(page)) < 250_000


def test_the_same_data_give_the_same_bytes(offered, known):
    assert make(offered, known) == make(offered, known)


def test_only_what_changed_is_written(offered, known, store, put):
    first = build.write(store, make(offered, known))
    assert len(first.changed) == first.files
    assert build.write(store, make(offered, known)).changed == ()
    put("torch-2.0.1+cu117.sm37.avx-cp311-cp311-manylinux_2_28_x86_64.whl", "sm37-avx")
    from farm.site.state import wheels

    again = build.write(store, make(offered, Known.of(wheels(store), [])))
    pages = {"index.html", "farm.html", "feed.xml", "catalog.wheels.json"}
    assert set(again.changed) == {*pages, "badges/sm37-avx-py311.svg"}


def test_a_damaged_manifest_costs_a_rewrite_and_nothing_else(offered, known, store):
    made = {"index.html": b"one", "feed.xml": b"two"}
    build.write(store, made)
    there = store.get(build.MANIFEST)
    assert store.replace(build.MANIFEST, b"[" * 50_000, there.etag, content_type="application/json")
    assert set(build.write(store, made).changed) == set(made)
    assert store.get("index.html").data == b"one"


def test_logs_are_plain_and_only_their_end_is_shown(tmp_path, offered, known, evil_run):
    log = tmp_path / "build.log"
    log.write_bytes(b"x\x1b[2J\n" * 100_000 + b"the end\n")
    run = replace(evil_run, id="20261121-000000-0001", files=(log,))
    made = make(offered, Known.of(known.wheels, [run]))
    text = made["runs/20261121-000000-0001/build.log.txt"].decode()
    assert text.startswith("[the last 256 KiB of 0.6 MB]")
    assert text.rstrip().endswith("the end")
    assert "\x1b" not in text


def test_a_wheel_leads_to_its_record_and_a_run_tells_its_cache(offered, known, store, evil_run):
    (wheel,) = known.wheels
    run = replace(evil_run, cached=(75, 100))
    page = make(offered, Known.of([wheel], [run]))["farm.html"]
    (link,) = (value for _, value in read(page).attributes if value and value.startswith("records/"))
    assert json.loads(store.get(unquote(link)).data)["sha256"] == wheel.sha256
    assert b"<td>75% of 100<td>" in page


def test_the_feed_is_atom_newest_first():
    old = Wheel("a", "a.whl", "torch", "1.0", 5, "1" * 64, "2026-01-01T00:00:00Z")
    new = replace(old, sha256="2" * 64, uploaded="2026-02-01T00:00:00Z", version=EVIL)
    top = ET.fromstring(feed([old, new], {}, URL))
    names = {"a": NAMESPACE}
    assert [e.text for e in top.findall("a:entry/a:id", names)] == ["urn:sha256:" + "2" * 64, "urn:sha256:" + "1" * 64]
    assert top.find("a:updated", names).text == "2026-02-01T00:00:00Z"


def test_the_words_about_a_wheel_are_the_same_everywhere(offered, known):
    made = make(offered, known)
    words = STATES["published"]
    assert f"torch 2.0.1: {words}".encode() in made["badges/sm35-avx-py311.svg"]
    assert words.encode() in made["feed.xml"]
    assert words.encode() in made["farm.html"]
    data = payload(offered, [], known, lambda _: (), lambda _: ())
    assert data["words"] == STATES
    # The script has none of its own.
    assert not [text for text in STATES.values() if text.encode() in (TEMPLATES / "selector.js").read_bytes()]


def test_the_catalogue_is_as_its_published_schema_says(offered, known, store):
    schema = json.loads(make(offered, known)["catalog.schema.json"])
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    catalogue = json.loads(store.get("catalog.json").data)
    validator.validate(catalogue)
    assert catalogue["groups"] == {"sm35-avx": {"torch": []}}
    for wrong in ({**catalogue, "schema": 1}, {**catalogue, "groups": {"sm35-avx": {"torch": {}}}}):
        assert not validator.is_valid(wrong)


def test_a_badge_is_svg_and_escapes():
    top = ET.fromstring(badge("sm35-avx-py311", "<torch> 2.0.1", "published"))
    assert top.attrib["aria-label"] == "sm35-avx-py311: <torch> 2.0.1"
    texts = [node.text for node in top.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["sm35-avx-py311", "<torch> 2.0.1"]


def test_a_bar_shows_each_step_in_proportion():
    drawn = str(bar([Step("image", 30.0, "done"), Step("build", 90.0, "done")]))
    assert [float(width) for width in re.findall(r'<rect x="[^"]*" width="([^"]*)"', drawn)] == [55.0, 165.0]
    assert bar([]) == ""


@pytest.mark.parametrize(("seconds", "said"), [(8.21, "8.2 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")])
def test_durations(seconds, said):
    assert duration(seconds) == said


@pytest.mark.parametrize("fails_at", ["index.html", "badges/a.svg"])
def test_a_folder_without_room_keeps_the_pages_that_it_had(tmp_path, monkeypatch, fails_at):
    old = dict.fromkeys(("index.html", "farm.html", "badges/a.svg"), b"old")
    disk = full_at(monkeypatch, fails_at)
    _to_folder(tmp_path / "old", old)
    disk.append("full")
    for name in ("old", "new/er"):
        with pytest.raises(InfrastructureError, match=re.escape(f"{tmp_path / name / fails_at}: No space left")):
            _to_folder(tmp_path / name, dict.fromkeys(old, b"new"))
    assert {name: (tmp_path / "old" / name).read_bytes() for name in old} == old
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
