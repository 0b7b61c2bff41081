"""The steps of a release, which `.github/workflows/release.yml` runs, and a test without GitHub.

python -m tools.release check REF        # is REF (a tag `v0.1.0`, or a branch) ready
python -m tools.release build FOLDER     # the sdist and the wheel
python -m tools.release metadata FOLDER  # is what these say of themselves what an index takes
python -m tools.release notes FILE       # the changelog's section of this version
python -m tools.release sbom FILE        # what an installation consists of (CycloneDX)
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.metadata import Metadata
from packaging.requirements import Requirement

import farm

ROOT = Path(__file__).parents[1]
CHANGELOG = ROOT / "CHANGELOG.md"
EPOCH = (
    "315532800"  # 1980, the first date that a zip can hold: the same sources give the same bytes
)
_HEADING = re.compile(r"^## (\S+), (.+)$", re.MULTILINE)
_LOCKED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^ \\;]+)(?: ; ([^\\]+))?", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def section(changelog: str, version: str) -> tuple[str, str] | None:
    """The date and the text of a version's section of the changelog; None: it has none."""
    headings = list(_HEADING.finditer(changelog))
    for number, heading in enumerate(headings):
        if heading[1] == version:
            end = headings[number + 1].start() if number + 1 < len(headings) else len(changelog)
            return heading[2], changelog[heading.end() : end].strip() + "\n"
    return None


def problems(ref: str) -> list[str]:
    """What keeps a tag from being released; of a branch, what is wrong whatever the tag."""
    version = farm.__version__
    entry = section(CHANGELOG.read_text(encoding="utf-8"), version)
    if entry is None:
        return [f"CHANGELOG.md has no section of {version}"]
    reasons = []
    if ref.startswith("v"):
        if ref != f"v{version}":
            reasons.append(f"the tag is {ref}, farm/__init__.py says {version}")
        if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", entry[0]):
            reasons.append(f"CHANGELOG.md says '{entry[0]}' of {version} in place of a date")
    return reasons


def build(dest: Path) -> list[Path]:
    """Make the sdist, and the wheel from that sdist, in a folder."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH}
    dest = dest.absolute()
    dest.mkdir(parents=True, exist_ok=True)
    code = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", code, dest],
        check=True,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    (sdist,) = dest.glob("*.tar.gz")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", dest, sdist], check=True, env=environment)
    return sorted(path for path in dest.iterdir() if path.suffix in (".gz", ".whl"))


def metadata_problems(file: Path) -> Iterator[str]:
    """What keeps an index from taking an sdist or a wheel, or from showing its page."""
    try:
        about = Metadata.from_email(_metadata_of(file))
    except (ExceptionGroup, KeyError, OSError, tarfile.TarError, zipfile.BadZipFile) as error:
        reasons = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
        yield from (f"{file.name}: {reason}" for reason in reasons)
        return
    named = (about.name, str(about.version))
    if named != ("torch-farm", farm.__version__):
        yield f"{file.name}: it is of {' '.join(named)}, not of torch-farm {farm.__version__}"
    if about.description_content_type != "text/markdown" or not about.description:
        yield f"{file.name}: an index would not show README.md: no description in text/markdown"
    if str(about.requires_python) != _project()["requires-python"]:
        yield f"{file.name}: Requires-Python is {about.requires_python}"
    if not (about.summary and about.license_expression and about.license_files):
        yield f"{file.name}: no summary, licence or file of the licence"


def _metadata_of(file: Path) -> bytes:
    stem = f"torch_farm-{farm.__version__}"
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as archive:
            return archive.read(f"{stem}.dist-info/METADATA")
    with tarfile.open(file) as archive:
        member = archive.extractfile(f"{stem}/PKG-INFO")
        return member.read() if member else b""


def sbom() -> dict[str, Any]:
    """The farm with its locked dependencies as a CycloneDX 1.6 document."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    blocks = re.split(r"\n(?=[A-Za-z0-9])", lock)
    components = [component for block in blocks if (component := _component(block))]
    direct = {Requirement(line).name for line in _project()["dependencies"]}
    itself = f"pkg:pypi/torch-farm@{farm.__version__}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": itself,
                "name": "torch-farm",
                "version": farm.__version__,
                "purl": itself,
                "licenses": [{"license": {"id": _project()["license"]}}],
            }
        },
        "components": components,
        "dependencies": [
            {
                "ref": itself,
                "dependsOn": [
                    component["bom-ref"] for component in components if component["name"] in direct
                ],
            }
        ],
    }


def _component(block: str) -> dict[str, Any] | None:
    """One requirement of the lock with the hashes of its files."""
    locked = _LOCKED.match(block)
    if locked is None:
        return None
    name, version, marker = locked.groups()
    purl = f"pkg:pypi/{name}@{version}"
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "properties": [{"name": "farm:sha256", "value": digest} for digest in _HASH.findall(block)],
    }
    if marker:
        component["properties"].append({"name": "farm:marker", "value": marker.strip()})
    return component


def _project() -> dict[str, Any]:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return dict(tomllib.loads(text)["project"])


def main() -> int:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("step", choices=["check", "build", "metadata", "notes", "sbom"])
    parser.add_argument("where", metavar="REF|FOLDER|FILE")
    args = parser.parse_args()
    where = Path(args.where)
    if args.step in ("check", "metadata"):
        if args.step == "check":
            reasons = problems(args.where)
        else:
            files = sorted(where.iterdir())
            reasons = [reason for file in files for reason in metadata_problems(file)]
            reasons += [] if files else [f"{where} is empty"]
        for reason in reasons:
            print(f"release: {reason}", file=sys.stderr)
        return 2 if reasons else 0
    if args.step == "build":
        for file in build(where):
            print(file.name)
    elif args.step == "notes":
        entry = section(CHANGELOG.read_text(encoding="utf-8"), farm.__version__)
        where.write_text(entry[1] if entry else "", encoding="utf-8")
    else:
        where.write_text(json.dumps(sbom(), indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
