"""One large wheel into a folder and into Ceph: `python tests/bench/large.py [--gigabytes 5.5] [directory rgw]`.

Prints seconds and the publisher's peak memory, after what lies in the store was read back and hashed. Needs
three times the wheel's size on disk, and its size in memory for Ceph.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from farm.index.backends import open_store  # noqa: E402
from farm.index.layout import wheel_key  # noqa: E402
from tests.servers import rgw  # noqa: E402
from tests.servers.buckets import ISOLATED, KEYS, make_bucket  # noqa: E402

PUBLISH = """
import json, resource, sys, time
from datetime import UTC, datetime
from pathlib import Path
from farm.index.publish import publish
from farm.index.backends import open_store
start = time.monotonic()
metadata = b"Metadata-Version: 2.1\\nName: large\\nVersion: 1.0\\n"
when = datetime(2026, 11, 21, tzinfo=UTC)
store, wheel = open_store(sys.argv[1]), Path(sys.argv[2])
publish(store, wheel, group="sm35-avx", upload_time=when, provenance={})
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"seconds": time.monotonic() - start, "mb": peak / 1024}))
"""


def make_wheel(folder: Path, size: int) -> Path:
    """A wheel with one stored member of `size` bytes, each megabyte another."""
    path = folder / "large-1.0-py3-none-any.whl"
    info = "large-1.0.dist-info"
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: large\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        with archive.open("large/data.bin", "w", force_zip64=True) as stream:
            block = os.urandom(1 << 20)
            for number in range(size >> 20):
                stream.write(number.to_bytes(8, "big") + block[8:])
        archive.writestr(f"{info}/RECORD", "")
    return path


def digest(chunks: object) -> str:
    seen = hashlib.sha256()
    for chunk in chunks:  # type: ignore[attr-defined]
        seen.update(chunk)
    return seen.hexdigest()


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    options.add_argument("stores", nargs="*", metavar="STORE", help="directory, rgw (default: both)")
    options.add_argument("--gigabytes", type=float, default=5.5)
    chosen = options.parse_args()
    os.environ.update(KEYS | ISOLATED)
    table = Table(title=f"a wheel of {chosen.gigabytes} GB")
    for column in ("store", "publish, s", "MB/s", "peak memory, MB", "again, s", "read back"):
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory(prefix="farm-large-") as name, ExitStack() as stack:
        folder = Path(name)
        wheel = make_wheel(folder, int(chosen.gigabytes * 1e9))
        with wheel.open("rb") as stream:
            wanted = digest(iter(lambda: stream.read(1 << 20), b""))
        for store in chosen.stores or ("directory", "rgw"):
            url = str(folder / "index")
            if store == "rgw":
                room = int(chosen.gigabytes * 1.5) + 2
                url = make_bucket(stack.enter_context(rgw.gateway(folder / "rgw", gigabytes=room)).http, "wheels")
            first, again = (publish(url, wheel) for _ in range(2))
            seen = digest(open_store(url).chunks(wheel_key(wheel.name)))
            speed = f"{chosen.gigabytes * 1e3 / first['seconds']:.0f}"
            same = "the same" if seen == wanted else "DIFFERENT"
            table.add_row(
                store, f"{first['seconds']:.1f}", speed, f"{first['mb']:.0f}", f"{again['seconds']:.1f}", same
            )
    Console(width=110).print(table)


def publish(url: str, wheel: Path) -> dict[str, float]:
    command = [sys.executable, "-c", PUBLISH, url, str(wheel)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    main()
