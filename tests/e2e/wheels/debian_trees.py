"""Real source trees for tests: PyTorch 1.13.1 of Debian 12 and 2.6.0 of Debian 13."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
TIMEOUT_S = 600
TREES = {
    "1.13.1": ("pytorch_1.13.1+dfsg.orig.tar.xz", "bookworm"),
    "2.6.0": ("pytorch_2.6.0+dfsg.orig.tar.xz", "trixie"),
}


def need(what):
    if os.environ.get("FARM_REQUIRE") == "all":
        pytest.fail(what)
    pytest.skip(what)


def mirror():
    """Where this machine gets Debian from."""
    for path in (Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))):
        found = (
            re.search(r"https?://\S+/debian(?=/?\s)", path.read_text()) if path.is_file() else None
        )
        if found:
            return found[0]
    return need("no Debian mirror is in apt's sources")


@pytest.fixture(scope="session")
def sources(tmp_path_factory):
    """A folder with both source archives, fetched by apt with lists of its own; its signatures and
    sums are apt's.
    """
    if not (shutil.which("apt-get") and KEYRING.exists()):
        need("apt-get or Debian's keyring is missing: install debian-archive-keyring")
    folder = tmp_path_factory.mktemp("apt")
    for name in ("lists/partial", "cache/archives/partial", "sources"):
        (folder / name).mkdir(parents=True)
    lines = [
        f"deb-src [signed-by={KEYRING}] {mirror()} {suite} main" for _, suite in TREES.values()
    ]
    (folder / "sources.list").write_text("\n".join(lines) + "\n")
    options = {
        "Dir::Etc::SourceList": folder / "sources.list", "Dir::Etc::SourceParts": "/nonexistent",
        "Dir::State::Lists": folder / "lists", "Dir::Cache": folder / "cache", "APT::Sandbox::User": "root",
    }  # fmt: skip
    apt = [
        "apt-get",
        "-q",
        *(word for key, value in options.items() for word in ("-o", f"{key}={value}")),
    ]
    done = subprocess.run(
        [*apt, "update"], capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    if done.returncode:
        need(f"Debian's source lists cannot be fetched: {done.stderr[-300:]}")
    for name, suite in TREES.values():
        # --tar-only: the packaging beside it may have left the mirror already.
        command = [*apt, "source", "--download-only", "--tar-only", f"pytorch/{suite}"]
        done = subprocess.run(
            command,
            cwd=folder / "sources",
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        if not (folder / "sources" / name).exists():
            need(f"{name} cannot be fetched: {done.stderr[-300:]}")
    return folder / "sources"
