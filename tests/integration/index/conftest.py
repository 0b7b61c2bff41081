from tests.indexes.fixtures import (  # noqa: F401
    aws,
    make_wheel,
    moto_url,
    no_sync,
    put,
    s3_owner,
    s3_url,
    store,
    store_url,
)
