from tests.unit.wheel.conftest import make_container, make_digest, make_elf, make_entry  # noqa: F401
