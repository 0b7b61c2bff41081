from tests.unit.wheel.conftest import (  # noqa: F401
    make_container,
    make_cubin,
    make_digest,
    make_elf,
    make_entry,
    make_pe,
    make_wheel,
)
