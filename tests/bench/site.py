"""How long the site takes to build, how large its pages are, and how soon the selector answers in a real browser.

An index of 2,000 wheels and every build of the matrix. Goals: a rebuild under 2 s, the selector's page under 250 kB
compressed, usable under 100 ms after it was loaded. `tests/bench/site.py [CHROMIUM]`.
"""

import gzip
import shutil
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.table import Table

from farm.index.directory import DirectoryStore
from farm.site import build
from farm.site.offers import offers
from farm.site.state import Known, Wheel

ROOT = Path(__file__).parents[2]
WHEELS = 2000
URL = "https://wheels.example.org/"


def many() -> list[Wheel]:
    """Wheels of every offer, then rebuilds of them; digests that do not compress."""
    some = [offer for offer in offers(ROOT) if not offer.blocked]
    made = []
    for number in range(WHEELS):
        offer = some[number % len(some)]
        digest = f"{(number + 1) * 0x9E3779B97F4A7C15F39CC0605CEDC8341082276BF3A27251 % 2**256:064x}"
        rebuild = "" if number < len(some) else f".{number}"
        key = offer.key if not rebuild else offer.key.replace(offer.version, offer.version + rebuild)
        filename = f"{offer.package}-{offer.version}{rebuild}-cp311-cp311-manylinux_2_28_x86_64.whl"
        wheel = Wheel(key, filename, offer.package, offer.version, 10**8 + number, digest, "2026-11-21")
        made.append(wheel)
    return made


def main() -> None:
    known = Known.of(many(), [])
    links = lambda group: ("--find-links", f"{URL}whl/{group}/links.html")  # noqa: E731
    source = lambda group: ("--index-url", f"{URL}whl/{group}/simple/")  # noqa: E731
    with tempfile.TemporaryDirectory() as folder:
        store = DirectoryStore(Path(folder))
        table = Table(title=f"the site for {WHEELS} wheels")
        for column in ("what", "measured", "goal"):
            table.add_column(column)
        for name in ("first build", "rebuild, one wheel more"):
            clock, processor = time.perf_counter(), time.process_time()
            made = build.files(list(offers(ROOT)), known, source=source, links=links, root=URL)
            written = build.write(store, made)
            took = f"{time.perf_counter() - clock:.2f} s ({time.process_time() - processor:.2f} s of processor)"
            table.add_row(f"{name}: {len(written.changed)} of {written.files} files written", took, "2 s")
            known = Known.of(known.wheels[1:], [])
        for page in ("index.html", "farm.html"):
            size = f"{len(gzip.compress(made[page])) / 1e3:.0f} kB of {len(made[page]) / 1e3:.0f} kB"
            table.add_row(f"{page}, compressed", size, "250 kB")
        with sync_playwright() as playwright:
            chromium = sys.argv[1] if len(sys.argv) > 1 else shutil.which("chromium")
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page()
            times = []
            for _ in range(5):
                page.goto((Path(folder) / "index.html").as_uri() + "?variant=sm35-avx-py311")
                times.append(page.evaluate("performance.measure('x', 'start', 'ready').duration"))
            table.add_row("selector ready after its script began, best of 5", f"{min(times):.0f} ms", "100 ms")
            click = page.evaluate(
                "(() => { const t = performance.now(); document.getElementById('gpu-sm61').click(); "
                "return performance.now() - t; })()"
            )
            table.add_row("one choice", f"{click:.0f} ms", "100 ms")
            browser.close()
    Console().print(table)


if __name__ == "__main__":
    main()
