"""What servers that speak S3 do differently, tried out on scratch keys. Nothing here stops a publish."""

import base64
import contextlib
import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from farm.base.interrupts import held
from farm.index.bucket import Bucket
from farm.index.stores import Finding

_WRONG = hashlib.sha256(b"other bytes").digest()
_WRONG_MD5 = hashlib.md5(b"other bytes", usedforsecurity=False).digest()


def examine(store: Bucket, scratch: str) -> Iterator[Finding]:
    """Tries each trait on a key of its own; what a server answers with an error is a finding, not a failure.

    Args:
        store: An S3 store.
        scratch: The beginning of the keys; below `farm.index.stores.SCRATCH`.
    """
    for number, (what, trait) in enumerate(_TRAITS.items()):
        key = f"{scratch}-{number}"
        try:
            good, seen = trait(store, key)
        except (ClientError, BotoCoreError) as error:
            good, seen = False, _error_text(error)
        finally:
            with held():
                # The second is what `_slash` wrote.
                for each in (store.full(key), f"{store.full(key)}/"):
                    with contextlib.suppress(ClientError, BotoCoreError):  # a policy may forbid deletes
                        store.client.delete_object(Bucket=store.bucket, Key=each)
        yield Finding(what, good=good, needed=False, seen=seen)


def _etags(store: Bucket, key: str) -> tuple[bool, str]:
    place: dict[str, Any] = {"Bucket": store.bucket, "Key": store.full(key)}
    answers = {}
    for kind, strip in {"quoted": "", "bare": '"'}.items():
        # `strip(None)` takes away blanks alone: the tag stays as the server gave it.
        etag = store.client.put_object(**place, Body=kind.encode())["ETag"].strip(strip or None)
        answers[kind] = _answer(partial(store.client.put_object, **place, Body=b"", IfMatch=etag))
    seen = ", ".join(f"{kind}: {answer}" for kind, answer in answers.items())
    return answers["quoted"] == "done", seen


def _slash(store: Bucket, key: str) -> tuple[bool, str]:
    place: dict[str, Any] = {"Bucket": store.bucket, "Key": f"{store.full(key)}/"}
    store.client.put_object(**place, Body=b"page")
    data = store.client.get_object(**place)["Body"].read()
    return data == b"page", f"stored 4 bytes, read {len(data)}"


def _sha256(store: Bucket, key: str) -> tuple[bool, str]:
    place: dict[str, Any] = {"Bucket": store.bucket, "Key": store.full(key)}
    wrong = base64.b64encode(_WRONG).decode()
    answer = _answer(lambda: store.client.put_object(**place, Body=b"bytes", ChecksumSHA256=wrong))
    return answer != "done", answer


def _md5(store: Bucket, key: str) -> tuple[bool, str]:
    place: dict[str, Any] = {"Bucket": store.bucket, "Key": store.full(key)}
    wrong = base64.b64encode(_WRONG_MD5).decode()
    answer = _answer(lambda: store.client.put_object(**place, Body=b"bytes", ContentMD5=wrong))
    return answer != "done", answer


def _multipart(store: Bucket, key: str) -> tuple[bool, str]:
    place: dict[str, Any] = {"Bucket": store.bucket, "Key": store.full(key)}
    store.client.put_object(**place, Body=b"first")
    upload = store.client.create_multipart_upload(**place)["UploadId"]
    try:
        etag = store.client.upload_part(**place, UploadId=upload, PartNumber=1, Body=b"second")["ETag"]
        parts: Any = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
        answer = _answer(
            lambda: store.client.complete_multipart_upload(
                **place, UploadId=upload, MultipartUpload=parts, IfNoneMatch="*"
            )
        )
    finally:
        with contextlib.suppress(ClientError, BotoCoreError):
            store.client.abort_multipart_upload(**place, UploadId=upload)
    data = store.client.get_object(**place)["Body"].read()
    good = answer != "done" and data == b"first"
    seen = f"{answer}, the object then held {data[:20]!r}"
    if not good:
        seen += "; the farm does not rely on it: names are claimed first"
    return good, seen


def _encoding(store: Bucket, key: str) -> tuple[bool, str]:
    place: dict[str, Any] = {"Bucket": store.bucket, "Key": store.full(key)}
    wanted: dict[str, Any] = {"ContentType": "application/vnd.pypi.simple.v1+json", "ContentEncoding": "gzip"}
    store.client.put_object(**place, Body=b"x", **wanted)
    head = store.client.head_object(**place)
    seen = {name: head.get(name) for name in wanted}
    text = ", ".join(f"{name}: {value}" for name, value in seen.items())
    return seen == wanted, text


def _answer(call: Callable[[], object]) -> str:
    try:
        call()
    except ClientError as error:
        return _error_text(error)
    return "done"


def _error_text(error: ClientError | BotoCoreError) -> str:
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return f"refused with {status} {error.response.get('Error', {}).get('Code', '')}"
    return type(error).__name__


_TRAITS: dict[str, Callable[[Bucket, str], tuple[bool, str]]] = {
    "If-Match takes the ETag as the server gave it, in quotes": _etags,
    "a key may end in a slash, so that a plain endpoint answers folders": _slash,
    "an upload with a wrong ChecksumSHA256 is refused": _sha256,
    "an upload with a wrong Content-MD5 is refused": _md5,
    "completing an upload in parts heeds If-None-Match": _multipart,
    "Content-Type and Content-Encoding are kept": _encoding,
}
