"""The order in which a publish writes, over a folder: killed anywhere, interleaved anywhere,
nothing is lost.
"""

import itertools

import pytest

from farm.base.errors import InfrastructureError, PublishRefusedError
from farm.index.changes import record_event
from farm.index.check import check
from farm.index.layout import HOME, html_key, json_key
from farm.index.publish import check_store
from farm.index.reconcile import reconcile
from farm.index.store_urls import open_store
from tests.indexes.recorder import (
    FIRST,
    GROUP,
    OTHER,
    SECOND,
    Killed,
    Recorder,
    content,
    kill_at,
    listed,
)


@pytest.fixture
def fresh(tmp_path):
    """A factory of empty stores that were tried."""
    numbers = itertools.count()

    def fresh():
        store = open_store(str(tmp_path / f"index-{next(numbers)}"))
        check_store(store)
        return store

    return fresh


def test_the_same_name_with_other_bytes_is_refused(fresh, make_wheel, put):
    store = fresh()
    put(store, make_wheel(FIRST))
    before = content(store)
    with pytest.raises(PublishRefusedError, match="is taken") as caught:
        put(store, make_wheel(FIRST, payload="x = 2\n"))
    assert caught.value.exit_code == 7
    assert content(store) == before


def test_a_wheel_belongs_to_one_group(fresh, make_wheel, put):
    store = fresh()
    put(store, make_wheel(FIRST))
    before = content(store)
    with pytest.raises(PublishRefusedError, match="published in sm35-avx, not in sm37-avx"):
        put(store, make_wheel(FIRST), group="sm37-avx")
    assert content(store) == before


def test_other_bytes_under_a_claimed_name_are_an_error(fresh, make_wheel, put):
    store = fresh()
    wheel = make_wheel(FIRST)
    with pytest.raises(Killed):
        put(Recorder(store, after=kill_at(4)), wheel)
    assert list(store.list("records/"))
    store.create(f"whl/files/{FIRST}", b"not the wheel", content_type="text/plain")
    with pytest.raises(InfrastructureError, match="other bytes than its record"):
        put(store, wheel)
    assert store.get(json_key(GROUP, "canary")) is None


def test_a_publish_costs_the_same_however_much_there_is(fresh, make_wheel, put):
    store = fresh()
    costs = []
    for number in range(6):
        recorder = Recorder(store)
        put(recorder, make_wheel(f"canary-{number}-py3-none-any.whl"))
        costs.append(recorder.calls)
    assert costs == [13] + [9] * 5


def test_the_next_publish_completes_an_unfinished_one(fresh, make_wheel, put):
    first, second = make_wheel(FIRST), make_wheel(SECOND)
    for number in range(8, 14):  # the JSON page is written, the derived ones are not
        store = fresh()
        with pytest.raises(Killed):
            put(Recorder(store, before=kill_at(number)), first)
        assert store.get(json_key(GROUP, "canary")) is not None
        put(Recorder(store), second)
        assert check(store) == []
        assert listed(store) == [FIRST, SECOND]


def test_the_same_wheel_from_two_publishers_at_once(fresh, make_wheel, put):
    wheel = make_wheel(FIRST)
    for wanted in range(1, 15):
        store = fresh()

        def interfere(number, name, wanted=wanted, store=store):
            if number == wanted:
                put(store, wheel)

        put(Recorder(store, before=interfere), wheel)
        assert check(store) == [], wanted
        assert listed(store) == [FIRST], wanted


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
def test_another_spelling_of_the_same_wheel_is_refused_before_it_takes_a_name(
    fresh, make_wheel, put, other
):
    """pip and uv take either for the same: which of the two a user gets would be chance."""
    store = fresh()
    put(store, make_wheel("canary-2.0-py2.py3-none-any.whl"))
    before = content(store)
    with pytest.raises(
        PublishRefusedError, match=r"the same wheel as canary-2\.0-py2\.py3-none-any\.whl"
    ):
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
def test_a_wheel_that_only_looks_similar_is_taken(fresh, make_wheel, put, other):
    store = fresh()
    put(store, make_wheel("canary-2.0-py2.py3-none-any.whl"))
    put(store, make_wheel(other))
    assert check(store) == []


@pytest.mark.parametrize(("there", "operations"), [(None, 13), (FIRST, 9), (OTHER, 13)])
def test_a_publish_killed_at_any_operation_can_be_repeated(
    fresh, make_wheel, put, there, operations
):
    """A reader finds nothing broken, and what was there."""
    second = make_wheel(SECOND)
    for number in itertools.count(1):
        store = fresh()
        if there:
            put(store, make_wheel(there))
        try:
            put(Recorder(store, after=kill_at(number)), second)
        except Killed:
            problems = check(store)
            assert [problem for problem in problems if problem.broken] == [], number
            if there:
                shown = store.get(html_key(GROUP, there.split("-")[0])).data.decode()
                assert f">{there}</a>" in shown, number
            put(Recorder(store), second)
            assert check(store) == [], number
            assert listed(store) == [
                name for name in (there, SECOND) if name and name.startswith("canary")
            ], number
            assert not put(Recorder(store), second).changed
        else:
            break
    assert number == operations + 1


def test_a_write_refused_without_a_cause_is_an_error(fresh, make_wheel, put):
    """A proxy that answers 412 by itself, at any write: the publish ends, or ends well when it is
    run again.
    """
    refused, writes = [], []

    class Refusing(Recorder):
        def _call(self, name, arguments, options):
            if name in {"create", "replace"}:
                writes.append(arguments[0])
                if len(writes) == at:
                    refused.append(arguments[0])
                    return False
            return super()._call(name, arguments, options)

    while True:
        store, at = fresh(), len(refused) + 1
        writes.clear()
        try:
            put(Refusing(store), make_wheel(FIRST))
        except InfrastructureError:
            put(store, make_wheel(FIRST))
        assert check(store) == [], refused
        assert listed(store) == [FIRST]
        if len(refused) < at:
            break
    assert {HOME, f"records/{FIRST}.json", f"whl/files/{FIRST}"} <= set(refused)


def test_another_publish_between_any_two_operations_loses_nothing(fresh, make_wheel, put):
    first, second = make_wheel(FIRST), make_wheel(SECOND)
    for wanted in itertools.count(1):
        store = fresh()

        def interfere(number, name, wanted=wanted, store=store):
            if number == wanted:
                put(store, first)

        recorder = Recorder(store, before=interfere)
        put(recorder, second)
        if recorder.calls < wanted:
            break
        assert check(store) == [], wanted
        assert listed(store) == [FIRST, SECOND], wanted
    assert wanted > 12


def test_the_pages_come_after_the_bytes_and_the_lists_after_the_pages(fresh, make_wheel, put):
    """The order itself: a client never sees a name that leads nowhere."""
    store, order = fresh(), []

    class Noted(Recorder):
        def _call(self, name, arguments, options):
            if name in {"create", "replace"}:
                order.append(arguments[0])
            return super()._call(name, arguments, options)

    put(Noted(store), make_wheel(FIRST))
    places = [
        f"records/{FIRST}.json",
        f"whl/files/{FIRST}",
        f"whl/files/{FIRST}.metadata",
        json_key(GROUP, "canary"),
    ]
    assert order[:4] == places
    lists = {f"whl/{GROUP}/simple/index.html", f"whl/{GROUP}/v1-json/index.json"}
    assert order[4] == html_key(GROUP, "canary")
    assert set(order[5:7]) == lists
    assert order[7:] == ["index.html", "whl/index.html", "catalog.json"]


class Careless:
    """A store that ignores one of its two promises."""

    def __init__(self, store, fails):
        self._store, self.fails = store, fails

    def __getattr__(self, name):
        return getattr(self._store, name)

    def create(self, key, data, **options):
        if self.fails == "create" and self._store.get(key) is not None:
            return self._store.replace(key, data, self._store.get(key).etag, content_type="x/y")
        return self._store.create(key, data, **options)

    def replace(self, key, data, etag, **options):
        now = self._store.get(key)
        if self.fails == "replace" and now is not None:
            etag = now.etag
        if self.fails == "never" and etag is not None:
            return False
        return self._store.replace(key, data, etag, **options)


@pytest.mark.parametrize(
    ("fails", "why"),
    [("create", "If-None-Match"), ("replace", "that it does not have"), ("never", "that it has")],
)
def test_a_store_that_loses_wheels_is_refused_before_the_first_write(
    tmp_path, make_wheel, put, fails, why
):
    store = open_store(str(tmp_path / "index"))
    with pytest.raises(PublishRefusedError, match=why) as caught:
        put(Careless(store, fails), make_wheel(FIRST))
    assert caught.value.exit_code == 7
    assert list(store.list("")) == []


def test_progress_is_that_of_the_wheel(fresh, make_wheel, put):
    """Not of its METADATA, which is stored after it."""
    wheel, sizes = make_wheel(FIRST), []
    put(fresh(), wheel, progress=sizes.append)
    assert sizes[-1] == wheel.path.stat().st_size


def test_bytes_that_no_record_claims_refuse_other_bytes_before_the_claim(fresh, make_wheel, put):
    """The claim was made, `reconcile` listed its hash over the other bytes, and pip refused it."""
    store = fresh()
    wheel = make_wheel(FIRST)
    store.create(f"whl/files/{FIRST}", b"a lost wheel", content_type="text/plain")
    with pytest.raises(PublishRefusedError, match="other bytes, which no record claims"):
        put(store, wheel)
    assert list(store.list("records/")) == []


def test_bytes_that_no_record_claims_are_adopted_by_the_same_wheel(fresh, make_wheel, put):
    store = fresh()
    wheel = make_wheel(FIRST)
    store.create(f"whl/files/{FIRST}", wheel.path, content_type="text/plain")
    put(store, wheel)
    assert check(store) == []
    assert listed(store) == [FIRST]


def test_a_lost_wheel_that_was_promoted_comes_back_in_all_its_groups(fresh, make_wheel, put):
    store = fresh()
    wheel = make_wheel(FIRST)
    put(store, wheel, group="staging")
    record_event(store, [FIRST], "promote", "", group=GROUP)
    for key in (f"whl/files/{FIRST}", f"whl/files/{FIRST}.metadata"):
        store.discard(key)
    reconcile(store)
    assert listed(store) == []
    put(store, wheel, group=GROUP)
    assert check(store) == []
    assert listed(store) == [FIRST]
