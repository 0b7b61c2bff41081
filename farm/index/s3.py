"""A store in a bucket of AWS S3 or of a server that speaks its protocol.

Conditions are S3's own: `If-None-Match: *` and `If-Match` on PutObject. A server may ignore them,
so the first publish tries them out (`farm.index.publish.check_store`).

botocore would hide its retries, and a retried conditional write gets 412 for its own success; so
requests with conditions are retried here, bounded, with full jitter, and after a retry the object
is read back and compared. The checksums that botocore adds by itself travel over https as a trailer
that Ceph and others refuse, so only those are sent that S3 always had.
"""

import base64
import contextlib
import hashlib
import http.client
import io
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

import boto3
from boto3.exceptions import S3UploadFailedError
from boto3.s3.transfer import TransferConfig
from botocore import exceptions as aws
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential
from urllib3.exceptions import HTTPError
from urllib3.exceptions import TimeoutError as Urllib3TimeoutError

from farm.base.errors import FarmError, InfrastructureError, UsageError
from farm.base.hashes import sha256_and_size
from farm.index.budget import Budget
from farm.index.layout import from_folder, to_folder
from farm.index.stores import (
    CHUNK,
    MAX_GET,
    Progress,
    Stat,
    Stored,
    check_discardable,
    check_key,
)

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

TRIES = 8
MAX_PUT = 64 * 1024**2
"""Bytes in one PutObject; larger files go in parts, each of which is sent again alone."""
PART = 8 * 1024**2
PARTS_AT_ONCE = 4
"""An object of any size is read in parts of so many bytes, so many at a time."""
MAX_LISTINGS = 100_000
"""Pages of a listing, of 1,000 keys each."""
SHA256 = "sha256"  # our user metadata: x-amz-meta-sha256
_PARTS = TransferConfig(multipart_threshold=MAX_PUT, multipart_chunksize=MAX_PUT, max_concurrency=4)
_CONFIG = Config(
    s3={"addressing_style": "path"},  # servers other than AWS seldom answer to bucket.host
    retries={"total_max_attempts": 1},
    max_pool_connections=16,  # readers side by side
    connect_timeout=10,
    read_timeout=60,
    # the default adds trailers to every upload that several servers refuse, over https only
    request_checksum_calculation="when_required",
    response_checksum_validation="when_required",
)
# for transfers in parts, which have no conditions
_PATIENT = Config(retries={"total_max_attempts": TRIES, "mode": "standard"})
_AWS = re.compile(r"\.(amazonaws\.com(\.cn)?|api\.aws)$")
# S3's error codes (API reference, "Error responses") that are worth another try, whatever the
# status.
_RETRY_CODES = {
    "BadDigest",
    "IncompleteBody",
    "RequestTimeout",
    "SlowDown",
    "XAmzContentSHA256Mismatch",
}
_CREDENTIALS = (
    "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN or AWS_PROFILE; or aws "
    "sso login"
)
_REGION = (
    "the bucket is in another region: end the store's URL with region={}; endpoint_url is "
    "that region's"
)
_MISTAKES = {
    "NoSuchBucket": "there is no such bucket: create it first (docs/how-to/index-stores.md), or "
    "correct the name",
    **dict.fromkeys(
        (
            "InvalidAccessKeyId",
            "SignatureDoesNotMatch",
            "ExpiredToken",
            "InvalidToken",
            "AuthFailure",
        ),
        _CREDENTIALS,
    ),
    **dict.fromkeys(
        ("AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"),
        _REGION,
    ),
}
"""Codes of mistakes in the configuration, and what to do."""
_NO_CREDENTIALS = (
    aws.NoCredentialsError,
    aws.PartialCredentialsError,
    aws.CredentialRetrievalError,
    aws.SSOError,
    aws.TokenRetrievalError,
)
_ADDRESS = (
    "is endpoint_url the address of the store's API (https:// in place of http://?), not of a "
    "console or web server?"
)
_POLICY = (
    "do the bucket's policy and quota, or a proxy before the store, allow this (s3:{})? "
    "(docs/how-to/index-stores.md)"
)
_TODO = {
    **dict.fromkeys((404, 405, 501), _ADDRESS),
    **dict.fromkeys((401, 403), _POLICY),
    413: "a proxy before the store bounds what is sent: client_max_body_size 0; (nginx), for one",
}
"""Hints for other answers, by status."""
# What a policy calls the operations that have another name there; reads of what is absent need a
# right of their own.
_RIGHTS = {"ListObjectsV2": "ListBucket"}
_RIGHTS |= dict.fromkeys(
    ("GetObject", "HeadObject"), "GetObject, and s3:ListBucket for what is absent"
)
_RIGHTS |= dict.fromkeys(
    ("CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"), "PutObject"
)

_T = TypeVar("_T")


class _Body(io.BytesIO):
    """The bytes of an answer, with the methods of urllib3 that botocore calls."""

    def stream(self, *_: object, **__: object) -> Iterator[bytes]:
        yield self.read()


class _BoundedSession:
    """Reads each answer within a budget; botocore itself reads listings of any length."""

    def __init__(self, session: Any) -> None:
        self.session = session

    def send(self, request: Any) -> AWSResponse:
        request.stream_output = True
        response = self.session.send(request)
        url = request.url.split("?")[0]
        length = response.headers.get("content-length")
        if length is not None and not re.fullmatch(r"[0-9]{1,18}", length):
            response.raw.close()
            raise InfrastructureError(
                f"{url}: no S3 store answers there (Content-Length: {length:.40})", hint=_ADDRESS
            )
        data = io.BytesIO()
        spent = Budget(url, MAX_GET)
        try:
            with contextlib.closing(response.raw):
                while chunk := response.raw.read1(CHUNK):
                    spent.spend(len(chunk))
                    data.write(chunk)
        except Urllib3TimeoutError as error:
            raise aws.ReadTimeoutError(endpoint_url=url, error=error) from error
        except (HTTPError, OSError) as error:
            raise aws.ConnectionClosedError(error=error, endpoint_url=url) from error
        return AWSResponse(
            response.url, response.status_code, response.headers, _Body(data.getvalue())
        )

    def close(self) -> None:
        self.session.close()


def _bound_answers(client: Any) -> None:
    # botocore has no public place for this; its own tests replace the session here too.
    endpoint = client._endpoint
    endpoint.http_session = _BoundedSession(endpoint.http_session)


class S3Store:
    """Objects below `prefix` in `bucket`, which must exist.

    `endpoint_url`: the server; None for AWS. `region`: None for the environment's, or us-east-1.
    `slash`: pages are at keys that end in a slash (`farm.index.layout.to_folder`). `encryption`:
    headers that each upload carries.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint_url: str | None = None,
        region: str | None = None,
        slash: bool = False,
        encryption: Mapping[str, str] | None = None,
    ) -> None:
        self.bucket = bucket
        self.slash = slash
        self.encryption: dict[str, Any] = dict(encryption or {})
        self.prefix = ""
        if prefix:
            self.prefix = f"{prefix}/"
        self._bare = False  # Ceph understands a tag in If-Match only without its quotes
        try:
            session = boto3.Session()
            where: dict[str, Any] = {
                "endpoint_url": endpoint_url,
                "region_name": region or session.region_name or "us-east-1",
            }
            self.client: S3Client = session.client("s3", **where, config=_CONFIG)
            _bound_answers(self.client)
            patient = _CONFIG.merge(_PATIENT)
            self.patient: S3Client = session.client("s3", **where, config=patient)
        except (BotoCoreError, ValueError) as error:
            raise UsageError(f"no client for s3://{bucket}: {error}") from error
        # AWS redirects between its regions, which botocore follows. AWS_ENDPOINT_URL may name
        # another store, too.
        if not _AWS.search(urlsplit(self.client.meta.endpoint_url).hostname or ""):
            self.client.meta.events.register("before-parse.s3", self._check_spoken)

    def __repr__(self) -> str:
        return f"S3Store({self.url('')!r})"

    def get(self, key: str) -> Stored | None:
        def once() -> Stored:
            answer = self.client.get_object(Bucket=self.bucket, Key=self.full(key))
            return Stored(answer["Body"].read(), answer["ETag"])

        return self._if_there(key, once)

    def stat(self, key: str) -> Stat | None:
        answer = self._head(key)
        if answer is None:
            return None
        return Stat(self._length(key, answer), answer["Metadata"].get(SHA256))

    def _length(self, key: str, answer: Mapping[str, Any]) -> int:
        if "ContentLength" not in answer:
            raise InfrastructureError(
                f"{self.url(key)}: the store does not say how long it is (Content-Length)",
                hint=_ADDRESS,
            )
        return int(answer["ContentLength"])

    def _head(self, key: str) -> Mapping[str, Any] | None:
        return self._if_there(
            key, lambda: self.client.head_object(Bucket=self.bucket, Key=self.full(key))
        )

    def _if_there(self, key: str, ask: Callable[[], _T]) -> _T | None:
        def once() -> _T | None:
            try:
                return ask()
            except ClientError as error:
                if _absent(error):
                    return None
                raise

        return self.again(key, once)

    def chunks(self, key: str) -> Iterator[bytes]:
        head = self._head(key)
        if head is None:
            raise InfrastructureError(f"{self.url(key)} is not there")
        size = self._length(key, head)
        starts = deque(range(0, size, PART))
        parts = deque[Future[bytes]]()
        with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
            while starts or parts:
                while starts and len(parts) < PARTS_AT_ONCE:
                    start = starts.popleft()
                    end = min(start + PART, size)
                    parts.append(pool.submit(self._part, key, start, end))
                yield parts.popleft().result()

    def _part(self, key: str, start: int, end: int) -> bytes:
        """The bytes from `start` up to `end`; a read that is cut off is repeated."""

        def once() -> bytes:
            answer = self.client.get_object(
                Bucket=self.bucket, Key=self.full(key), Range=f"bytes={start}-{end - 1}"
            )
            return answer["Body"].read()

        data = self.again(key, once)
        if len(data) != end - start:
            raise InfrastructureError(
                f"{self.url(key)}: {len(data)} bytes instead of {end - start} (Range)",
                hint="a proxy before the store may cut answers, or the object changed",
            )
        return data

    def create(
        self,
        key: str,
        data: bytes | Path,
        *,
        content_type: str,
        sha256: str | None = None,
        progress: Progress | None = None,
    ) -> bool:
        # Created objects never change, so caches may keep them for good; pages (`replace`) are
        # asked for each time.
        headers = {
            **self.encryption,
            "ContentType": content_type,
            "CacheControl": "max-age=31536000, immutable",
        }
        digest, size = _measured(data)
        if sha256 not in {None, digest}:
            raise InfrastructureError(f"{data!s:.200} changed while it was being stored")
        if isinstance(data, Path) and size > MAX_PUT:
            return self._put_parts(
                key, data, Stat(size, digest), headers, progress or (lambda _done: None)
            )
        created = self._put(
            key, data, Stat(size, digest), {**headers, "IfNoneMatch": "*"}, progress
        )
        if not created and self.stat(key) is None:
            raise InfrastructureError(
                f"{self.url(key)} was refused as existing (412) and is not there",
                hint="a proxy before the store may have answered; the same command can be run "
                "again",
            )
        return created

    def replace(self, key: str, data: bytes, etag: str | None, *, content_type: str) -> bool:
        headers = {**self.encryption, "ContentType": content_type, "CacheControl": "no-cache"}
        stat = Stat(len(data), hashlib.sha256(data).hexdigest())
        if etag is None:
            return self._put(key, data, stat, {**headers, "IfNoneMatch": "*"})
        bare = etag.strip('"')
        if self._bare:
            return self._put(key, data, stat, {**headers, "IfMatch": bare})
        if self._put(key, data, stat, {**headers, "IfMatch": etag}):
            return True
        if bare == etag:
            return False
        head = self._head(key)
        if head is None or head["ETag"] != etag:
            return False
        # Nobody changed it, so the server did not understand the quotes.
        self._bare = self._put(key, data, stat, {**headers, "IfMatch": bare})
        return self._bare

    def list(self, prefix: str) -> Iterator[str]:
        options: dict[str, Any] = {"Bucket": self.bucket, "Prefix": self.prefix + prefix}
        tokens = set[str]()
        while True:
            page = self.again(prefix, lambda: self.client.list_objects_v2(**options))
            for entry in page.get("Contents", []):
                yield from_folder(entry["Key"].removeprefix(self.prefix))
            if not page.get("IsTruncated"):
                return
            token = page.get("NextContinuationToken", "")
            if not token or token in tokens or len(tokens) >= MAX_LISTINGS:
                raise InfrastructureError(
                    f"{self.url(prefix)}: the store's listing does not end "
                    f"({len(tokens) + 1} pages, and more with a token of before)",
                    hint=_ADDRESS,
                )
            tokens.add(token)
            options["ContinuationToken"] = token

    def clock(self) -> datetime | None:
        """The `Date` of an answer."""
        ask = partial(
            self.client.list_objects_v2, Bucket=self.bucket, Prefix=self.prefix, MaxKeys=1
        )
        date = self.again("", ask)["ResponseMetadata"]["HTTPHeaders"].get("date")
        try:
            return parsedate_to_datetime(date or "").astimezone(UTC)
        except ValueError:
            return None

    def url(self, key: str) -> str:
        endpoint = self.client.meta.endpoint_url.rstrip("/")
        return f"{endpoint}/{self.bucket}/{quote(self._place(key))}"

    def full(self, key: str) -> str:
        """The key in the bucket."""
        check_key(key)
        return self._place(key)

    def _place(self, key: str) -> str:
        if self.slash:
            key = to_folder(key)
        return self.prefix + key

    def discard(self, key: str) -> None:
        self.again(
            key,
            lambda: self.client.delete_object(
                Bucket=self.bucket, Key=self.full(check_discardable(key))
            ),
        )

    def _put_parts(
        self, key: str, path: Path, what: Stat, headers: dict[str, Any], progress: Progress
    ) -> bool:
        """Stores a large file in parts.

        Without a condition, which not every server keeps at the end of such an upload: the record
        of the wheel makes sure that the key stands for these bytes alone.
        """
        if self.stat(key) is not None:
            return False
        lock = threading.Lock()
        done = 0

        def moved(count: int) -> None:
            nonlocal done
            with lock:
                done += count
                progress(done)

        extra = {**headers, "Metadata": {SHA256: what.sha256}}
        with self.failures(key):
            try:
                self.patient.upload_file(
                    str(path), self.bucket, self.full(key), extra, moved, _PARTS
                )
            except S3UploadFailedError as error:  # it hides which of S3's errors it was
                raise error.__context__ or error from error
        if self.stat(key) != what:
            raise InfrastructureError(
                f"{self.url(key)} was stored in parts and does not hold what was sent"
            )
        return True

    def _put(
        self,
        key: str,
        data: bytes | Path,
        what: Stat,
        headers: dict[str, Any],
        progress: Progress | None = None,
    ) -> bool:
        digest = what.sha256 or ""
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
                        ContentLength=what.size,
                        # a server that checks it refuses a body that was cut or a file that changed
                        ChecksumSHA256=base64.b64encode(bytes.fromhex(digest)).decode(),
                        Metadata={SHA256: digest},
                        **headers,
                    )
            except ClientError as error:
                # If-Match on nothing may give 404.
                if _status(error) == 412 or ("IfMatch" in headers and _absent(error)):
                    # The first 412 is another's object. After a retry it may be our own, whose
                    # answer was lost.
                    return tries > 1 and self.stat(key) == what
                raise
            if progress is not None:
                progress(what.size)
            return True

        return self.again(key, once)

    def again(self, key: str, once: Callable[[], _T]) -> _T:
        """Calls until it works or fails for good; the last error as one of the farm's."""
        # Around the retries, not inside them: an error of the farm's is never tried again.
        with self.failures(key):
            return Retrying(
                stop=stop_after_attempt(TRIES),
                wait=wait_random_exponential(multiplier=0.1, max=5),
                retry=retry_if_exception(_may_pass),
                reraise=True,
            )(once)

    def _check_spoken(
        self, response_dict: dict[str, Any], operation_model: Any, **_: object
    ) -> None:
        """Refuses answers that no S3 server gives: a web server or a login page, which is none.

        botocore would ask for the region of a bucket that is redirected, be redirected, ask again
        without end; and it reads a web page as a listing without objects.
        """
        status = response_dict["status_code"]
        headers = response_dict["headers"]
        operation = operation_model.name
        body = response_dict["body"]  # of an object: a stream
        wrong = status in {301, 302, 303, 307, 308} and "x-amz-bucket-region" not in headers
        if status == 200 and operation in {"GetObject", "HeadObject"}:
            wrong = "etag" not in headers
        if status == 200 and operation == "ListObjectsV2":
            # An error under way may come with status 200; it is tried again.
            wrong = not re.search(rb"ListBucketResult|<Error", body[:1000])
        if wrong:
            if not isinstance(body, bytes):
                body.close()  # what nobody reads to its end keeps its connection
            place = headers.get("location", headers.get("content-type", "")).split("?")[0]
            raise InfrastructureError(
                f"{self.url('')}: no S3 store answers there ({status} {place:.200})", hint=_ADDRESS
            )

    @contextlib.contextmanager
    def failures(self, key: str) -> Iterator[None]:
        """Says what failed, without the server's own words: they may quote what was signed."""
        where = self.url(key)
        try:
            yield
        except _NO_CREDENTIALS as error:
            raise UsageError(
                f"no credentials for {where}: {type(error).__name__}", hint=_CREDENTIALS
            ) from error
        except ClientError as error:
            raise _explained(where, error) from error
        except aws.SSLError as error:
            raise InfrastructureError(
                f"{where}: SSLError: the certificate is not trusted, or this is not https",
                hint="a private authority's certificate is named by AWS_CA_BUNDLE",
            ) from error
        except BotoCoreError as error:
            hint = "is the endpoint right, and does it answer?"
            raise InfrastructureError(f"{where}: {type(error).__name__}", hint=hint) from error


def _explained(where: str, error: ClientError) -> FarmError:
    code = error.response.get("Error", {}).get("Code", "")
    status = _status(error)
    headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    if code in {"", str(status)}:  # something else than a store gave it
        code = http.client.responses.get(status, "")
    answer_text = f"{where}: the store answered {status} {code:.60}"
    if code in _MISTAKES:
        region = headers.get("x-amz-bucket-region") or str(
            error.response["Error"].get("Region", "NAME")
        )
        return UsageError(answer_text, hint=_MISTAKES[code].format(f"{region:.60}"))
    if code == "RequestTimeTooSkewed":
        store_time = headers.get("date", "not said")
        hint = (
            f"this machine's clock is wrong (the store's: {store_time}): timedatectl set-ntp true"
        )
        return InfrastructureError(answer_text, hint=hint)
    right = _RIGHTS.get(error.operation_name, error.operation_name)
    return InfrastructureError(
        answer_text, hint=_TODO.get(status, "the same command can be run again").format(right)
    )


def _measured(data: bytes | Path) -> tuple[str, int]:
    if isinstance(data, bytes):
        return hashlib.sha256(data).hexdigest(), len(data)
    try:
        return sha256_and_size(data)
    except OSError as error:
        raise UsageError(f"cannot read {data}: {error.strerror}") from error


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _absent(error: ClientError) -> bool:
    """Only 404 means absent, and a missing bucket is not an empty index."""
    return _status(error) == 404 and _code(error) != "NoSuchBucket"


def _code(error: ClientError) -> str | None:
    return error.response.get("Error", {}).get("Code")


def _may_pass(error: BaseException) -> bool:
    """May the same call work a moment later? 409 is S3's "another conditional write is under
    way".
    """
    if isinstance(error, ClientError):
        status = _status(error)
        if status in {408, 409, 429} or status >= 500:
            return True
        return _code(error) in _RETRY_CODES
    transient = (
        aws.ConnectionError
        | aws.HTTPClientError
        | aws.IncompleteReadError
        | aws.ResponseStreamingError
    )
    return isinstance(error, transient)
