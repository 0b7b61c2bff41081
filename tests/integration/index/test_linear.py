"""The work of check and reconcile grows with the index, not with its square: calls are counted, not
time.
"""

import cProfile
import pstats

import pytest

from farm.index.check import check
from farm.index.publish import check_store
from farm.index.reconcile import reconcile
from farm.index.records import Record
from farm.index.store_urls import open_store
from tests.indexes.wheels import publish_wheel


def fill(root, wheels, groups=1):
    """An index with many records and the smallest files, as if their publishers had been killed
    before any page.
    """
    store = open_store(str(root))
    check_store(store)
    for folder in ("records", "whl/files"):
        (root / folder).mkdir(parents=True)
    for number in range(wheels):
        name = f"canary-1.{number}-py3-none-any.whl"
        record = Record(
            filename=name,
            project="canary",
            version=f"1.{number}",
            sha256=EMPTY,
            size=0,
            metadata_sha256=EMPTY,
            groups=(f"sm{number % groups + 50}-avx",),
            upload_time="2026-11-21T00:00:00.000000Z",
            provenance={"slsa": {}},
        )
        (root / f"records/{name}.json").write_bytes(record.render())
        (root / f"whl/files/{name}").touch()
        (root / f"whl/files/{name}.metadata").touch()
    return store


EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def calls(work, *arguments):
    """How many functions a piece of work called."""
    profile = cProfile.Profile()
    result = profile.runcall(work, *arguments)
    return pstats.Stats(profile).total_calls, result


@pytest.mark.parametrize("wheels_in_each", [None, 50])
def test_twice_the_wheels_are_twice_the_work(tmp_path, wheels_in_each):
    cost = {}
    for wheels in (1000, 2000):
        store = fill(
            tmp_path / str(wheels), wheels, wheels // wheels_in_each if wheels_in_each else 1
        )
        rebuilt, done = calls(reconcile, store)
        assert not done.missing
        again, done = calls(reconcile, store)
        assert done.written == ()
        checked, problems = calls(check, store)
        assert problems == []
        cost[wheels] = (rebuilt, again, checked)
    ratios = [twice / once for once, twice in zip(cost[1000], cost[2000], strict=True)]
    assert all(1.5 < ratio < 2.3 for ratio in ratios), ratios


def test_a_publish_does_not_feel_the_wheels_of_other_groups(tmp_path, make_wheel):
    """catalog.json is read by each publish: it names projects, not wheels."""
    cost, size = {}, {}
    for wheels in (50, 400):
        root = tmp_path / str(wheels)
        store = fill(root, wheels, groups=10)
        reconcile(store)
        wheel = make_wheel("canary-2.0+cu118.sm35.avx-py3-none-any.whl")
        options = {"group": "sm35-avx", "provenance": {"slsa": {}}}
        cost[wheels], _ = calls(
            lambda store=store, wheel=wheel, options=options: publish_wheel(store, wheel, **options)
        )
        size[wheels] = (root / "catalog.json").stat().st_size
    assert size[400] == size[50]
    assert cost[400] / cost[50] < 1.05, cost
