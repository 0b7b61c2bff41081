from tests.unit.smoke.conftest import environment, good_source  # noqa: F401
