"""A store in a bucket of AWS S3 or of a server that speaks its protocol.

Conditions are S3's own: `If-None-Match: *` and `If-Match` on PutObject. A server may ignore them, so
`farm.index.probe` must pass before anything is published.

A PUT may succeed and its answer be lost; the retry then gets 412 for our own object, so after a retry the object is
read back and compared. The checksums that botocore adds by itself travel over https as a trailer that Ceph and others
refuse, so only those are sent that S3 always had.

Pages grow with the index, so they are stored gzip-encoded; pip, uv and browsers ask for that and decode it.
"""

import base64
import contextlib
import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

from botocore.exceptions import BotoCoreError, ClientError

from farm.base.errors import InfrastructureError, UsageError
from farm.base.hashes import sha256_and_size
from farm.index import multipart, traits
from farm.index.answers import TRIES
from farm.index.bucket import SHA256, Bucket, absent, http_status, may_pass
from farm.index.folders import from_folder
from farm.index.pieces import Piece
from farm.index.stores import (
    CHUNK,
    MAX_GET,
    Finding,
    Progress,
    Stat,
    Stored,
    check_discardable,
)

MAX_PUT = 512 * 1024**2
"""Bytes in one PutObject; larger files go in parts. S3's limit is 5 GiB, but what is sent again is sent whole."""

GZIP_FROM = 1024
"""Bytes from which on a page is stored gzip-encoded."""


class S3Store(Bucket):
    """Objects below `prefix` in `bucket`.

    Args:
        bucket: The bucket; it must exist.
        prefix: Where the index starts in the bucket; may be empty.
        endpoint_url: The server; None for AWS.
        region: None for the environment's, or us-east-1.
        slash: Pages lie at keys that end in a slash (`farm.index.folders`).
    """

    def __init__(self, *place: str, **options: Any) -> None:
        super().__init__(*place, **options)
        self.client.meta.events.register("before-send.s3", _now_sending)

    def get(self, key: str) -> Stored | None:
        def once() -> Stored | None:
            try:
                answer = self.client.get_object(Bucket=self.bucket, Key=self.full(key))
            except ClientError as error:
                if absent(error):
                    return None
                raise
            with contextlib.closing(answer["Body"]) as body:
                # Before reading: the object may be anything that somebody put into the bucket.
                if answer["ContentLength"] > MAX_GET:
                    raise InfrastructureError(f"{self.url(key)} is over {MAX_GET} bytes: no page or record")
                data = body.read()
            if answer.get("ContentEncoding") == "gzip":
                data = self._unpacked(key, data)
            return Stored(data, answer["ETag"])

        return self.again(key, once)

    def chunks(self, key: str) -> Iterator[bytes]:
        done, tag = 0, None
        for left in reversed(range(TRIES)):
            # What was read of a large wheel is not read again.
            part: dict[str, Any] = {"Range": f"bytes={done}-"} if done else {}
            answer = self.again(key, partial(self.client.get_object, Bucket=self.bucket, Key=self.full(key), **part))
            resumed = answer["ResponseMetadata"]["HTTPStatusCode"] == 206 and answer["ETag"] == tag
            with self.failures(key), contextlib.closing(answer["Body"]) as body:
                if done and not resumed:
                    raise InfrastructureError(f"{self.url(key)}: cut off after {done} bytes", hint="run it again")
                tag = answer["ETag"]
                try:
                    for chunk in body.iter_chunks(CHUNK):
                        done += len(chunk)
                        yield chunk
                    return
                except BotoCoreError as error:
                    if not left or not may_pass(error):
                        raise

    def create(
        self,
        key: str,
        data: bytes | Path,
        *,
        content_type: str,
        sha256: str | None = None,
        progress: Progress | None = None,
    ) -> bool:
        if self.traits.reads_first and self.stat(key) is not None:
            return False
        # Created objects never change, so caches may keep them for good; pages (`replace`) are asked for each time.
        headers: dict[str, Any] = {"ContentType": content_type, "CacheControl": "max-age=31536000, immutable"}
        if isinstance(data, Path) and (size := _size(data)) > MAX_PUT:
            return multipart.put(self, key, data, size, sha256, headers, progress)
        return self._put(key, data, sha256, {**headers, "IfNoneMatch": "*"}, progress)

    def replace(self, key: str, data: bytes, etag: str | None, *, content_type: str) -> bool:
        if self.traits.reads_first and etag != getattr(self.get(key), "etag", None):
            return False
        headers: dict[str, Any] = {"ContentType": content_type, "CacheControl": "no-cache"}
        # Wheels and records are stored as they are: their size and hash are promised elsewhere.
        packed = _packed(data)
        if packed is not data:
            headers["ContentEncoding"] = "gzip"
        if etag is None:
            return self._put(key, packed, None, {**headers, "IfNoneMatch": "*"})
        tag = etag.strip('"') if self.traits.bare_etags else etag
        return self._put(key, packed, None, {**headers, "IfMatch": tag})

    def likely_etag(self, data: bytes) -> str:
        # S3's tag of what was put in one piece, unless the bucket encrypts with a key of its own
        return f'"{hashlib.md5(_packed(data), usedforsecurity=False).hexdigest()}"'

    def list(self, prefix: str) -> Iterator[str]:
        options: dict[str, Any] = {"Bucket": self.bucket, "Prefix": self.prefix + prefix}
        while True:
            page = self.again(prefix, lambda: self.client.list_objects_v2(**options))
            for entry in page.get("Contents", []):
                yield from_folder(entry["Key"].removeprefix(self.prefix))
            if not page.get("IsTruncated"):
                return
            options["ContinuationToken"] = page["NextContinuationToken"]

    def discard(self, key: str) -> None:
        self.again(key, lambda: self.client.delete_object(Bucket=self.bucket, Key=self.full(check_discardable(key))))

    def examine(self, scratch: str) -> Iterator[Finding]:
        return traits.examine(self, scratch)

    def _put(
        self,
        key: str,
        data: bytes | Path,
        sha256: str | None,
        headers: dict[str, Any],
        progress: Progress | None = None,
    ) -> bool:
        digest, size = _measured(data)
        if sha256 is not None and digest != sha256:
            raise InfrastructureError(f"{data!s:.200} changed while it was being stored")
        tries = 0

        def once() -> bool:
            nonlocal tries
            tries += 1
            try:
                with _opened(data, size, progress or _silent) as body:
                    self.client.put_object(
                        Bucket=self.bucket,
                        Key=self.full(key),
                        Body=cast("IO[bytes]", body),
                        ContentLength=size,
                        # a server that checks it refuses a body that was cut or a file that changed
                        ChecksumSHA256=base64.b64encode(bytes.fromhex(digest)).decode(),
                        Metadata={SHA256: digest},
                        **headers,
                    )
            except ClientError as error:
                # If-Match on nothing may give 404.
                if http_status(error) == 412 or ("IfMatch" in headers and absent(error)):
                    # The first 412 is another's object. After a retry it may be our own, whose answer was lost.
                    return tries > 1 and self.stat(key) == Stat(size, digest)
                raise
            return True

        return self.again(key, once)

    def _unpacked(self, key: str, data: bytes) -> bytes:
        # 31: a gzip header and the largest window. Bounded, since a few bytes may unpack to gigabytes.
        decoder = zlib.decompressobj(wbits=31)
        try:
            plain = decoder.decompress(data, MAX_GET + 1)
        except zlib.error as error:
            raise InfrastructureError(f"{self.url(key)} is declared as gzip-encoded but is not: {error}") from error
        if len(plain) > MAX_GET:
            raise InfrastructureError(f"{self.url(key)} is over {MAX_GET} bytes: no page or record")
        if not decoder.eof:
            raise InfrastructureError(f"{self.url(key)} is cut off")
        return plain


def _measured(data: bytes | Path) -> tuple[str, int]:
    if isinstance(data, bytes):
        return hashlib.sha256(data).hexdigest(), len(data)
    try:
        return sha256_and_size(data)
    except OSError as error:
        raise UsageError(f"cannot read {data}: {error.strerror}") from error


def _packed(data: bytes) -> bytes:
    """As a page is stored: the same bytes give the same bytes."""
    return gzip.compress(data, 6, mtime=0) if len(data) >= GZIP_FROM else data


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _opened(data: bytes | Path, size: int, progress: Progress) -> Piece | io.BytesIO:
    return io.BytesIO(data) if isinstance(data, bytes) else Piece(data, 0, size, progress)


def _silent(_done: int) -> None:
    pass


def _now_sending(request: Any, **_: object) -> None:
    """A body is read to be signed, and read again to be sent: only the second is progress."""
    if isinstance(request.body, Piece):
        request.body.sending = True
