"""Opens a store by its URL. The stores themselves know nothing of URLs, so that no file here imports in a circle."""

import re
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, urlsplit
from urllib.request import url2pathname

from farm.base.errors import UsageError
from farm.index.directory import DirectoryStore
from farm.index.stores import Store, check_key

_BUCKET = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}", re.ASCII)
"""Characters that botocore takes in a path, but for folders' names. Which names may be made is the server's to say:
old buckets of AWS have capital letters and `_`, and other servers allow them."""


def parts_of(url: str) -> SplitResult:
    """The parts of a URL that somebody wrote; UsageError if its host is none."""
    try:
        return urlsplit(url)
    except ValueError as error:
        # Not quoted, since it may hold a password.
        raise UsageError(
            "not a URL: its host cannot be read", hint="brackets are for an IPv6 address: http://[::1]:8080/"
        ) from error


def open_store(url: str) -> Store:
    """Opens a store by its name.

    Args:
        url: A path or `file://` URL of a directory (made by the first write; others may read its files), or `s3://bucket[/prefix][?endpoint_url=URL&region=NAME&pages=slash&
            encryption=aws:kms&kms_key=ARN]`. Credentials come from the usual AWS chain (environment, profile,
            instance role), never from the URL. `pages=slash`: see `farm.index.layout.to_folder`. `encryption` and
            `kms_key` are sent with each upload (ServerSideEncryption, SSEKMSKeyId), which some policies demand.

    Raises:
        UsageError: Anything else.
    """
    if "://" not in url:
        return _directory(Path(url) if url else None, url)
    parts = parts_of(url)
    # Before all other checks: their messages quote the URL, and a password must not be shown.
    if "@" in parts.netloc:
        raise UsageError(
            "the index URL holds a user name or password",
            hint="leave them out of the URL; credentials come from the usual AWS chain",
        )
    if parts.scheme == "file":
        if parts.netloc not in {"", "localhost"} or parts.query or parts.fragment or parts.path in {"", "/"}:
            raise UsageError(f"not a directory on this machine: {url!r}", hint="write file:///path/to/index")
        return _directory(Path(url2pathname(parts.path)), url)
    if parts.scheme == "s3":
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        prefix = parts.path.strip("/")
        unknown = sorted(set(options) - {"endpoint_url", "region", "pages", "encryption", "kms_key"})
        endpoint = options.get("endpoint_url")
        slash, encryption = options.get("pages", "index"), options.get("encryption")
        sound = slash in {"index", "slash"} and encryption in {None, "AES256", "aws:kms", "aws:kms:dsse"}
        if not sound or unknown or parts.fragment or not _BUCKET.fullmatch(parts.netloc):
            raise UsageError(
                f"not an S3 store: {url!r}" + (f" (unknown: {', '.join(unknown)})" if unknown else ""),
                hint="write s3://bucket[/prefix][?endpoint_url=URL&region=NAME&pages=index|slash&"
                "encryption=AES256|aws:kms&kms_key=ARN]",
            )
        if endpoint is not None and (
            parts_of(endpoint).scheme not in {"http", "https"} or not parts_of(endpoint).hostname or "@" in endpoint
        ):
            raise UsageError("endpoint_url is not http://host or https://host", hint="no credentials in it")
        if options.get("kms_key") and not (encryption or "").startswith("aws:kms"):
            raise UsageError("kms_key is for encryption=aws:kms", hint="add encryption=aws:kms to the store's URL")
        if prefix:
            check_key(prefix)
        from farm.index.s3 import S3Store  # noqa: PLC0415  boto3 costs half a second; only S3 users pay

        region = options.get("region") or None
        headers = {"ServerSideEncryption": encryption, "SSEKMSKeyId": options.get("kms_key")}
        return S3Store(
            parts.netloc,
            prefix,
            endpoint_url=endpoint,
            region=region,
            slash=slash == "slash",
            encryption={name: value for name, value in headers.items() if value},
        )
    raise UsageError(
        f"unknown kind of store {parts.scheme!r}: {url!r}",
        hint="use a path, file:///path/to/index or s3://bucket/prefix",
    )


def _directory(path: Path | None, url: str) -> Store:
    if path is None or (path.exists() and not path.is_dir()):
        raise UsageError(f"not a directory: {url!r}")
    return DirectoryStore(path)
