"""After a change, the pages for people are as a whole build would write them, at the cost of the
projects that changed.
"""

import json
import random
from pathlib import Path

import pytest

from farm.index.changes import record_event
from farm.index.store_urls import open_store
from farm.site import files
from farm.site.files import build, read_projects, update
from farm.site.overview import overview_in
from tests.unit.site.test_pages import source

PASSED = {
    "outcome": "passed",
    "facts": {"machine": "x86_64"},
    "checks": [{"group": "cpu", "name": "import", "status": "passed"}],
}
PROJECTS = ("torch", "torchvision", "canary", "zope-interface")


class RecordingStore:
    """A folder that notes which keys are asked for."""

    def __init__(self, folder):
        self._store = open_store(str(folder))
        self.asked = []

    def __getattr__(self, name):
        return getattr(self._store, name)

    def get(self, key):
        self.asked.append(key)
        return self._store.get(key)

    def list(self, prefix):
        self.asked.append(prefix)
        return self._store.list(prefix)


def site_of(store):
    """The bytes of all files of the site."""
    keys = [key for key in store.list("") if not key.startswith(("whl/", "records/", "events/"))]
    return {key: store.get(key).data for key in sorted(keys) if "smoke/" not in key}


def changed(draw, store, put_into, published):
    """Change the index in some way; gives the project that is concerned."""
    what = draw.choice(["publish", "publish", "yank", "remove", "promote", "smoke"])
    if what == "publish" or not published:
        project = draw.choice(PROJECTS)
        version = f"{draw.randint(1, 3)}.{draw.randint(0, 9)}{draw.choice(['', 'rc1'])}"
        name = f"{project.replace('-', '_')}-{version}-py3-none-any.whl"
        if name not in published:
            put_into(store, name, draw.choice(["sm35-avx", "cpu-avx2"]))
            published[name] = project
        return project
    name = draw.choice(sorted(published))
    if what == "smoke":
        data = json.dumps(PASSED).encode()
        key = f"smoke/{name}/{draw.getrandbits(64):016x}.json"
        store.create(key, data, content_type="application/json")
        return published[name]
    record_event(store, [name], what, "why", group="staging" if what == "promote" else None)
    project = published[name]
    if what == "remove":
        del published[name]
    return project


@pytest.mark.parametrize("seed", [20261128, 20261129, 20261130])
def test_an_update_after_each_change_gives_what_a_whole_build_gives(tmp_path, put_into, seed):
    draw = random.Random(seed)
    store = open_store(str(tmp_path / "index"))
    published = {}
    changed(draw, store, put_into, published)
    build(store, source())
    for _ in range(20):
        update(store, source(), {changed(draw, store, put_into, published)})
    updated = site_of(store)
    assert build(store, source())[1] == []
    assert site_of(store) == updated


def test_an_update_does_not_ask_for_other_projects(tmp_path, put_into):
    store = RecordingStore(tmp_path / "index")
    for number in range(5):
        put_into(store, f"other{number}-1.0-py3-none-any.whl", "g")
    put_into(store, "canary-1.0-py3-none-any.whl", "g")
    build(store, source())
    put_into(store, "canary-2.0-py3-none-any.whl", "g")
    store.asked.clear()
    changed_keys = update(store, source(), {"canary"})
    assert sorted(changed_keys) == ["catalog.wheels.json", "index.html", "project/canary.html"]
    assert not [key for key in store.asked if "other" in key]
    assert "smoke/" not in store.asked, "that lists the reports of all wheels"


def test_twice_the_wheels_are_twice_the_requests(tmp_path, put_into):
    asked = {}
    for count in (5, 10):
        store = RecordingStore(tmp_path / str(count))
        for number in range(count):
            put_into(store, f"canary-1.{number}-py3-none-any.whl", "g")
        build(store, source())
        store.asked.clear()
        update(store, source(), {"canary"})
        asked[count] = len(store.asked)
    assert asked[10] < 2.2 * asked[5]
    assert asked[10] <= 10 * 5, "a record, a METADATA, a list of reports, and the pages"


def test_a_slow_writer_does_not_put_an_older_state_over_a_newer_one(
    tmp_path, put_into, monkeypatch
):
    """Another publisher finishes between this one's look at the index and its write."""
    store = open_store(str(tmp_path / "index"))
    put_into(store, "canary-1.0-py3-none-any.whl", "g")
    build(store, source())
    put_into(store, "canary-1.5-py3-none-any.whl", "g")

    def read_and_be_overtaken(*arguments):
        contents = read_projects(*arguments)
        monkeypatch.undo()
        put_into(store, "canary-2.0-py3-none-any.whl", "g")
        update(store, source(), {"canary"})
        return contents

    monkeypatch.setattr(files, "read_projects", read_and_be_overtaken)
    update(store, source(), {"canary"})
    assert "canary-2.0-py3-none-any.whl" in (tmp_path / "index/project/canary.html").read_text()
    overview = overview_in((tmp_path / "index/index.html").read_bytes())
    assert [row.version for row in overview.there] == ["2.0"]


@pytest.mark.parametrize("damage", ["no data", "other rows", "no page"])
def test_a_first_page_of_another_version_of_the_farm_is_built_anew(tmp_path, put_into, damage):
    store = open_store(str(tmp_path / "index"))
    put_into(store, "canary-1.0-py3-none-any.whl", "g")
    put_into(store, "torch-1.0-py3-none-any.whl", "g")
    build(store, source())
    expected = site_of(store)
    page = Path(tmp_path / "index/index.html")
    if damage == "no page":
        page.unlink()
    else:
        damages = {
            "no data": ('json" id="data"', 'json" id="other"'),
            "other rows": ('"there":[{', '"there":[{"x":1,'),
        }
        page.write_text(page.read_text().replace(*damages[damage]))
    update(store, source(), {"canary"})
    assert site_of(store) == expected


def test_the_answer_names_the_release_that_pip_takes_and_not_a_newer_pre_release(
    tmp_path, put_into
):
    store = open_store(str(tmp_path / "index"))
    for version in ("2.6.0", "2.7.0rc1"):
        put_into(store, f"torch-{version}-cp311-cp311-manylinux_2_28_x86_64.whl", "sm35-avx")
    build(store, source())
    overview = overview_in((tmp_path / "index/index.html").read_bytes())
    assert [row.version for row in overview.there] == ["2.6.0"]
    assert overview.projects[0].newest == "2.6.0"
