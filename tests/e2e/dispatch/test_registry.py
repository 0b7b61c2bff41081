"""Images on their way to the nodes of a swarm."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from farm.base.errors import InfrastructureError
from farm.engines.docker import connect
from farm.run.toolchain import push
from tests.e2e.dispatch.conftest import PUSH_PORT

AT_ONCE = 6


def test_runs_that_push_the_same_image_at_once(pulled, client, toolchain):
    """Each gives it the registry's name for a moment; what one removes another may be about to
    push.
    """
    registry = f"127.0.0.1:{PUSH_PORT}"

    def once(_):
        with contextlib.closing(connect()) as own:
            return push(own, toolchain.tag, registry)

    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            assert (
                list(pool.map(once, range(5 * AT_ONCE))) == [False] * 5 * AT_ONCE
            )  # the registry has it
    finally:  # the last to remove the name may have left the image's digest under it
        image = client.images.get(toolchain.tag).attrs
        for name in (*image["RepoTags"], *image["RepoDigests"]):
            if name.startswith(registry):
                client.images.remove(name, force=True)


def test_a_registry_that_does_not_answer_is_named(client, toolchain):
    with pytest.raises(
        InfrastructureError, match=r"127\.0\.0\.1:9/farm/toolchain:.* cannot be pushed: .*refused"
    ):
        push(client, toolchain.tag, "127.0.0.1:9")
