import hashlib
import json
import os
import random
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from farm.catalog import gpus
from farm.index.publish import publish
from farm.index.store_urls import open_store
from farm.site import pages
from farm.site.overview import Overview
from farm.site.wheels import wheels, with_tests
from tests.indexes.wheels import build_wheel

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path / "index"))


@pytest.fixture
def put(store, put_into):
    """Publishes a tiny wheel of a name into a group; gives its sha256."""
    return lambda filename, group: put_into(store, filename, group)


@pytest.fixture
def put_verified(store, put_into):
    """The same, with a provenance."""
    return lambda filename, group, provenance: put_into(store, filename, group, provenance)


@pytest.fixture
def put_into(tmp_path):
    """The same, into a store of one's own."""

    def make(store, filename, group, provenance=None):
        path = build_wheel(tmp_path, filename).path
        when = datetime(2026, 11, 21, 12, tzinfo=UTC)
        publish(store, path, group=group, upload_time=when, provenance=provenance or {})
        return hashlib.sha256(path.read_bytes()).hexdigest()

    return make


@pytest.fixture
def there(store, put):
    """An index with one wheel."""
    put("torch-2.0.1+cu117.sm35.avx-cp311-cp311-manylinux_2_28_x86_64.whl", "sm35-avx")
    return with_tests(wheels(store), {})


@pytest.fixture(scope="session")
def node():
    program = shutil.which("node")
    if not program and os.environ.get("FARM_REQUIRE") == "all":
        pytest.fail("node is missing: install the Debian package nodejs")
    if not program:
        pytest.skip("node is missing: install the Debian package nodejs")
    return program


@pytest.fixture(scope="session")
def page(node, tmp_path_factory):
    """Runs the page, its files unchanged, in a small stand-in for a browser; gives its results.

    `script` is JavaScript that has `answers`, `cases` and `page`, and assigns `result`.
    """
    return page_of(node, tmp_path_factory.mktemp("page"), Overview())


def page_of(node, folder, overview):
    """`page` of an index with these wheels."""
    (folder / "facts.json").write_text(json.dumps(pages.data(overview, ROOT)))
    parts = [str(pages.TEMPLATES / name) for name in pages.SCRIPTS]

    def run(script, cases):
        (folder / "cases.json").write_text(json.dumps(cases))
        (folder / "run.js").write_text(script)
        command = [node, str(Path(__file__).with_name("browser.js")), str(folder), *parts]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="session")
def cards_typed():
    """Every card of the catalogue, as somebody may write it, and some names of none."""
    draw = random.Random(20261126)
    written = []
    for card in gpus.cards():
        before = draw.choice(("", "NVIDIA ", "GPU 0: "))
        after = draw.choice(("", " (TM)", " 24GB", " Laptop GPU"))
        short = card.name.lower().replace(" ", "")
        written.append(draw.choice((card.name, f"{before}{card.name}{after}", short)))
    unknown = ["", "Voodoo 2", "GK208B [GeForce GT 730]", "gfx1100", "MI250X", "Gaudi2"]
    return [*written, *unknown, "Apple M5", "constructor", "İ"]
