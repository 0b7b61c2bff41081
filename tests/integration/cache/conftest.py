from tests.indexes.fixtures import aws, moto_url, no_sync, s3_owner, s3_url, store_url  # noqa: F401
