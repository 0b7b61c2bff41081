"""Every client against every way to serve an index: some 90 runs, some minutes."""

from tests.indexes.clients import (  # noqa: F401
    PIPS,
    fill,
    filled,
    install,
    pips,
    place,
    resolver,
    served,
    test_a_requirement_spells_a_project_in_another_way_than_its_metadata,
    test_a_resolution_reads_metadata_and_not_wheels,
    test_a_yanked_wheel_is_skipped_unless_it_is_asked_for,
    test_an_absent_project,
    test_install_by_variant,
    test_requirements_with_hashes,
    test_the_json_tree_serves_clients_that_read_json,
    test_uv_locks_and_syncs,
    test_what_was_tampered_with_is_refused,
)


def pytest_generate_tests(metafunc):
    if "place" in metafunc.fixturenames:
        metafunc.parametrize("place", ["file", "served", "s3"], indirect=True)
    if "filled" in metafunc.fixturenames:
        metafunc.parametrize("filled", ["file", "served", "ceph"], indirect=True)
    if "install" in metafunc.fixturenames:
        metafunc.parametrize("install", [*PIPS, "uv"], indirect=True)
    if "resolver" in metafunc.fixturenames:
        metafunc.parametrize("resolver", ["pip-newest", "uv"], indirect=True)
