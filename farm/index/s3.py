"""A store in a bucket of AWS S3 or of a server that speaks its protocol.

Conditions are S3's own: `If-None-Match: *` and `If-Match` on PutObject. A server may ignore them, so the first
publish tries them out (`farm.index.publish.check_store`).

A PUT may succeed and its answer be lost; the retry then gets 412 for our own object, so after a retry the object is
read back and compared. The checksums that botocore adds by itself travel over https as a trailer that Ceph and others
refuse, so only those are sent that S3 always had.
"""

import base64
import contextlib
import hashlib
import io
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from boto3.exceptions import S3UploadFailedError
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import BotoCoreError, ClientError

from farm.base.errors import InfrastructureError, UsageError
from farm.base.hashes import sha256_and_size
from farm.index.bucket import SHA256, TRIES, Bucket, absent, http_status, may_pass
from farm.index.layout import from_folder
from farm.index.stores import CHUNK, MAX_GET, Progress, Stat, Stored, check_discardable

MAX_PUT = 64 * 1024**2
"""Bytes in one PutObject; larger files go in parts, each of which is sent again alone."""

_PARTS = TransferConfig(multipart_threshold=MAX_PUT, multipart_chunksize=MAX_PUT, max_concurrency=4)


class S3Store(Bucket):
    """A store in a bucket; arguments are those of `Bucket`."""

    def __init__(self, *place: str, **options: Any) -> None:
        super().__init__(*place, **options)
        self._bare = False  # Ceph understands a tag in If-Match only without its quotes

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
                return Stored(body.read(), answer["ETag"])

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
        # Created objects never change, so caches may keep them for good; pages (`replace`) are asked for each time.
        headers = {**self.encryption, "ContentType": content_type, "CacheControl": "max-age=31536000, immutable"}
        if isinstance(data, Path) and (size := _size(data)) > MAX_PUT:
            return self._put_parts(key, data, size, sha256, headers, progress or _silent)
        return self._put(key, data, sha256, {**headers, "IfNoneMatch": "*"}, progress)

    def replace(self, key: str, data: bytes, etag: str | None, *, content_type: str) -> bool:
        headers = {**self.encryption, "ContentType": content_type, "CacheControl": "no-cache"}
        if etag is None:
            return self._put(key, data, None, {**headers, "IfNoneMatch": "*"})
        bare = etag.strip('"')
        if self._put(key, data, None, {**headers, "IfMatch": bare if self._bare else etag}):
            return True
        if self._bare or bare == etag or self._tag(key) != etag:
            return False
        # Nobody changed it, so the server did not understand the quotes.
        self._bare = self._put(key, data, None, {**headers, "IfMatch": bare})
        return self._bare

    def _tag(self, key: str) -> str | None:
        def once() -> str | None:
            try:
                return self.client.head_object(Bucket=self.bucket, Key=self.full(key))["ETag"]
            except ClientError as error:
                if absent(error):
                    return None
                raise

        return self.again(key, once)

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

    def _put_parts(
        self, key: str, path: Path, size: int, sha256: str | None, headers: dict[str, Any], progress: Progress
    ) -> bool:
        """Stores a large file in parts.

        Without a condition, which not every server keeps at the end of such an upload: the record of the wheel makes
        sure that the key stands for these bytes alone.
        """
        if self.stat(key) is not None:
            return False
        digest, _ = _measured(path)
        if sha256 not in {None, digest}:
            raise InfrastructureError(f"{path} changed while it was being stored")
        lock, done = threading.Lock(), 0

        def moved(count: int) -> None:
            nonlocal done
            with lock:
                done += count
                progress(done)

        with self.failures(key):
            try:
                self.patient.upload_file(
                    str(path),
                    self.bucket,
                    self.full(key),
                    ExtraArgs={**headers, "Metadata": {SHA256: digest}},
                    Callback=moved,
                    Config=_PARTS,
                )
            except S3UploadFailedError as error:  # it hides which of S3's errors it was
                raise error.__context__ or error from error
        if self.stat(key) != Stat(size, digest):
            raise InfrastructureError(f"{self.url(key)} was stored in parts and does not hold what was sent")
        return True

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
                with io.BytesIO(data) if isinstance(data, bytes) else data.open("rb") as body:
                    self.client.put_object(
                        Bucket=self.bucket,
                        Key=self.full(key),
                        Body=body,
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
            if progress is not None:
                progress(size)
            return True

        return self.again(key, once)


def _measured(data: bytes | Path) -> tuple[str, int]:
    if isinstance(data, bytes):
        return hashlib.sha256(data).hexdigest(), len(data)
    try:
        return sha256_and_size(data)
    except OSError as error:
        raise UsageError(f"cannot read {data}: {error.strerror}") from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _silent(_done: int) -> None:
    pass
