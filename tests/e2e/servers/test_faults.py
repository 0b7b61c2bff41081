"""A part of what `tests/bench/faults.py` does in full; run that before a release."""

import pytest

from tests.faults import campaign
from tests.servers.buckets import make_bucket

PARTS = {"size": 12 * 2**20, "max_put": 2**20, "part": 5 * 2**20}


@pytest.fixture(scope="module")
def made():
    with campaign.publishers() as started:
        yield started


def test_killed_after_each_request(ceph, made, tmp_path):
    count = campaign.killed(make_bucket(ceph.http, "killed"), tmp_path, made)
    print(count)
    assert count.clean, count
    assert count.outcomes["-9"] >= 7  # the requests of a publish into a known project
    assert count.outcomes["0"] == 1


def test_killed_while_parts_go_up(ceph, made, tmp_path):
    url = make_bucket(ceph.http, "killed-in-parts")
    count = campaign.killed(
        url, tmp_path, made, only=lambda number: number in {5, 7, 8, 9, 40}, **PARTS
    )
    print(count)
    assert count.clean, count
    assert count.outcomes == {"-9": 4, "0": 1}


def test_many_publishers_of_one_project(ceph, made, tmp_path):
    count = campaign.parallel(
        make_bucket(ceph.http, "parallel"), tmp_path, made, processes=8, wheels=4, kills=2
    )
    print(count)
    assert count.clean, count
    assert count.outcomes["-9"] >= 8, "some had published all before that request"


def test_many_publishers_over_https(ceph, tmp_path):
    with campaign.publishers() as made:  # which trust the test's authority
        count = campaign.parallel(
            make_bucket(ceph.https, "parallel-tls"), tmp_path, made, processes=8, wheels=2
        )
    print(count)
    assert count.clean, count
    assert count.outcomes == {"0": 8}


def test_many_publishers_into_a_folder(made, tmp_path):
    count = campaign.parallel(str(tmp_path / "index"), tmp_path, made, processes=32, wheels=10)
    print(count)
    assert count.clean, count
    assert count.outcomes == {"0": 32}


def test_a_proxy_that_does_harm(ceph, made, tmp_path):
    count = campaign.harmed(make_bucket(ceph.http, "harmed"), tmp_path, made, seeds=range(16))
    print(count)
    assert count.clean, count
    assert len(count.harms) >= 10
