"""The publish protocol on each kind of store: whole, killed anywhere, interleaved anywhere, in parallel.

Kills and processes are tried in a folder here, and on a real S3 server in `tests/e2e/servers/test_faults.py`.
"""

import itertools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

import farm
from farm.base.errors import InfrastructureError, PublishRefusedError
from farm.index import html, pages
from farm.index.backends import open_store
from farm.index.check import check
from farm.index.probe import keep_proof, prove
from farm.index.reader import open_reader
from farm.index.signing import load_public, load_signer, new_key
from farm.index.verify import verify_index

GROUP = "sm35-avx"
FIRST = "canary-1.0+cu118.sm35.avx-py3-none-any.whl"
SECOND = "canary-1.0+cu118.sm35.avx.1-py3-none-any.whl"
OTHER = "torch-2.0.1+cu118.sm35.avx-py3-none-any.whl"


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


def nothing(number, name):
    pass


class Watched:
    """A store that calls back before and after each operation; `calls` counts them."""

    def __init__(self, store, before=nothing, after=nothing):
        self._store, self._before, self._after = store, before, after
        self.calls = 0
        self.proved = True

    def _call(self, name, arguments, options):
        self.calls += 1
        number = self.calls
        self._before(number, name)
        result = getattr(self._store, name)(*arguments, **options)
        self._after(number, name)
        return result

    def get(self, *arguments, **options):
        return self._call("get", arguments, options)

    def stat(self, *arguments, **options):
        return self._call("stat", arguments, options)

    def create(self, *arguments, **options):
        return self._call("create", arguments, options)

    def replace(self, *arguments, **options):
        return self._call("replace", arguments, options)

    def __getattr__(self, name):
        """What costs no request: urls, predictions of tags, traits."""
        return getattr(self._store, name)


def content(store):
    return {key: store.get(key).data for key in store.list("")}


def listed(store, project="canary"):
    """File names on the JSON page, the HTML page and in links.html: three lists that should be one."""
    page = json.loads(store.get(pages.json_key(GROUP, project)).data)
    files = [file["filename"] for file in page["files"]]
    for key in (pages.html_key(GROUP, project), pages.links_key(GROUP)):
        text = store.get(key).data.decode()
        assert [name for name in files if f">{name}</a>" in text] == files
        assert text.count(f">{project}-") == len(files)
    return files


@pytest.fixture
def fresh(store_url, request):
    """A factory of empty stores of one kind."""
    numbers = itertools.count()

    def fresh():
        number = next(numbers)
        if store_url.startswith("s3://"):
            store = open_store(store_url)
            store.prefix = f"{number}/"
            return store
        return open_store(f"{store_url}-{number}")

    return fresh


def test_a_published_wheel_is_on_every_page(store, make_wheel, put):
    result = put(store, make_wheel(FIRST))
    assert result.changed
    assert store.proved
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
            f"whl/{GROUP}/links.html",
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
    again = put(store, wheel, upload_time=datetime(2027, 1, 1, tzinfo=UTC), provenance={"plan": "another"})
    assert not again.changed
    assert again.record == first.record
    assert content(store) == before


def test_the_same_name_with_other_bytes_is_refused(store, make_wheel, put):
    put(store, make_wheel(FIRST))
    before = content(store)
    with pytest.raises(PublishRefusedError, match="is taken") as caught:
        put(store, make_wheel(FIRST, payload="x = 2\n"))
    assert caught.value.exit_code == 7
    assert content(store) == before


def test_a_wheel_belongs_to_one_group(store, make_wheel, put):
    put(store, make_wheel(FIRST))
    before = content(store)
    with pytest.raises(PublishRefusedError, match="published in sm35-avx, not in sm37-avx"):
        put(store, make_wheel(FIRST), group="sm37-avx")
    assert content(store) == before


def test_groups_and_projects_stand_side_by_side(store, make_wheel, put):
    put(store, make_wheel(FIRST))
    put(store, make_wheel(SECOND))
    put(store, make_wheel("torch-2.0.1+cu118.sm35.avx-py3-none-any.whl"))
    put(store, make_wheel("canary-1.0+cu118.sm37.avx-py3-none-any.whl"), group="sm37-avx")
    assert check(store) == []
    page = json.loads(store.get(pages.json_key(GROUP, "canary")).data)
    assert [file["filename"] for file in page["files"]] == [FIRST, SECOND]
    assert html.parse_root(store.get(pages.root_key(GROUP)).data, "") == {"canary", "torch"}
    assert set(html.parse_links(store.get(pages.links_key(GROUP)).data, "")) == {"canary", "torch"}
    assert html.parse_root(store.get(pages.root_key("sm37-avx")).data, "") == {"canary"}


def test_other_bytes_under_a_claimed_name_are_an_error(store, make_wheel, put):
    wheel = make_wheel(FIRST)
    with pytest.raises(Killed):
        put(Watched(store, after=kill_at(1)), wheel)
    store.create(f"whl/files/{FIRST}", b"not the wheel", content_type="text/plain")
    with pytest.raises(InfrastructureError, match="other bytes than its record"):
        put(store, wheel)
    assert store.get(pages.json_key(GROUP, "canary")) is None


def test_a_publish_costs_the_same_however_much_there_is(fresh, make_wheel, put):
    store = fresh()
    keep_proof(store)
    costs = []
    for number in range(6):
        watched = Watched(store)
        put(watched, make_wheel(f"canary-{number}-py3-none-any.whl"))
        costs.append(watched.calls)
    assert costs == [13] + [9] * 5


def test_the_cost_in_http_requests(s3_url, make_wheel, put):
    store = open_store(s3_url)
    keep_proof(store)
    requests = []
    store.client.meta.events.register("before-send.s3", lambda request, **_: requests.append(request.method))
    put(store, make_wheel(FIRST))
    assert len(requests) == 13
    del requests[:]
    put(store, make_wheel(SECOND))
    assert len(requests) == 9
    del requests[:]
    assert not put(store, make_wheel(FIRST)).changed
    assert requests.count("PUT") == 1  # the claim, which says that all is there


def kill_at(wanted):
    def kill(number, name):
        if number == wanted:
            raise Killed

    return kill


@pytest.fixture
def key(tmp_path):
    """A signer, and the keys that a user of it trusts."""
    public = load_public(new_key(tmp_path / "farm.key"))
    return load_signer(tmp_path / "farm.key"), {public.keyid: public}


@pytest.mark.parametrize("store_url", ["directory"], indirect=True)
@pytest.mark.parametrize(
    ("there", "signed", "operations"), [(None, False, 13), (FIRST, False, 9), (OTHER, True, 14), (FIRST, True, 10)]
)
def test_killed_at_any_operation_and_run_again(fresh, make_wheel, put, key, there, signed, operations):
    """A reader finds nothing broken, and what was there; signed pages are as signed, or newer. Signed: in a channel."""
    options = {"signer": key[0], "channel": "kepler", "provenance": {"slsa": {}}} if signed else {}
    second = make_wheel(SECOND)
    for number in itertools.count(1):
        store = fresh()
        store.proved = True
        if there:
            put(store, make_wheel(there), **options)
        try:
            put(Watched(store, after=kill_at(number)), second, **options)
        except Killed:
            problems = check(store)
            assert [problem for problem in problems if problem.broken] == [], number
            if there:
                shown = store.get(pages.html_key(GROUP, there.split("-")[0])).data.decode()
                assert f">{there}</a>" in shown, number
            if signed:
                told = verify_index(open_reader(str(store.root)), key[1]).problems
                assert all(line.endswith("(yet)") for line in told), (number, told)
            put(Watched(store), second, **options)
            assert check(store) == [], number
            assert listed(store) == [name for name in (there, SECOND) if name and name.startswith("canary")], number
            assert not put(Watched(store), second, **options).changed
            if signed:
                assert verify_index(open_reader(str(store.root)), key[1]).problems == (), number
        else:
            break
    assert number == operations + 1


@pytest.mark.parametrize("store_url", ["directory"], indirect=True)
def test_what_one_left_unfinished_the_next_wheel_of_the_project_shows(fresh, make_wheel, put):
    first, second = make_wheel(FIRST), make_wheel(SECOND)
    for number in range(6, 14):  # the JSON page is written, the derived ones are not
        store = fresh()
        store.proved = True
        with pytest.raises(Killed):
            put(Watched(store, before=kill_at(number)), first)
        assert store.get(pages.json_key(GROUP, "canary")) is not None
        put(Watched(store), second)
        assert check(store) == []
        assert listed(store) == [FIRST, SECOND]


@pytest.mark.parametrize("store_url", ["directory"], indirect=True)
@pytest.mark.parametrize(("signed", "operations"), [(False, 13), (True, 17)])
def test_another_publish_between_any_two_operations_loses_nothing(fresh, make_wheel, put, key, signed, operations):
    first, second = make_wheel(FIRST), make_wheel(SECOND)
    options = {"signer": key[0], "channel": "kepler", "provenance": {"slsa": {}}} if signed else {}
    for wanted in itertools.count(1):
        store = fresh()
        store.proved = True

        def interfere(number, name, wanted=wanted, store=store):
            if number == wanted:
                put(store, first, **options)

        watched = Watched(store, before=interfere)
        put(watched, second, **options)
        if watched.calls < wanted:
            break
        assert check(store) == [], wanted
        assert listed(store) == [FIRST, SECOND], wanted
        if signed:
            assert verify_index(open_reader(str(store.root)), key[1]).problems == (), wanted
    assert wanted == operations + 1


@pytest.mark.parametrize("store_url", ["directory"], indirect=True)
def test_the_same_wheel_from_two_publishers_at_once(fresh, make_wheel, put):
    wheel = make_wheel(FIRST)
    for wanted in range(1, 14):
        store = fresh()
        store.proved = True

        def interfere(number, name, wanted=wanted, store=store):
            if number == wanted:
                put(store, wheel)

        put(Watched(store, before=interfere), wheel)
        assert check(store) == [], wanted
        assert listed(store) == [FIRST], wanted


def test_threads_lose_nothing(store, make_wheel, put):
    prove(store)
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
from farm.index.backends import open_store

store = open_store(sys.argv[1])
for path in map(Path, sys.argv[2:]):
    metadata = path.with_suffix(".metadata").read_bytes()
    result = publish(store, path, group="sm35-avx", metadata=metadata, upload_time=datetime.now(UTC), provenance={})
    assert result.changed
"""


@pytest.mark.parametrize("store_url", ["directory"], indirect=True)
def test_processes_lose_nothing(store_url, make_wheel):
    wheels = [make_wheel(f"canary-{number:02}-py3-none-any.whl") for number in range(12)]
    for wheel in wheels:
        wheel.path.with_suffix(".metadata").write_bytes(wheel.metadata)
    environment = {**os.environ, "PYTHONPATH": str(Path(farm.__file__).parents[1])}
    publishers = [
        subprocess.Popen(
            [sys.executable, "-c", PUBLISHER, store_url, *(str(wheel.path) for wheel in wheels[start::4])],
            env=environment,
        )
        for start in range(4)
    ]
    assert [publisher.wait() for publisher in publishers] == [0, 0, 0, 0]
    store = open_store(store_url)
    assert check(store) == []
    assert listed(store) == [wheel.path.name for wheel in wheels]


@pytest.mark.parametrize(
    "other",
    [
        "canary-2.0.0-py2.py3-none-any.whl",
        "Canary-2.0-py2.py3-none-any.whl",
        "canary-0!2.0-py2.py3-none-any.whl",
        "canary-v2.0-py2.py3-none-any.whl",
        "canary-2.0-py3.py2-none-any.whl",
        "canary-2.0-py2.py3-none-ANY.whl",
    ],
)
def test_another_spelling_of_the_same_wheel_is_refused_before_it_takes_a_name(store, make_wheel, put, other):
    """pip and uv take either for the same: which of the two a user gets would be chance."""
    put(store, make_wheel("canary-2.0-py2.py3-none-any.whl"))
    before = content(store)
    with pytest.raises(PublishRefusedError, match=r"the same wheel as canary-2\.0-py2\.py3-none-any\.whl"):
        put(store, make_wheel(other, payload="x = 2\n"))
    assert content(store) == before


@pytest.mark.parametrize(
    "other",
    [
        "canary-2.0-1-py2.py3-none-any.whl",
        "canary-2.0-py3-none-any.whl",
        "canary-1!2.0-py2.py3-none-any.whl",
        "canary-2.0.post1-py2.py3-none-any.whl",
        "canary-2.0+local.1-py2.py3-none-any.whl",
    ],
)
def test_a_wheel_that_only_looks_similar_is_taken(store, make_wheel, put, other):
    put(store, make_wheel("canary-2.0-py2.py3-none-any.whl"))
    put(store, make_wheel(other))
    assert check(store) == []
