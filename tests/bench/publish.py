"""What one more wheel costs an index that holds many: `python tests/bench/publish.py [rgw moto] [--wheels N ...]`.

The wheels lie in 100 projects of 20 groups, and once more all on one page: the worst that can be. Beside the farm
what PyTorch's manage_v2.py does: list the bucket, two HEAD for each wheel (it and its `.metadata`) by 20 threads, write
all pages.

Requests are exact. Times are medians of ROUNDS on whatever else the machine does.
"""

import argparse
import hashlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from farm.index import html, layout, pages  # noqa: E402
from farm.index.backends import open_store  # noqa: E402
from farm.index.layout import CATALOGUE, html_key, json_key, metadata_key, wheel_key  # noqa: E402
from farm.index.pages import CATALOGUE_TYPE, parse_catalogue  # noqa: E402
from farm.index.publish import check_store, publish  # noqa: E402
from farm.index.s3 import S3Store  # noqa: E402
from tests.faults.campaign import make_wheel  # noqa: E402
from tests.servers.buckets import make_bucket, served  # noqa: E402

GROUPS, PROJECTS, HOT = 20, 5, "hot"
THREADS = 20
ROUNDS = 5


def names(wheels: int) -> dict[tuple[str, str], list[str]]:
    """File names by group and project."""
    found: dict[tuple[str, str], list[str]] = {}
    for number in range(wheels):
        group, project = f"g{number % GROUPS:02}", f"p{number // GROUPS % PROJECTS}"
        name = f"{project}-1.{number}+cu118.{group}.avx-py3-none-any.whl"
        found.setdefault((group, project), []).append(name)
    return found


def _hashes(name: str) -> pages.Hashes:
    return pages.Hashes(sha256=hashlib.sha256(name.encode()).hexdigest())


def page_of(project: str, files: list[str]) -> pages.ProjectPage:
    entries = [
        pages.File(
            filename=name,
            url=pages.page_url(name),
            hashes=_hashes(name),
            size=1,
            upload_time="2026-11-21T00:00:00.000000Z",
            requires_python=">=3.7",
            core_metadata=_hashes(f"{name}.metadata"),
        )
        for name in files
    ]
    versions = tuple(str(layout.parse_wheel_name(name)[1]) for name in files)
    return pages.ProjectPage(meta=pages.Meta(generation=7), name=project, versions=versions, files=tuple(entries))


def fill(store: S3Store, wheels: int, *, objects: bool) -> None:
    """Objects for all wheels and their metadata, and all pages; the page of all lists names without objects."""
    by_page = names(wheels)
    by_page[HOT, "canary"] = [f"canary-0.{number}+cu118.sm35.avx-py3-none-any.whl" for number in range(wheels)]

    def put(key: str) -> None:
        store.again(key, lambda: store.client.put_object(Bucket=store.bucket, Key=store.full(key), Body=b"x"))

    if objects:
        every = [name for (group, _), files in by_page.items() if group != HOT for name in files]
        keys = [key for name in every for key in (wheel_key(name), metadata_key(name))]
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(put, keys))
    found = store.get(CATALOGUE)
    catalogue = parse_catalogue(found.data if found else None)
    for group in {group for group, _ in by_page}:
        made = {project: page_of(project, files) for (its, project), files in by_page.items() if its == group}
        for project, page in made.items():
            store.replace(json_key(group, project), page.render(), None, content_type=pages.JSON)
            store.replace(html_key(group, project), html.project_html(page), None, content_type=pages.HTML)
            catalogue = catalogue.having(group, [page])
        store.replace(f"whl/{group}/simple/index.html", html.list_html(group, set(made)), None, content_type=pages.HTML)
    store.replace(CATALOGUE, catalogue.render(), found.etag if found else None, content_type=CATALOGUE_TYPE)


class Meter:
    """Counts requests and bytes of a store's client."""

    def __init__(self, store: S3Store) -> None:
        self.requests = 0
        store.client.meta.events.register("before-send.s3", self._seen)

    def _seen(self, **_: object) -> None:
        self.requests += 1

    def measure(self, work: Callable[[], object]) -> tuple[int, float]:
        before, start = self.requests, time.monotonic()
        work()
        return self.requests - before, time.monotonic() - start


def one_more(store: S3Store, meter: Meter, folder: Path, group: str, number: int) -> tuple[int, float]:
    wheel = make_wheel(folder, number)
    arguments = {"upload_time": datetime.now(UTC), "provenance": {}}
    return meter.measure(lambda: publish(store, wheel, group=group, **arguments))


def regenerate(store: S3Store, wheels: int) -> None:
    client, bucket = store.client, store.bucket
    listed = {key for key in store.list("whl/files/") if key.endswith(".whl")}
    assert len(listed) >= wheels

    def head(key: str) -> None:
        for each in (key, f"{key}.metadata"):
            store.again(each, lambda each=each: client.head_object(Bucket=bucket, Key=store.full(each)))

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(head, sorted(listed)))
    for (group, project), files in names(wheels).items():
        page = html.project_html(page_of(project, files))
        key = store.full(f"regenerated/{group}/{project}.html")
        client.put_object(Bucket=bucket, Key=key, Body=page)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    options.add_argument("servers", nargs="*", default=["rgw", "moto"])
    options.add_argument("--wheels", type=int, nargs="+", default=[2000, 20000])
    options.add_argument("--farm", action="store_true", help="the farm alone, which reads pages only")
    chosen = options.parse_args()
    table = Table("server", "wheels", "way", "requests", "seconds", "times the requests of the farm", box=None)
    for server in chosen.servers:
        with tempfile.TemporaryDirectory(prefix="farm-") as name, ExitStack() as stack:
            folder = Path(name)
            url = stack.enter_context(served(server, folder))
            endpoint = url.partition("endpoint_url=")[2]
            for wheels in chosen.wheels:
                store = open_store(make_bucket(endpoint, f"wheels-{wheels}"))
                assert isinstance(store, S3Store)
                check_store(store)
                fill(store, wheels, objects=not chosen.farm)
                meter = Meter(store)
                rows: list[tuple[str, int, float]] = []
                for group, what in {"g00": "farm, 1 % of the wheels on the page", HOT: "farm, all on one page"}.items():
                    costs = [
                        one_more(store, meter, folder, group, n + (100 if group == HOT else 0)) for n in range(ROUNDS)
                    ]
                    rows.append((what, max(r for r, _ in costs), statistics.median(s for _, s in costs)))
                ours = max(requests for _, requests, _ in rows)
                if not chosen.farm:
                    requests, seconds = meter.measure(lambda: regenerate(store, wheels))  # noqa: B023  called here
                    rows.append(("regenerate", requests + 2, seconds))  # and the wheel and its metadata
                for what, requests, seconds in rows:
                    print(f"{server}, {wheels} wheels, {what}: {requests} requests, {seconds:.2f} s", flush=True)
                    table.add_row(server, str(wheels), what, str(requests), f"{seconds:.2f}", f"{requests / ours:.1f}")
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
