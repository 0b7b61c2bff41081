"""A store in a bucket of AWS S3 or of a server that speaks its protocol.

Conditions are S3's own: `If-None-Match: *` and `If-Match` on PutObject. A server may ignore them, so
`farm.index.probe` must pass before anything is published.

Three traps are handled here. A PUT may succeed and its answer be lost; the retry then gets 412 for our own
object, so after a retry the object is read back and compared. And botocore would hide such retries, so its
own are switched off; all retries are made here, bounded, with full jitter. And the checksums that botocore adds by
itself travel over https as a trailer that Ceph and others refuse, so only those are sent that S3 always had.

Pages grow with the index, so they are stored gzip-encoded; pip, uv and browsers ask for that and decode it.
"""

import base64
import contextlib
import gzip
import hashlib
import io
import zlib
from collections.abc import Callable, Iterator
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import boto3
from botocore import exceptions as aws
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from farm.errors import InfrastructureError, UsageError
from farm.index import multipart, traits
from farm.index.folders import from_folder, to_folder
from farm.index.pieces import Piece
from farm.index.stores import (
    CHUNK,
    MAX_GET,
    Finding,
    Progress,
    Quirks,
    Stat,
    Stored,
    check_key,
    check_scratch,
)

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

MAX_PUT = 512 * 1024**2
"""Bytes in one PutObject; larger files go in parts. S3's limit is 5 GiB, but what is sent again is sent whole."""

GZIP_FROM = 1024
"""Bytes from which on a page is stored gzip-encoded."""

TRIES = 8

_CONFIG = Config(
    s3={"addressing_style": "path"},  # servers other than AWS seldom answer to bucket.host
    retries={"total_max_attempts": 1},
    max_pool_connections=16,  # the probe's writers
    connect_timeout=10,
    read_timeout=60,
    # the default adds trailers to every upload that several servers refuse, over https only
    request_checksum_calculation="when_required",
    response_checksum_validation="when_required",
)
_WRONG_KEYS = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "AuthFailure"}
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
        self.quirks = Quirks()
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
        self.client.meta.events.register("before-send.s3", _now_sending)

    def __repr__(self) -> str:
        return f"S3Store({self.url('')!r})"

    def get(self, key: str) -> Stored | None:
        def once() -> Stored | None:
            try:
                answer = self.client.get_object(Bucket=self.bucket, Key=self.full(key))
            except ClientError as error:
                if _absent(error):
                    return None
                raise
            with contextlib.closing(answer["Body"]) as body:
                if answer["ContentLength"] > MAX_GET:
                    raise InfrastructureError(f"{self.url(key)} is over {MAX_GET} bytes: no page or record")
                data = body.read()
            if answer.get("ContentEncoding") == "gzip":
                data = self._unpacked(key, data)
            return Stored(data, answer["ETag"])

        return self.again(key, once)

    def stat(self, key: str) -> Stat | None:
        def once() -> Stat | None:
            try:
                answer = self.client.head_object(Bucket=self.bucket, Key=self.full(key))
            except ClientError as error:
                if _absent(error):
                    return None
                raise
            return Stat(answer["ContentLength"], answer["Metadata"].get(_SHA256))

        return self.again(key, once)

    def chunks(self, key: str) -> Iterator[bytes]:
        def once() -> Iterator[bytes]:
            answer = self.client.get_object(Bucket=self.bucket, Key=self.full(key))
            return answer["Body"].iter_chunks(CHUNK)

        pieces = self.again(key, once)
        with self._failures(key):
            yield from pieces

    def create(
        self,
        key: str,
        data: bytes | Path,
        *,
        content_type: str,
        sha256: str | None = None,
        progress: Progress | None = None,
    ) -> bool:
        if self.quirks.reads_first and self.stat(key) is not None:
            return False
        headers: dict[str, Any] = {"ContentType": content_type, "CacheControl": "max-age=31536000, immutable"}
        if isinstance(data, Path) and (size := _size(data)) > MAX_PUT:
            return multipart.put(self, key, data, size, sha256, headers, progress)
        put = partial(self.client.put_object, IfNoneMatch="*", **headers)
        return self._put(key, data, sha256, put, progress)

    def replace(self, key: str, data: bytes, etag: str | None, *, content_type: str) -> bool:
        if self.quirks.reads_first and etag != getattr(self.get(key), "etag", None):
            return False
        headers: dict[str, Any] = {"ContentType": content_type, "CacheControl": "no-cache"}
        packed = _packed(data)
        if packed is not data:
            headers["ContentEncoding"] = "gzip"
        if etag is None:
            return self._put(key, packed, None, partial(self.client.put_object, IfNoneMatch="*", **headers))
        tag = etag.strip('"') if self.quirks.bare_etags else etag
        return self._put(key, packed, None, partial(self.client.put_object, IfMatch=tag, **headers))

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

    def url(self, key: str) -> str:
        place = to_folder(key) if self.slash else key
        return f"{self.client.meta.endpoint_url.rstrip('/')}/{self.bucket}/{quote(self.prefix + place)}"

    def discard(self, key: str) -> None:
        self.again(key, lambda: self.client.delete_object(Bucket=self.bucket, Key=self.full(check_scratch(key))))

    def examine(self, scratch: str) -> Iterator[Finding]:
        return traits.examine(self, scratch)

    def full(self, key: str) -> str:
        """The key in the bucket."""
        check_key(key)
        return self.prefix + (to_folder(key) if self.slash else key)

    def _put(
        self,
        key: str,
        data: bytes | Path,
        sha256: str | None,
        put: Callable[..., object],
        progress: Progress | None = None,
    ) -> bool:
        size, digest = _measured(data)
        if sha256 is not None and digest != sha256:
            raise InfrastructureError(f"{data!s:.200} changed while it was being stored")
        tries = 0

        def once() -> bool:
            nonlocal tries
            tries += 1
            try:
                with _opened(data, size, progress or _silent) as body:
                    put(
                        Bucket=self.bucket,
                        Key=self.full(key),
                        Body=body,
                        ContentLength=size,
                        # a server that checks it refuses a body that was cut or a file that changed
                        ChecksumSHA256=base64.b64encode(bytes.fromhex(digest)).decode(),
                        Metadata={_SHA256: digest},
                    )
            except ClientError as error:
                if _status(error) == 412 or _absent(error):  # If-Match on nothing may give 404
                    return tries > 1 and self.stat(key) == Stat(size, digest)
                raise
            return True

        return self.again(key, once)

    def _unpacked(self, key: str, data: bytes) -> bytes:
        decoder = zlib.decompressobj(wbits=31)
        try:
            plain = decoder.decompress(data, MAX_GET + 1)
        except zlib.error as error:
            raise InfrastructureError(f"{self.url(key)} says that it is gzip-encoded and is not: {error}") from error
        if len(plain) > MAX_GET:
            raise InfrastructureError(f"{self.url(key)} is over {MAX_GET} bytes: no page or record")
        if not decoder.eof:
            raise InfrastructureError(f"{self.url(key)} is cut off")
        return plain

    def again(self, key: str, once: Callable[[], _T]) -> _T:
        """Calls until it works or fails for good; the last error as one of the farm's."""
        with self._failures(key):
            return self.raw(once)

    def raw(self, once: Callable[[], _T]) -> _T:
        """Calls until it works or fails for good; the last error as botocore raised it."""
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
                raise UsageError(
                    f"there is no bucket {self.bucket!r} at {self.url('')}",
                    hint="create it first (docs/index-stores.md), or correct the name",
                ) from error
            if code in _WRONG_KEYS:
                raise UsageError(
                    f"{where}: the store does not accept these credentials ({code})",
                    hint="check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN or AWS_PROFILE",
                ) from error
            if code == "RequestTimeTooSkewed":
                theirs = error.response["ResponseMetadata"].get("HTTPHeaders", {}).get("date", "another time")
                raise InfrastructureError(
                    f"{where}: this machine's clock is wrong: it says {formatdate(usegmt=True)}, the store {theirs}",
                    hint="set the clock (timedatectl set-ntp true) and run it again",
                ) from error
            hint = "the same command can be run again"
            if status in {401, 403}:
                hint = "do the bucket's policy and quota allow this? (docs/index-stores.md)"
            raise InfrastructureError(f"{where}: the store answered {status} {code:.60}", hint=hint) from error
        except aws.SSLError as error:
            raise InfrastructureError(
                f"{where}: SSLError: the certificate is not trusted, or this is not https",
                hint="a private authority's certificate is named by AWS_CA_BUNDLE",
            ) from error
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
    try:
        with data.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return file.tell(), digest
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
