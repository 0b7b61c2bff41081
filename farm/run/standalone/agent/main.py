"""The program of a swarm job's container."""

from __future__ import annotations

import ctypes
import gzip
import json
import sys
import tarfile
import urllib.error
from pathlib import Path

from .command import run_command
from .folders import send_output, unpack
from .store import put, say

MANIFEST = Path("/farm-manifest")
PR_SET_NO_NEW_PRIVS = 38  # linux/prctl.h
UPLOAD_FAILED = 75  # EX_TEMPFAIL of sysexits.h


def no_new_privileges() -> None:
    """From here on no program that is started gains rights by a set-uid bit: a swarm service has no option for it."""
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs cannot be set")


def main() -> int:
    with gzip.open(MANIFEST, "rt", encoding="utf-8") as stream:
        manifest = json.load(stream)
    try:
        no_new_privileges()
        unpack(manifest)
        report = run_command(manifest)
        # A build that failed has no output that counts: its log says why.
        if report["exit_code"] == 0:
            send_output(manifest["output"], manifest["output_url"])
        # Last: where there is a report, the log and the output are in the store.
        put(manifest["report_url"], json.dumps(report).encode())
    except (OSError, urllib.error.URLError, tarfile.TarError) as error:
        say(error)
        return UPLOAD_FAILED
    return int(report["exit_code"])
