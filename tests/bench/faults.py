"""Publishers under harm, full numbers: `python tests/bench/faults.py [rgw moto ministack]
[--schedules N]`.

On each server: a publisher is killed after every request of a publish, of a small wheel and of one
that goes up in parts; 32 processes publish 10 wheels each into one project; 500 seeded schedules of
a proxy that drops, delays, sends twice, cuts and lies. Prints the counts; ends with 1 if anything
was inconsistent, lost, double or wiped.
"""

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.faults import campaign  # noqa: E402
from tests.servers.buckets import SERVERS, served  # noqa: E402

PARTS = {"size": 12 * 2**20, "max_put": 2**20, "part": 5 * 2**20}
WHAT = ("killed", "killed in parts", "parallel", "harmed")


def run(
    what: str, url: str, folder: Path, made: campaign.Publishers, chosen: argparse.Namespace
) -> campaign.Count:
    if what == "parallel":
        return campaign.parallel(url, folder, made, processes=chosen.processes, wheels=10)
    if what == "harmed":
        return campaign.harmed(url, folder, made, seeds=range(chosen.schedules))
    return campaign.killed(url, folder, made, **(PARTS if what == "killed in parts" else {}))


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    options.add_argument("servers", nargs="*", default=SERVERS)
    options.add_argument("--schedules", type=int, default=500)
    options.add_argument("--processes", type=int, default=32)
    options.add_argument("--only", choices=WHAT, action="append")
    chosen = options.parse_args()
    clean = True
    for server in chosen.servers:
        with tempfile.TemporaryDirectory(prefix="farm-") as name, ExitStack() as stack:
            folder = Path(name)
            url = stack.enter_context(served(server, folder))
            made = stack.enter_context(campaign.publishers())
            for what in chosen.only or WHAT:
                start = time.monotonic()
                count = run(what, url, folder, made, chosen)
                clean = clean and count.clean
                print(f"{server}, {what}: {count} ({time.monotonic() - start:.0f} s)", flush=True)
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
