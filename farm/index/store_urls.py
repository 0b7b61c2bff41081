"""Open a store by its URL: a bucket (`farm.index.s3`) or a directory (`farm.index.directory`)."""

import re
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, urlsplit
from urllib.request import url2pathname

from farm.base.errors import UsageError
from farm.index.directory import DirectoryStore
from farm.index.stores import Store, check_key

_BUCKET = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}", re.ASCII)
"""Characters that botocore takes in a path, but for folders' names. Which names may be made is the
server's to say: old buckets of AWS have capital letters and `_`, and other servers allow them.
"""
_PAGES = frozenset({"index", "slash"})
_ENCRYPTIONS = frozenset({"AES256", "aws:kms", "aws:kms:dsse"})
_OPTIONS = frozenset({"endpoint_url", "region", "pages", "encryption", "kms_key"})


def parts_of(url: str) -> SplitResult:
    """The parts of a URL that somebody wrote; UsageError if its host is none."""
    try:
        return urlsplit(url)
    except ValueError as error:
        # Not quoted, since it may hold a password.
        hint = "brackets are for an IPv6 address: http://[::1]:8080/"
        raise UsageError("not a URL: its host cannot be read", hint=hint) from error


def open_store(url: str) -> Store:
    """Opens a store by its name; UsageError for anything else.

    Args:
        url: A path or `file://` URL of a directory (made by the first write; others may read its
            files), or `s3://bucket[/prefix][?endpoint_url=URL&region=NAME&pages=slash&
            encryption=aws:kms&kms_key=ARN]`. Credentials come from the usual AWS chain
            (environment, profile, instance role), never from the URL. `pages=slash`: see
            `farm.index.layout.to_folder`. `encryption` and `kms_key` are sent with each upload
            (ServerSideEncryption, SSEKMSKeyId), which some policies demand.
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
        return _directory(_path_of(url, parts), url)
    if parts.scheme == "s3":
        return _bucket(url, parts)
    raise UsageError(
        f"unknown kind of store {parts.scheme!r}: {url!r}",
        hint="use a path, file:///path/to/index or s3://bucket/prefix",
    )


def _path_of(url: str, parts: SplitResult) -> Path:
    is_local = parts.netloc in {"", "localhost"}
    names_folder = parts.path not in {"", "/"}
    if not is_local or not names_folder or parts.query or parts.fragment:
        raise UsageError(
            f"not a directory on this machine: {url!r}", hint="write file:///path/to/index"
        )
    return Path(url2pathname(parts.path))


def _directory(path: Path | None, url: str) -> Store:
    if path is None or (path.exists() and not path.is_dir()):
        raise UsageError(f"not a directory: {url!r}")
    return DirectoryStore(path)


def _bucket(url: str, parts: SplitResult) -> Store:
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    _check_options(url, parts, options)
    prefix = parts.path.strip("/")
    if prefix:
        check_key(prefix)
    headers = {}
    if options.get("encryption"):
        headers["ServerSideEncryption"] = options["encryption"]
    if options.get("kms_key"):
        headers["SSEKMSKeyId"] = options["kms_key"]
    from farm.index.s3 import S3Store  # noqa: PLC0415  boto3 costs half a second; only S3 users pay

    return S3Store(
        parts.netloc,
        prefix,
        endpoint_url=options.get("endpoint_url"),
        region=options.get("region") or None,
        slash=options.get("pages") == "slash",
        encryption=headers,
    )


def _check_options(url: str, parts: SplitResult, options: dict[str, str]) -> None:
    """Refuse a URL of a bucket that names none, or has other options than `open_store` takes."""
    unknown = sorted(set(options) - _OPTIONS)
    encryption = options.get("encryption", "AES256")
    sound = options.get("pages", "index") in _PAGES and encryption in _ENCRYPTIONS
    if not sound or unknown or parts.fragment or not _BUCKET.fullmatch(parts.netloc):
        problem = f"not an S3 store: {url!r}"
        if unknown:
            problem += f" (unknown: {', '.join(unknown)})"
        raise UsageError(
            problem,
            hint="write s3://bucket[/prefix][?endpoint_url=URL&region=NAME&pages=index|slash&"
            "encryption=AES256|aws:kms&kms_key=ARN]",
        )
    endpoint = options.get("endpoint_url")
    if endpoint is not None and not _is_endpoint(endpoint):
        raise UsageError(
            "endpoint_url is not http://host or https://host", hint="no credentials in it"
        )
    if options.get("kms_key") and not options.get("encryption", "").startswith("aws:kms"):
        raise UsageError(
            "kms_key is for encryption=aws:kms", hint="add encryption=aws:kms to the store's URL"
        )


def _is_endpoint(url: str) -> bool:
    parts = parts_of(url)
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and "@" not in url
