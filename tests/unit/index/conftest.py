from datetime import UTC, datetime

import pytest

from tests.indexes.fixtures import make_wheel, no_sync, put  # noqa: F401


@pytest.fixture
def uploaded():
    return datetime(2026, 11, 21, 1, 2, 3, tzinfo=UTC)
