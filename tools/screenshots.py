"""Takes the screenshots of the pages for people that README and the docs show, in Chromium.

    python -m tools.screenshots [--out FOLDER]

For maintainers: `make generate` runs it. The index on them holds wheels of `ci/evidence.yaml`;
their sizes and digests are made up. Without Chromium it says so and changes nothing.
"""

import argparse
import hashlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from playwright.sync_api import Browser, sync_playwright

from farm.index.pages import File, Hashes
from farm.index.pins import address
from farm.plan.evidence import ProvedWheel, load_evidence
from farm.plan.variant import Variant
from farm.site.files import Contents, SiteSource, site_files
from farm.site.overview import Words
from farm.site.wheels import Report, Wheel

ROOT = Path(__file__).parent.parent
OUT = ROOT / "docs" / "pictures"
ADDRESS = "https://wheels.example.org/"


class Shot(NamedTuple):
    """One screenshot.

    Attributes:
        name: The file, without its ending.
        card: What is typed into the search.
        scheme: `light` or `dark`.
        width: The viewport in CSS pixels.
        height: Where it is cut off.
    """

    name: str
    card: str
    scheme: str = "light"
    width: int = 960
    height: int = 620


SHOTS = (
    Shot("picker-light", "Tesla K40"),
    Shot("picker-dark", "Tesla K40", scheme="dark"),
    Shot("picker-1080ti", "GTX 1080 Ti"),
    Shot("picker-unknown", "Voodoo 5", height=400),
    Shot("picker-phone", "Tesla K40", width=375, height=800),
)


def main() -> None:
    """Take all screenshots."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=OUT)
    folder = parser.parse_args().out
    program = shutil.which("chromium")
    if program is None:
        print("screenshots: left as they are, since Chromium is missing (Debian package chromium)")
        return
    with tempfile.TemporaryDirectory() as site, sync_playwright() as playwright:
        write_site(Path(site))
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for shot in SHOTS:
            take(browser, Path(site), shot, folder / f"{shot.name}.png")
        browser.close()


def take(browser: Browser, site: Path, shot: Shot, file: Path) -> None:
    """Write one screenshot."""
    context = browser.new_context(
        viewport={"width": shot.width, "height": shot.height},
        color_scheme="dark" if shot.scheme == "dark" else "light",
    )
    page = context.new_page()
    page.goto(f"{(site / 'index.html').as_uri()}?card={quote(shot.card)}")
    page.screenshot(path=file)
    context.close()


def write_site(folder: Path) -> None:
    """Write the pages of an index that has the wheels of the evidence."""
    wheels = sorted(example_wheels(), key=lambda wheel: wheel.version, reverse=True)
    source = SiteSource(project=ROOT, root=ADDRESS)
    for key, data in site_files(Contents((), wheels, words_of(wheels)), source).items():
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def example_wheels() -> Iterator[Wheel]:
    """One wheel for each variant of the evidence."""
    proofs = {(proof.package, proof.variant): proof for proof in load_evidence(ROOT).wheels}
    for proof in proofs.values():
        if proof.platform == "linux":
            yield _wheel(proof)


def _wheel(proof: ProvedWheel) -> Wheel:
    variant = Variant.parse(proof.variant)
    python = variant.python.replace("py", "cp")
    machine = "aarch64" if variant.cpu.startswith("arm") else "x86_64"
    name = f"{proof.package}-{proof.version}-{python}-{python}-manylinux_2_28_{machine}.whl"
    digest = proof.sha256 or hashlib.sha256(name.encode()).hexdigest()
    return Wheel(
        filename=name,
        project=proof.package,
        version=proof.version,
        groups=(variant.group,),
        size=200_000_000,
        sha256=digest,
        uploaded=f"{proof.built.date}T12:00:00Z",
        channel=proof.channel,
        report=Report(sha256=digest, sass=tuple(str(sm) for sm in variant.sms), cpu=variant.cpu),
    )


def words_of(wheels: Iterable[Wheel]) -> Words:
    """What pip is given for each of some wheels: its address and hash."""
    words: dict[str, tuple[str, ...]] = {}
    for wheel in wheels:
        file = File(filename=wheel.filename, hashes=Hashes(sha256=wheel.sha256))
        words[wheel.filename] = (address(ADDRESS, file),)
    return lambda _group, filename: words[filename]


if __name__ == "__main__":
    main()
