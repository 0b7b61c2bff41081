"""The publish protocol on each kind of store: whole, in requests, in threads and processes.

`tests/unit/index/test_publish.py` holds its order; `tests/e2e/servers/test_faults.py` kills it on a
real S3 server.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

import farm
from farm.index import pages
from farm.index.check import check
from farm.index.layout import json_key
from farm.index.publish import check_store
from farm.index.store_urls import open_store
from tests.indexes.recorder import FIRST, GROUP, SECOND, content, listed


def test_a_published_wheel_is_on_every_page(store, make_wheel, put):
    result = put(store, make_wheel(FIRST))
    assert result.changed
    assert check(store) == []
    assert listed(store) == [FIRST]
    assert sorted(store.list("")) == sorted(
        [
            f"records/{FIRST}.json",
            f"whl/files/{FIRST}",
            f"whl/files/{FIRST}.metadata",
            f"whl/{GROUP}/v1-json/canary/index.json",
            f"whl/{GROUP}/simple/canary/index.html",
            f"whl/{GROUP}/simple/index.html",
            f"whl/{GROUP}/v1-json/index.json",
            "whl/index.html",
            "index.html",
            "catalog.json",
        ]
    )
    assert result.index_url == store.url(f"whl/{GROUP}/simple/")
    assert store.get(f"whl/files/{FIRST}").data == make_wheel(FIRST).path.read_bytes()
    assert json.loads(store.get(f"records/{FIRST}.json").data)["provenance"] == {"plan": "sha256:1"}


def test_the_same_file_again_changes_nothing(store, make_wheel, put):
    wheel = make_wheel(FIRST)
    first = put(store, wheel)
    before = content(store)
    again = put(
        store, wheel, upload_time=datetime(2027, 1, 1, tzinfo=UTC), provenance={"plan": "another"}
    )
    assert not again.changed
    assert again.record == first.record
    assert content(store) == before


def test_groups_and_projects_stand_side_by_side(store, make_wheel, put):
    put(store, make_wheel(FIRST))
    put(store, make_wheel(SECOND))
    put(store, make_wheel("torch-2.0.1+cu118.sm35.avx-py3-none-any.whl"))
    put(store, make_wheel("canary-1.0+cu118.sm37.avx-py3-none-any.whl"), group="sm37-avx")
    assert check(store) == []
    page = json.loads(store.get(json_key(GROUP, "canary")).data)
    assert [file["filename"] for file in page["files"]] == [FIRST, SECOND]
    assert pages.parse_list(store.get(f"whl/{GROUP}/simple/index.html").data, "") == {
        "canary",
        "torch",
    }
    assert pages.parse_list(store.get("whl/sm37-avx/simple/index.html").data, "") == {"canary"}


def test_the_cost_in_http_requests(s3_url, make_wheel, put):
    store = open_store(s3_url)
    check_store(store)
    requests = []
    store.client.meta.events.register(
        "before-send.s3", lambda request, **_: requests.append(request.method)
    )
    put(store, make_wheel(FIRST))
    assert len(requests) == 13
    del requests[:]
    put(store, make_wheel(SECOND))
    assert len(requests) == 9
    del requests[:]
    assert not put(store, make_wheel(FIRST)).changed
    assert requests.count("PUT") == 1  # the claim, which says that all is there


def test_threads_lose_nothing(store, make_wheel, put):
    check_store(store)
    wheels = [make_wheel(f"canary-{number:02}-py3-none-any.whl") for number in range(8)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda wheel: put(store, wheel), wheels))
    assert all(result.changed for result in results)
    assert check(store) == []
    assert listed(store) == [wheel.path.name for wheel in wheels]


PUBLISHER = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from farm.index.publish import publish
from farm.index.store_urls import open_store

store = open_store(sys.argv[1])
for path in map(Path, sys.argv[2:]):
    result = publish(store, path, group="sm35-avx", upload_time=datetime.now(UTC), provenance={})
    assert result.changed
"""


@pytest.mark.parametrize("store_url", ["directory"], indirect=True)
def test_processes_lose_nothing(store_url, make_wheel):
    wheels = [make_wheel(f"canary-{number:02}-py3-none-any.whl") for number in range(16)]
    environment = {**os.environ, "PYTHONPATH": str(Path(farm.__file__).parents[1])}
    publishers = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                PUBLISHER,
                store_url,
                *(str(wheel.path) for wheel in wheels[start::8]),
            ],
            env=environment,
        )
        for start in range(8)
    ]
    assert [publisher.wait() for publisher in publishers] == [0] * 8
    store = open_store(store_url)
    assert check(store) == []
    assert listed(store) == [wheel.path.name for wheel in wheels]
