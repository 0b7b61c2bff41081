"""Large files go to S3 in parts, and what a killed publisher left is used by the next one.

Conditions on the completion of such an upload are not kept by every server, so the caller must have made sure by
other means that a key stands for these bytes alone: the record of the wheel does. What is asked of a server is
only what S3 has had from the beginning: parts with a Content-MD5, and a list of unfinished uploads.
"""

import base64
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

from botocore.exceptions import ClientError

from farm.base.errors import InfrastructureError
from farm.index.bucket import Bucket
from farm.index.pieces import Meter, Piece, Span, spans
from farm.index.stores import Progress, Stat

PART = 64 * 1024**2
"""Bytes in a part; more where a file would have over `MAX_PARTS`."""

MAX_PARTS = 10_000
"""S3's limit."""

SENDERS = 4
"""Parts on their way at once."""

STARTS = 3
"""How often an upload that the server forgot is begun again."""


class _ForgottenError(Exception):
    """The upload is not there any more: another publisher completed or aborted it."""


def put(
    store: Bucket,
    key: str,
    path: Path,
    size: int,
    sha256: str | None,
    headers: dict[str, Any],
    progress: Progress | None,
) -> bool:
    """Stores a file in parts, continuing an unfinished upload of the same bytes.

    Args:
        store: Where to.
        key: Where.
        path: The file.
        size: Its size in bytes.
        sha256: What it must hash to; None for whatever it hashes to.
        headers: What `create_multipart_upload` gets beside bucket, key and metadata.
        progress: Gets how many bytes are stored.

    Returns:
        False when an object was there; nothing changed then.

    Raises:
        InfrastructureError: The file changed, or the server failed; what was sent is used by the next call.
    """
    # Before hashing gigabytes. The completion asks again, since another publisher may be at it.
    if store.stat(key) is not None:
        return False
    parts, digest = spans(path, max(PART, -(-size // MAX_PARTS)))
    if sha256 not in {None, digest}:
        raise InfrastructureError(f"{path} changed while it was being stored")
    wanted = Stat(size, digest)
    for _ in range(STARTS):
        upload, sent = _unfinished(store, key, parts) or (_begin(store, key, digest, headers), {})
        try:
            etags = sent | _send(
                store, key, upload, path, [part for part in parts if part.number not in sent], progress
            )
            done = _complete(store, key, upload, etags, wanted)
        # Another publisher of the same wheel completed or aborted it: what is there now decides.
        except _ForgottenError:
            if store.stat(key) is None:
                continue
            return _holds(store, key, wanted)
        if done and not _holds(store, key, wanted):
            raise InfrastructureError(f"{store.url(key)} was stored in parts and does not hold what was sent")
        return done
    raise InfrastructureError(f"{store.url(key)}: the store lost the upload {STARTS} times", hint="run it again")


def _begin(store: Bucket, key: str, sha256: str, headers: dict[str, Any]) -> str:
    answer = store.again(
        key,
        lambda: store.client.create_multipart_upload(
            Bucket=store.bucket, Key=store.full(key), Metadata={"sha256": sha256}, **headers
        ),
    )
    return answer["UploadId"]


def _unfinished(store: Bucket, key: str, parts: list[Span]) -> tuple[str, dict[int, str]] | None:
    """An upload of these very bytes that somebody began, and the ETags of its parts by number.

    Uploads of the key with other parts are aborted: the key stands for these bytes alone.
    """
    full = store.full(key)
    try:
        answer = store.raw(
            lambda: store.client.list_multipart_uploads(Bucket=store.bucket, Prefix=full, MaxUploads=100)
        )
    except ClientError:
        return None  # not every policy and server lets one look; then each call begins anew
    for upload in answer.get("Uploads", []):
        if upload["Key"] != full:
            continue
        sent = _sent(store, full, upload["UploadId"])
        if sent is None:
            continue
        ours = {part.number: part.md5.hex() for part in parts}
        # An S3 part's ETag is the MD5 of its bytes; with encryption by a customer's key it is not, and all is sent
        # anew.
        if all(ours.get(number) == etag.strip('"') for number, etag in sent.items()):
            return upload["UploadId"], sent
        store.again(key, partial(_abort, store, full, upload["UploadId"]))
    return None


def _sent(store: Bucket, full: str, upload: str) -> dict[int, str] | None:
    found: dict[int, str] = {}
    try:
        pages = store.client.get_paginator("list_parts").paginate(Bucket=store.bucket, Key=full, UploadId=upload)
        for page in pages:
            found |= {part["PartNumber"]: part["ETag"] for part in page.get("Parts", [])}
    except ClientError:
        return None  # completed or aborted a moment ago
    return found


def _abort(store: Bucket, full: str, upload: str) -> None:
    try:
        store.client.abort_multipart_upload(Bucket=store.bucket, Key=full, UploadId=upload)
    except ClientError as error:
        if not _forgotten(error):
            raise


def _send(
    store: Bucket, key: str, upload: str, path: Path, parts: Iterable[Span], progress: Progress | None
) -> dict[int, str]:
    meter = Meter(progress)

    def send(part: Span) -> tuple[int, str]:
        def once() -> str:
            with Piece(path, part.start, part.length, meter.part(part.number)) as body:
                try:
                    answer = store.client.upload_part(
                        Bucket=store.bucket,
                        Key=store.full(key),
                        UploadId=upload,
                        PartNumber=part.number,
                        Body=cast("IO[bytes]", body),
                        ContentLength=part.length,
                        ContentMD5=base64.b64encode(part.md5).decode(),
                    )
                except ClientError as error:
                    if _forgotten(error):
                        raise _ForgottenError from error
                    raise
                return answer["ETag"]

        return part.number, store.again(key, once)

    with ThreadPoolExecutor(SENDERS) as pool:
        futures = [pool.submit(send, part) for part in parts]
        try:
            return dict(future.result() for future in futures)
        finally:
            for future in futures:
                # After a failure: parts that have not started are not sent.
                future.cancel()


def _complete(store: Bucket, key: str, upload: str, etags: dict[int, str], wanted: Stat) -> bool:
    def once() -> bool:
        try:
            store.client.complete_multipart_upload(
                Bucket=store.bucket,
                Key=store.full(key),
                UploadId=upload,
                MultipartUpload={
                    "Parts": [{"PartNumber": number, "ETag": etag} for number, etag in sorted(etags.items())]
                },
                IfNoneMatch="*",
            )
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code")
            # 409 here means "begin the whole upload again" (AWS); a lost answer and a retry give NoSuchUpload
            if _forgotten(error) or code == "ConditionalRequestConflict":
                raise _ForgottenError from error
            if code == "PreconditionFailed":
                return _holds(store, key, wanted)
            raise
        return True

    return store.again(key, once)


def _holds(store: Bucket, key: str, wanted: Stat) -> bool:
    there = store.stat(key)
    return there is not None and there.size == wanted.size and there.sha256 in {wanted.sha256, None}


def _forgotten(error: ClientError) -> bool:
    return error.response.get("Error", {}).get("Code") == "NoSuchUpload"
