"""uv, and once this Python's pip, one way each to serve an index; `tests/e2e/servers/clients` has every pair."""

from tests.indexes.clients import (  # noqa: F401
    fill,
    filled,
    install,
    place,
    resolver,
    served,
    test_a_resolution_reads_metadata_and_not_wheels,
    test_a_yanked_wheel_is_skipped_unless_it_is_asked_for,
    test_an_absent_project,
    test_install_by_variant,
    test_install_from_a_channel_and_from_the_flat_page,
    test_nothing_of_a_quarantined_project_is_installed,
    test_requirements_with_hashes,
    test_the_index_alone_installs_torch_and_what_it_needs,
    test_the_json_tree_serves_clients_that_read_json,
    test_uv_locks_and_syncs,
    test_what_was_tampered_with_is_refused,
)

BOTH = {"test_install_by_variant"}


def pytest_generate_tests(metafunc):
    [*where] = {"place", "filled"} & set(metafunc.fixturenames)
    if where:
        pairs = [("uv", "s3"), ("pip", "served")]
        both = metafunc.function.__name__ in BOTH
        metafunc.parametrize(("install", *where), pairs if both else pairs[:1], indirect=True)
    elif "install" in metafunc.fixturenames:
        metafunc.parametrize("install", ["uv"], indirect=True)
    if "resolver" in metafunc.fixturenames:
        metafunc.parametrize("resolver", ["uv"], indirect=True)
