"""Where a job on another machine leaves what it made: objects that it may write through URLs signed for each alone.

The job holds no credentials. A URL serves one key and one verb, for a limited time, and the write is refused where
something is already (`If-None-Match: *`). What is here is in transit only: `drop` removes it.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from farm.base.errors import InfrastructureError, UsageError
from farm.index.backends import open_store
from farm.index.s3 import S3Store

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

MAX_SIGNED_S = 7 * 24 * 3600
"""The longest that a SigV4 URL lives: Amazon S3, "Sharing objects with presigned URLs". Temporary credentials that
signed it end it earlier."""

MAX_SMALL = 8 << 20
"""Bytes: a piece of a log has 4 MiB."""


class OversizeError(Exception):
    """An object that its writer made larger than it may be."""


class Exchange:
    """Objects in transit, in a bucket.

    Args:
        url: `s3://bucket/prefix?endpoint_url=…`, as for an index; keep it apart from the index.

    Raises:
        UsageError: It is not a bucket: a folder here cannot be written from another machine.
    """

    def __init__(self, url: str) -> None:
        store = open_store(url)
        if not isinstance(store, S3Store):
            raise UsageError(
                f"the exchange {url!r} is not a bucket: jobs on other machines cannot write there",
                hint="set swarm.exchange in ci/farm.yaml to s3://bucket/prefix?endpoint_url=https://…",
            )
        self._store = store
        # S3's own default for presigned URLs is an older scheme, which signs no header and lives in few servers.
        self._signer: S3Client = boto3.Session().client(
            "s3",
            endpoint_url=store.client.meta.endpoint_url,
            region_name=store.client.meta.region_name,
            config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
        )

    @property
    def encrypted(self) -> bool:
        """True if the job must check a certificate."""
        return self._store.url("").startswith("https://")

    def put_url(self, key: str, seconds: int) -> str:
        """A URL that stores one object, once; the request must carry `If-None-Match: *`."""
        return self._signed("put_object", key, seconds, IfNoneMatch="*")

    def get_url(self, key: str, seconds: int) -> str:
        """A URL that reads one object."""
        return self._signed("get_object", key, seconds)

    def _signed(self, verb: str, key: str, seconds: int, **more: str) -> str:
        try:
            return self._signer.generate_presigned_url(
                verb, Params={"Bucket": self._store.bucket, "Key": self._key(key), **more}, ExpiresIn=seconds
            )
        except (BotoCoreError, ClientError) as error:
            raise UsageError(f"a URL for {key} cannot be signed: {error}", hint="are there credentials?") from error

    def _key(self, key: str) -> str:
        return self._store.prefix + key

    def put(self, key: str, data: bytes | Path) -> None:
        """Stores an object for the job to read; the same bytes again are fine."""
        self._store.create(key, data, content_type="application/octet-stream")

    def get(self, key: str, limit: int = MAX_SMALL) -> bytes | None:
        """A small object whole, its bytes as they were sent, or None where there is none.

        Raises:
            OversizeError: It has more than `limit` bytes: what a job writes is not trusted to be brief.
        """
        size = self.size(key)
        if size is None:
            return None
        if size > limit:
            raise OversizeError(f"{size} bytes, at most {limit}")
        # By `chunks`, which gives the bytes as they are there: the store's `get` unpacks what is declared as gzip.
        return b"".join(self._store.chunks(key))

    def chunks(self, key: str) -> Iterator[bytes]:
        """A large object, piece by piece."""
        return self._store.chunks(key)

    def size(self, key: str) -> int | None:
        """Bytes of an object, or None where there is none."""
        found = self._store.stat(key)
        return None if found is None else found.size

    def drop(self, prefix: str) -> None:
        """Removes every object below `prefix`; a failure is left to the bucket's own expiry rule."""
        client = self._store.client
        with contextlib.suppress(InfrastructureError, BotoCoreError, ClientError):
            for key in list(self._store.list(prefix)):
                client.delete_object(Bucket=self._store.bucket, Key=self._key(key))
