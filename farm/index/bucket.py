"""A bucket of AWS S3, or of a server that speaks its protocol: connection, keys, retries, errors.

botocore would hide its retries, and a retried conditional write gets 412 for its own success; so botocore's are
switched off and all retries are made here, bounded, with full jitter. `farm.index.s3` is the store on top.
"""

import contextlib
import http.client
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import formatdate, parsedate_to_datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

import boto3
from botocore import exceptions as aws
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from farm.base.errors import InfrastructureError, UsageError
from farm.index.layout import to_folder
from farm.index.stores import Stat, check_key

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

TRIES = 8
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
# for uploads in parts, which have no conditions
_PATIENT = Config(retries={"total_max_attempts": TRIES, "mode": "standard"})
# S3's error codes (API reference, "Error responses"); the last set is worth another try, whatever the status.
_CREDENTIAL_CODES = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "AuthFailure"}
_REGION_CODES = {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"}
_RETRY_CODES = {"BadDigest", "IncompleteBody", "RequestTimeout", "SlowDown", "XAmzContentSHA256Mismatch"}
# What a policy calls the operations that have another name there; reads of what is absent need a right of their own.
_RIGHTS = {"ListObjectsV2": "ListBucket"}
_RIGHTS |= dict.fromkeys(("GetObject", "HeadObject"), "GetObject, and s3:ListBucket for what is absent")
_RIGHTS |= dict.fromkeys(("CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"), "PutObject")
_ADDRESS = "is endpoint_url the address of the store's API, not of its console or of a web server?"
_AWS = re.compile(r"\.(amazonaws\.com(\.cn)?|api\.aws)$")
SHA256 = "sha256"  # our user metadata: x-amz-meta-sha256

_T = TypeVar("_T")


class Bucket:
    """Objects below `prefix` in `bucket`.

    Args:
        bucket: The bucket; it must exist.
        prefix: Where the index starts in the bucket; may be empty.
        endpoint_url: The server; None for AWS.
        region: None for the environment's, or us-east-1.
        slash: Pages are at keys that end in a slash (`farm.index.layout.to_folder`).
        encryption: Headers for encryption at rest that each upload carries.
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
        self.prefix = f"{prefix}/" if prefix else ""
        try:
            session = boto3.Session()
            where: dict[str, Any] = {
                "endpoint_url": endpoint_url,
                "region_name": region or session.region_name or "us-east-1",
            }
            self.client: S3Client = session.client("s3", **where, config=_CONFIG)
            self.patient: S3Client = session.client("s3", **where, config=_CONFIG.merge(_PATIENT))
        except (BotoCoreError, ValueError) as error:
            raise UsageError(f"no client for s3://{bucket}: {error}") from error
        # AWS redirects between its regions, which botocore follows. AWS_ENDPOINT_URL may name another store, too.
        if not _AWS.search(urlsplit(self.client.meta.endpoint_url).hostname or ""):
            self.client.meta.events.register("before-parse.s3", self._check_spoken)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url('')!r})"

    def stat(self, key: str) -> Stat | None:
        def once() -> Stat | None:
            try:
                answer = self.client.head_object(Bucket=self.bucket, Key=self.full(key))
            except ClientError as error:
                if absent(error):
                    return None
                raise
            return Stat(answer["ContentLength"], answer["Metadata"].get(SHA256))

        return self.again(key, once)

    def clock(self) -> datetime | None:
        """The `Date` of an answer."""
        ask = partial(self.client.list_objects_v2, Bucket=self.bucket, Prefix=self.prefix, MaxKeys=1)
        date = self.again("", ask)["ResponseMetadata"]["HTTPHeaders"].get("date")
        try:
            return parsedate_to_datetime(date or "").astimezone(UTC)
        except ValueError:
            return None

    def url(self, key: str) -> str:
        place = to_folder(key) if self.slash else key
        return f"{self.client.meta.endpoint_url.rstrip('/')}/{self.bucket}/{quote(self.prefix + place)}"

    def full(self, key: str) -> str:
        """The key in the bucket."""
        check_key(key)
        return self.prefix + (to_folder(key) if self.slash else key)

    def again(self, key: str, once: Callable[[], _T]) -> _T:
        """Calls until it works or fails for good; the last error as one of the farm's."""
        # Around the retries, not inside them: an error of the farm's is never tried again.
        with self.failures(key):
            return Retrying(
                stop=stop_after_attempt(TRIES),
                wait=wait_random_exponential(multiplier=0.1, max=5),
                retry=retry_if_exception(may_pass),
                reraise=True,
            )(once)

    def _check_spoken(self, response_dict: dict[str, Any], operation_model: Any, **_: object) -> None:
        """Refuses answers that no S3 server gives: a web server or a login page, which is none.

        botocore would ask for the region of a bucket that is redirected, be redirected, ask again without end; and it
        reads a web page as a listing without objects.
        """
        status, headers, operation = response_dict["status_code"], response_dict["headers"], operation_model.name
        body = response_dict["body"]  # of an object: a stream
        problem, hint = None, _ADDRESS
        if status in {301, 302, 303, 307, 308} and "x-amz-bucket-region" not in headers:
            target = headers.get("location", "").split("?")[0]
            problem = "the server redirects" + (f" to {target:.200}" if target else "")
            hint = "give endpoint_url the address of the store itself (https:// in place of http://?)"
        elif (
            status == 200
            and (
                (operation in {"GetObject", "HeadObject"} and "etag" not in headers)
                # An error under way may come with status 200; it is tried again.
                or (operation == "ListObjectsV2" and not re.search(rb"ListBucketResult|<Error", body[:1000]))
            )
        ):
            problem = f"what answers there is no S3 store ({headers.get('content-type', 'without a type'):.60})"
        if problem:
            if not isinstance(body, bytes):
                body.close()  # what nobody reads to its end keeps its connection
            raise InfrastructureError(f"{self.url('')}: {problem}", hint=hint)

    @contextlib.contextmanager
    def failures(self, key: str) -> Iterator[None]:
        """Says what failed, without the server's own words: they may quote what was signed."""
        where = self.url(key)
        try:
            yield
        except (aws.NoCredentialsError, aws.PartialCredentialsError) as error:
            raise UsageError(
                f"no credentials for {where}",
                hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
            ) from error
        except (aws.CredentialRetrievalError, aws.SSOError, aws.TokenRetrievalError) as error:
            raise UsageError(
                f"no credentials for {where}: {type(error).__name__}",
                hint="what AWS_PROFILE names gives none (any more); aws sso login, for one, gets new ones",
            ) from error
        except ClientError as error:
            code, status = error.response.get("Error", {}).get("Code", ""), http_status(error)
            if code == "NoSuchBucket":
                raise UsageError(
                    f"there is no bucket {self.bucket!r} at {self.url('')}",
                    hint="create it first (docs/index-stores.md), or correct the name",
                ) from error
            if code in _CREDENTIAL_CODES:
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
            if code in _REGION_CODES:
                headers, details = error.response["ResponseMetadata"].get("HTTPHeaders", {}), error.response["Error"]
                region = headers.get("x-amz-bucket-region") or str(details.get("Region", ""))
                raise UsageError(
                    f"{where}: the bucket is in another region"
                    + (f": {region:.60}" if region else f" than {self.client.meta.region_name} ({code})"),
                    hint=f"end the store's URL with region={region or 'NAME'}; endpoint_url is that region's",
                ) from error
            if code in {"", str(status)}:
                raise _unspoken(where, status) from error
            hint = "the same command can be run again"
            # Also what a quota or a missing right to list gives, where S3 hides whether the object exists.
            if status in {401, 403}:
                right = _RIGHTS.get(error.operation_name, error.operation_name)
                hint = f"do the bucket's policy and quota allow this (s3:{right})? (docs/index-stores.md)"
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


def _unspoken(where: str, status: int) -> InfrastructureError:
    """The error for an answer without any of S3's error codes: something else than a store gave it."""
    phrase = http.client.responses.get(status, "")
    if status in {404, 405, 501}:
        problem, hint = ": what answers there is no S3 store", _ADDRESS
    elif status == 413:
        problem, hint = "", "a proxy before the store bounds what is sent: client_max_body_size 0; (nginx), for one"
    elif status in {401, 403}:
        problem, hint = (
            "",
            "a proxy before the store, or the bucket's policy: do they allow this? (docs/index-stores.md)",
        )
    else:
        problem, hint = "", "the same command can be run again"
    return InfrastructureError(f"{where}: {status} {phrase}".rstrip() + problem, hint=hint)


def http_status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def absent(error: ClientError) -> bool:
    """Only 404 means absent, and a missing bucket is not an empty index."""
    return http_status(error) == 404 and error.response.get("Error", {}).get("Code") != "NoSuchBucket"


def may_pass(error: BaseException) -> bool:
    """May the same call work a moment later? 409 is S3's "another conditional write is under way"."""
    if isinstance(error, ClientError):
        status = http_status(error)
        code = error.response.get("Error", {}).get("Code")
        return status in {408, 409, 429} or status >= 500 or code in _RETRY_CODES
    lost = aws.ConnectionError | aws.HTTPClientError | aws.IncompleteReadError | aws.ResponseStreamingError
    return isinstance(error, lost)
