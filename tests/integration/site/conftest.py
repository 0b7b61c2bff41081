from tests.unit.site.conftest import put_into, root, store  # noqa: F401
