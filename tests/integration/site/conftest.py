from tests.unit.site.conftest import offered, put_into, root, store  # noqa: F401
