"""How the property tests draw their inputs, for all tests: FARM_HYPOTHESIS chooses.

repeat (the default): each run draws the same inputs, so that a test fails always or never; a third
of their number. whole: those and the other two thirds; `tests/e2e/fuzz/test_properties.py` runs it.
random: new inputs each run, as many. explore: ten times as many; a failure prints the line
`@reproduce_failure(...)` that draws it again, and `.hypothesis` keeps it. Such an input then
becomes an `@example` of its test.

How long an input takes is no part of any: machines are slow and busy.
"""

import gc
import os
import random
import signal
import socketserver
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.examples import USUAL

ANY_SPEED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}

settings.register_profile("repeat", **ANY_SPEED, max_examples=USUAL // 3, derandomize=True)
settings.register_profile("whole", **ANY_SPEED, max_examples=USUAL, derandomize=True)
settings.register_profile("random", **ANY_SPEED, max_examples=USUAL, print_blob=True)
settings.register_profile("explore", **ANY_SPEED, max_examples=10 * USUAL, print_blob=True)
settings.load_profile(os.environ.get("FARM_HYPOTHESIS", "repeat"))

pytest.register_assert_rewrite(
    "tests.answers", "tests.indexes"
)  # tests that modules of several folders share: a failure shows values

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # under nohup; commands that tests start must heed Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Tests are thousands of objects that stay; to look at them again and again was half the time
    of collection.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """FARM_TEST_ORDER=SEED: in a random order, the same for the same seed."""
    if seed := os.environ.get("FARM_TEST_ORDER"):
        random.Random(seed).shuffle(items)


@pytest.fixture(autouse=True, scope="session")
def kept_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Folders of the tests' own for what uv (credentials) and the farm (what it verified) keep
    below ~/.local.

    Not XDG_DATA_HOME or a HOME: with those uv has other tools and Pythons, and pip's and uv's
    downloads are lost.
    """
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UV_CREDENTIALS_DIR", str(folder / "credentials"))
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        yield


@pytest.fixture(autouse=True, scope="session")
def quiet_servers():
    """A client that goes away is no failure of a test's server; socketserver would print a
    traceback among the dots.
    """
    report = socketserver.BaseServer.handle_error

    def handle_error(
        server: socketserver.BaseServer, request: object, client_address: object
    ) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            report(server, request, client_address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socketserver.BaseServer, "handle_error", handle_error)
        yield
