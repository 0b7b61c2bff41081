"""The store behind the signed URLs."""

from __future__ import annotations

import io
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO, Any

CA = Path("/farm-ca")
KIND = "application/octet-stream"  # urllib would label the data as a form
RETRY_S = 900


def say(text: object) -> None:
    sys.stderr.write(f"farm agent: {text}\n")
    sys.stderr.flush()


def request(url: str, data: IO[bytes] | None = None, length: int = 0) -> Any:
    """One request, tried again for RETRY_S seconds; the store may be away for minutes.

    Raises:
        OSError: The store refuses it, or did not answer in that time.
    """
    context = ssl.create_default_context(cafile=str(CA)) if CA.exists() else None
    deadline, pause = time.monotonic() + RETRY_S, 1.0
    while True:
        try:
            # An earlier try may have sent a part of it.
            if data is not None:
                data.seek(0)
            headers = {}
            if data is not None:
                # The signature covers If-None-Match: a URL writes one object once.
                headers = {"If-None-Match": "*", "Content-Length": str(length), "Content-Type": KIND}
            method = "GET" if data is None else "PUT"
            asked = urllib.request.Request(url, data=data, headers=headers, method=method)
            return urllib.request.urlopen(asked, timeout=60, context=context)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 412 and data is not None:  # an earlier try got through, its answer was lost
                return None
            # 408 timeout, 409 a write at the same moment, 429 too many requests: all pass. Other refusals stay
            # refusals.
            if error.code < 500 and error.code not in (408, 409, 429):
                raise
            problem = f"HTTP {error.code}"
        except (urllib.error.URLError, OSError) as error:
            problem = str(getattr(error, "reason", error))
        if time.monotonic() > deadline:
            raise OSError(f"the store does not answer: {problem}")
        say(f"the store: {problem}; again in {pause:.0f} s")
        time.sleep(pause)
        pause = min(pause * 2, 15.0)


def put(url: str, data: bytes | IO[bytes]) -> None:
    stream: IO[bytes] = io.BytesIO(data) if isinstance(data, bytes) else data
    length = stream.seek(0, 2)
    answer = request(url, stream, length)
    if answer is not None:
        answer.close()
