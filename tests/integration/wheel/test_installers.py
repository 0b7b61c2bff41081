"""What pip and uv refuse to install, `farm verify` refuses, and what both install passes.

Each case is installed by both into an environment of its own. uv refuses more than pip, so a wheel
passes where both install it, and fails where one of them refuses it.
"""

import hashlib
import os
import subprocess
import sys
import zipfile
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest

from farm.policy.rules import Policy
from farm.wheel.verify import verify

PYTHON = f"cp{sys.version_info.major}{sys.version_info.minor}"
NEXT = f"3.{sys.version_info.minor + 1}"
TAG = f"{PYTHON}-{PYTHON}-manylinux_2_17_x86_64"
INFO = "canary-1.0.dist-info"
METADATA = b"Metadata-Version: 2.1\nName: canary\nVersion: 1.0\n%s\n"


def scripts(lines):
    return {"files": {f"{INFO}/entry_points.txt": b"[console_scripts]\n" + lines}}


def data(member):
    return {"files": {f"canary-1.0.data/{member}": b"x"}}


def metadata(line, tag=TAG):
    return {"metadata": METADATA % line, "tag": tag}


def record(algorithm):
    def row(path, content):
        digest = urlsafe_b64encode(hashlib.new(algorithm, content).digest()).rstrip(b"=").decode()
        return f"{path},{algorithm}={digest},{len(content)}\n"

    return row


CASES = {
    "plain": {},
    "script": scripts(b"canary = canary:main\n"),
    "script-with-extra": scripts(b"canary = canary:main [fast]\n"),
    "script-of-a-class": scripts(b"canary = canary:Main.run\n"),
    "plugin-without-attribute": {
        "files": {f"{INFO}/entry_points.txt": b"[canary.plugins]\nx = canary\n"}
    },
    "empty-entry-points": {"files": {f"{INFO}/entry_points.txt": b""}},
    "comment": scripts(b"# a comment\ncanary = canary:main\n"),
    "colon": scripts(b"canary: canary:main\n"),
    "entry-before-a-section": {"files": {f"{INFO}/entry_points.txt": b"canary = canary:main\n"}},
    "section-without-end": {
        "files": {f"{INFO}/entry_points.txt": b"[console_scripts\ncanary = canary:main\n"}
    },
    "entry-without-value": scripts(b"canary\n"),
    "script-without-attribute": scripts(b"canary = canary\n"),
    "script-with-empty-attribute": scripts(b"canary = canary:\n"),
    "script-with-a-space": scripts(b"canary = can ary:main\n"),
    "script-twice": scripts(b"canary = canary:main\ncanary = canary:other\n"),
    "script-with-a-path": scripts(b"../../evil = canary:main\n"),
    "script-of-a-folder": scripts(b"sub/evil = canary:main\n"),
    "entry-points-not-utf8": scripts(b"canary = canary:m\xffin\n"),
    "data-of-all-keys": {
        "files": {
            f"canary-1.0.data/{key}/canary_file": b"x"
            for key in ("data", "headers", "scripts", "purelib", "platlib")
        }
    },
    "data-of-an-unknown-key": data("lib/x"),
    "data-in-upper-case": data("Scripts/x"),
    "file-directly-in-data": data("x"),
    "data-of-another-project": {"files": {"other-1.0.data/lib/x": b"x"}},
    "requires-a-newer-python": metadata(f"Requires-Python: >={NEXT}\n".encode()),
    "requires-an-older-python": metadata(b"Requires-Python: <3.5\n"),
    "requires-this-python": metadata(b"Requires-Python: >=3.9,!=3.9.1\n"),
    "pure-requires-an-older-python": metadata(b"Requires-Python: <3\n", "py3-none-any"),
    "record-with-sha384": {"record": record("sha384")},
    "record-with-sha512": {"record": record("sha512")},
    "empty-folder-with-a-dot": {"files": {"canary./": b""}, "record": record("sha256")},
    "a-name-of-a-windows-device": {"files": {"canary/aux.py": b""}},
    "names-that-differ-by-case": {"files": {"canary/a.h": b"", "canary/A.h": b""}},
}
# Wheels that can be used and are refused all the same: the finding can be waived.
ADVICE = {"empty-folder-with-a-dot", "a-name-of-a-windows-device", "names-that-differ-by-case"}


@pytest.fixture(scope="module")
def installers(tmp_path_factory):
    """Two environments, by installer: the command that installs a wheel into one."""
    folder = tmp_path_factory.mktemp("environments")
    programs = Path(sys.executable).parent
    for name in ("pip", "uv"):
        command = [str(programs / "uv"), "venv", "-q", "--offline", "--python", sys.executable]
        subprocess.run([*command, str(folder / name)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "pip"), "install", "-q"]
    uv = [str(programs / "uv"), "pip", "install", "-q", "--offline", "--python", str(folder / "uv")]
    return {
        "pip": [*pip, "--no-index", "--force-reinstall", "--no-deps"],
        "uv": [*uv, "--reinstall", "--no-deps"],
    }


def install(command, wheel, folder):
    environment = {
        **os.environ,
        "UV_CACHE_DIR": str(folder / "cache"),
        "PIP_CONFIG_FILE": os.devnull,
    }
    done = subprocess.run(
        [*command, str(wheel)], env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", CASES)
def test_installers_and_verify_agree(name, installers, tmp_path, make_wheel):
    case = {"tag": TAG, **CASES[name]}
    files = {"canary/__init__.py": b"", **case.pop("files", {})}
    row = case.pop("record", None)
    if row is not None:
        plain = make_wheel(tmp_path, files, **case)
        case["record"] = with_other_hashes(plain, row)
    wheel = make_wheel(tmp_path, files, **case)
    outcomes = {who: install(command, wheel, tmp_path) for who, command in installers.items()}
    report = verify(wheel, Policy())
    findings = [
        finding for check in report.checks for finding in check.findings if check.id != "platform"
    ]
    installable = all(works for works, _ in outcomes.values())
    if name in ADVICE:
        assert installable, outcomes
        assert [finding.check for finding in findings] == ["install"]
        assert all(finding.waivable for finding in findings)
    else:
        assert (not findings) == installable, (outcomes, findings)


def with_other_hashes(wheel, row):
    """RECORD of a wheel, with other hashes."""
    lines = []
    with zipfile.ZipFile(wheel) as archive:
        for path in archive.namelist():
            if path.endswith("/RECORD"):
                lines.append(f"{path},,\n")
            elif not path.endswith("/"):
                lines.append(row(path, archive.read(path)))
    return "".join(lines).encode()
