"""A store in a bucket of AWS S3 or of a server that speaks its protocol.

Conditions are S3's own: `If-None-Match: *` and `If-Match` on PutObject. A server may ignore them, so
`farm.index.probe` must pass before anything is published.

Two traps are handled here. A PUT may succeed and its answer be lost; the retry then gets 412 for our own
object, so after a retry the object is read back and compared. And botocore would hide such retries, so its
own are switched off; all retries are made here, bounded, with full jitter.
"""

import base64
import contextlib
import hashlib
import io
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

import boto3
from botocore import exceptions as aws
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from farm.errors import InfrastructureError, PublishRefusedError, UsageError
from farm.index.folders import from_folder, to_folder
from farm.index.stores import CHUNK, MAX_GET, Stat, Stored, check_key, check_scratch

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

MAX_PUT = 5 * 1024**3
"""Bytes in one PutObject: S3's limit."""

TRIES = 8

_CONFIG = Config(
    s3={"addressing_style": "path"},  # servers other than AWS seldom answer to bucket.host
    retries={"total_max_attempts": 1},
    connect_timeout=10,
    read_timeout=60,
    # the default adds trailers to every upload that several servers refuse, over https only
    request_checksum_calculation="when_required",
    response_checksum_validation="when_required",
)
_AGAIN_CODES = {"BadDigest", "IncompleteBody", "RequestTimeout", "SlowDown", "XAmzContentSHA256Mismatch"}
_SHA256 = "sha256"  # our user metadata: x-amz-meta-sha256

_T = TypeVar("_T")


class S3Store:
    """Objects below `prefix` in `bucket`.

    Args:
        bucket: The bucket; it must exist.
        prefix: Where the index starts in the bucket; may be empty.
        endpoint_url: The server; None for AWS.
        region: None for the environment's, or us-east-1.
        slash: Pages lie at keys that end in a slash (`farm.index.folders`).
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint_url: str | None = None,
        region: str | None = None,
        slash: bool = False,
    ) -> None:
        self.bucket = bucket
        self.slash = slash
        self.prefix = f"{prefix}/" if prefix else ""
        self.proved = False
        session = boto3.Session()
        try:
            self.client: S3Client = session.client(
                "s3",
                endpoint_url=endpoint_url,
                region_name=region or session.region_name or "us-east-1",
                config=_CONFIG,
            )
        except (BotoCoreError, ValueError) as error:
            raise UsageError(f"no client for s3://{bucket}: {error}") from error

    def __repr__(self) -> str:
        return f"S3Store({self.url('')!r})"

    def get(self, key: str) -> Stored | None:
        def once() -> Stored | None:
            try:
                answer = self.client.get_object(Bucket=self.bucket, Key=self._key(key))
            except ClientError as error:
                if _absent(error):
                    return None
                raise
            with contextlib.closing(answer["Body"]) as body:
                if answer["ContentLength"] > MAX_GET:
                    raise InfrastructureError(f"{self.url(key)} is over {MAX_GET} bytes: no page or record")
                return Stored(body.read(), answer["ETag"])

        return self._again(key, once)

    def stat(self, key: str) -> Stat | None:
        def once() -> Stat | None:
            try:
                answer = self.client.head_object(Bucket=self.bucket, Key=self._key(key))
            except ClientError as error:
                if _absent(error):
                    return None
                raise
            return Stat(answer["ContentLength"], answer["Metadata"].get(_SHA256))

        return self._again(key, once)

    def chunks(self, key: str) -> Iterator[bytes]:
        def once() -> Iterator[bytes]:
            answer = self.client.get_object(Bucket=self.bucket, Key=self._key(key))
            return answer["Body"].iter_chunks(CHUNK)

        pieces = self._again(key, once)
        with self._failures(key):
            yield from pieces

    def create(self, key: str, data: bytes | Path, *, content_type: str, sha256: str | None = None) -> bool:
        return self._put(
            key,
            data,
            sha256,
            content_type=content_type,
            cache_control="max-age=31536000, immutable",
            put=partial(self.client.put_object, IfNoneMatch="*"),
        )

    def replace(self, key: str, data: bytes, etag: str | None, *, content_type: str) -> bool:
        return self._put(
            key,
            data,
            None,
            content_type=content_type,
            cache_control="no-cache",
            put=partial(self.client.put_object, IfNoneMatch="*")
            if etag is None
            else partial(self.client.put_object, IfMatch=etag),
        )

    def list(self, prefix: str) -> Iterator[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.prefix + prefix)
        with self._failures(prefix):
            for page in pages:
                for entry in page.get("Contents", []):
                    yield from_folder(entry["Key"].removeprefix(self.prefix))

    def url(self, key: str) -> str:
        place = to_folder(key) if self.slash else key
        return f"{self.client.meta.endpoint_url.rstrip('/')}/{self.bucket}/{quote(self.prefix + place)}"

    def discard(self, key: str) -> None:
        self._again(key, lambda: self.client.delete_object(Bucket=self.bucket, Key=self._key(check_scratch(key))))

    def _key(self, key: str) -> str:
        check_key(key)
        return self.prefix + (to_folder(key) if self.slash else key)

    def _put(
        self,
        key: str,
        data: bytes | Path,
        sha256: str | None,
        *,
        content_type: str,
        cache_control: str,
        put: Callable[..., object],
    ) -> bool:
        size, digest = _measured(data)
        if sha256 is not None and digest != sha256:
            raise InfrastructureError(f"{data!s:.200} changed while it was being stored")
        if size > MAX_PUT:
            raise PublishRefusedError(f"{key} has {size} bytes; one upload to S3 holds {MAX_PUT}")
        tries = 0

        def once() -> bool:
            nonlocal tries
            tries += 1
            try:
                with _opened(data) as body:
                    put(
                        Bucket=self.bucket,
                        Key=self._key(key),
                        Body=body,
                        ContentLength=size,
                        ContentType=content_type,
                        CacheControl=cache_control,
                        # a server that checks it refuses a body that was cut or a file that changed
                        ChecksumSHA256=base64.b64encode(bytes.fromhex(digest)).decode(),
                        Metadata={_SHA256: digest},
                    )
            except ClientError as error:
                if _status(error) == 412 or _absent(error):  # If-Match on nothing may give 404
                    return tries > 1 and self.stat(key) == Stat(size, digest)
                raise
            return True

        return self._again(key, once)

    def _again(self, key: str, once: Callable[[], _T]) -> _T:
        """Calls until it works or fails for good; the last error as one of the farm's."""
        with self._failures(key):
            return Retrying(
                stop=stop_after_attempt(TRIES),
                wait=wait_random_exponential(multiplier=0.1, max=5),
                retry=retry_if_exception(_passing),
                reraise=True,
            )(once)

    @contextlib.contextmanager
    def _failures(self, key: str) -> Iterator[None]:
        """Says what failed, without the server's own words: they may quote what was signed."""
        where = self.url(key)
        try:
            yield
        except (aws.NoCredentialsError, aws.PartialCredentialsError) as error:
            raise UsageError(
                f"no credentials for {where}",
                hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
            ) from error
        except ClientError as error:
            code, status = error.response.get("Error", {}).get("Code", ""), _status(error)
            if code == "NoSuchBucket":
                raise UsageError(f"there is no bucket {self.bucket!r} at {self.url('')}") from error
            hint = "the same command can be run again"
            if status in {401, 403}:
                hint = "check the credentials, the bucket policy and this machine's clock"
            raise InfrastructureError(f"{where}: the store answered {status} {code:.60}", hint=hint) from error
        except BotoCoreError as error:
            raise InfrastructureError(
                f"{where}: {type(error).__name__}", hint="is the endpoint right, and does it answer?"
            ) from error


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _absent(error: ClientError) -> bool:
    """Only 404 means absent, and a missing bucket is no empty index."""
    return _status(error) == 404 and error.response.get("Error", {}).get("Code") != "NoSuchBucket"


def _passing(error: BaseException) -> bool:
    """May the same call work a moment later? 409 is S3's "another conditional write is under way"."""
    if isinstance(error, ClientError):
        status = _status(error)
        code = error.response.get("Error", {}).get("Code")
        return status in {408, 409, 429} or status >= 500 or code in _AGAIN_CODES
    lost = aws.ConnectionError | aws.HTTPClientError | aws.IncompleteReadError | aws.ResponseStreamingError
    return isinstance(error, lost)


def _measured(data: bytes | Path) -> tuple[int, str]:
    if isinstance(data, bytes):
        return len(data), hashlib.sha256(data).hexdigest()
    with _opened(data) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), digest


def _opened(data: bytes | Path) -> io.BufferedReader | io.BytesIO:
    if isinstance(data, bytes):
        return io.BytesIO(data)
    try:
        return data.open("rb")
    except OSError as error:
        raise UsageError(f"cannot read {data}: {error.strerror}") from error
