"""How long the site of 5,000 wheels takes to build, how large its first view is, and how soon it
answers in a browser.

Goals: the first view below 100 kB compressed, an answer within 100 ms. `tests/bench/site.py
[CHROMIUM]`.
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
from farm.site.files import Contents, site_files, write
from tests.unit.site.test_pages import many, source, words

ROOT = Path(__file__).parents[2]
WHEELS = 5000


def main() -> None:
    there = list(many(WHEELS))
    with tempfile.TemporaryDirectory() as folder:
        store = DirectoryStore(Path(folder))
        table = Table(title=f"the site for {WHEELS} wheels")
        for column in ("what", "measured", "goal"):
            table.add_column(column)
        for name in ("first build", "rebuild, one wheel less"):
            clock, processor = time.perf_counter(), time.process_time()
            made = site_files(Contents((), there, words), source(ROOT))
            written = write(store, lambda made=made: list(made), lambda _, made=made: made)[1]
            took = (
                f"{time.perf_counter() - clock:.2f} s ({time.process_time() - processor:.2f} s "
                "of processor)"
            )
            table.add_row(f"{name}: {len(written)} of {len(made)} files written", took, "")
            there = there[1:]
        for page, goal in (("index.html", "100 kB"), ("project/project-0.html", "")):
            size = (
                f"{len(gzip.compress(made[page])) / 1e3:.0f} kB of {len(made[page]) / 1e3:.0f} kB"
            )
            table.add_row(f"{page}, compressed", size, goal)
        with sync_playwright() as playwright:
            chromium = sys.argv[1] if len(sys.argv) > 1 else shutil.which("chromium")
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page()
            page.goto((Path(folder) / "index.html").as_uri())
            typed = page.evaluate(
                "(() => { const have = document.getElementById('have'), t = performance.now(); "
                "have.value = 'Tesla K40c'; have.dispatchEvent(new Event('input')); return "
                "performance.now() - t; })()"
            )
            table.add_row("an answer for a card", f"{typed:.0f} ms", "100 ms")
            browser.close()
    Console().print(table)


if __name__ == "__main__":
    main()
