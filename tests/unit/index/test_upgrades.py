"""Indexes of other releases of the farm: those of earlier ones are read for ever, newer ones are
refused in the right words.

first_release/ was written by the code of 0.1.0: two wheels, of which one is yanked. It is never
written anew.
"""

import json
import shutil
from pathlib import Path

import pytest

from farm.cli.main import main
from farm.index.records import read_record
from farm.index.store_urls import open_store
from tests.indexes.wheels import build_wheel, publish_wheel

FIRST = Path(__file__).parent / "first_release"
YANKED = "canary-1.0-py3-none-any.whl"


def contents(index):
    """What an index holds; its catalogue without the store whose writes were tried."""
    files = {path: path.read_bytes() for path in index.rglob("*") if path.is_file()}
    catalogue = json.loads(files.pop(index / "catalog.json"))
    catalogue.pop("_tried")
    files.pop(index / ".lock", None)
    return files, catalogue


@pytest.fixture
def index(tmp_path):
    return Path(shutil.copytree(FIRST, tmp_path / "index"))


def page_of(index):
    page = json.loads((index / "whl/sm35-avx/v1-json/canary/index.json").read_text())
    return {file["filename"]: file["yanked"] for file in page["files"]}


def test_an_index_of_the_first_release_is_whole(index, capsys):
    assert main(["index", "check", "--index", str(index)]) == 0, capsys.readouterr()
    assert read_record(open_store(str(index)), YANKED).sha256


def test_an_index_of_the_first_release_takes_new_wheels_and_events(index, tmp_path):
    made = build_wheel(tmp_path / "made", "canary-3.0-py3-none-any.whl")
    publish_wheel(open_store(str(index)), made)
    assert main(["index", "unyank", YANKED, "--index", str(index)]) == 0
    assert main(["index", "check", "--index", str(index)]) == 0
    assert page_of(index) == {
        f"canary-{version}-py3-none-any.whl": False for version in ("1.0", "2.0", "3.0")
    }


def test_pages_of_the_first_release_are_made_again_from_its_records(index):
    shutil.rmtree(index / "whl/sm35-avx")
    assert main(["index", "reconcile", "--index", str(index)]) == 0
    assert page_of(index) == {YANKED: "wrong flags", "canary-2.0-py3-none-any.whl": False}


@pytest.mark.parametrize(
    "key", [f"records/{YANKED}.json", f"events/{YANKED}/1.json", "catalog.json"]
)
def test_what_a_newer_release_wrote_is_refused_with_the_advice_to_upgrade(index, capsys, key):
    path = index / key
    document = json.loads(path.read_text())
    document["schema"] += 1
    path.write_text(json.dumps(document))
    before = contents(index)
    assert main(["index", "yank", YANKED, "--reason", "x", "--index", str(index)]) == 9
    error = capsys.readouterr().err
    assert f"{key} was written by a newer release of the farm: schema {document['schema']}" in error
    assert "upgrade this farm" in error
    assert contents(index) == before
