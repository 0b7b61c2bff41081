"""Whatever pip, uv, installer, packaging or the loader refuses, verify refuses too: changes of real wheels.

Each of the changes in `tests/differential/mutations.py` is made to one real wheel, of each kind of platform in turn.
"""

import contextlib
import subprocess
import sys

import pytest

from tests.differential import judges
from tests.differential.compare import check_documented, compare, one
from tests.differential.drafts import take_apart
from tests.differential.mutations import MUTATIONS, Mutation

PIPS = ("22.3.1", "24.0", "26.3")
WHEELS = {
    None: ["six==1.17.0", "tqdm==4.67.1", "ninja==1.11.1.3"],
    "manylinux2014_x86_64": ["markupsafe==3.0.2", "psutil==6.1.1", "zope.interface==7.2"],
    "musllinux_1_2_x86_64": ["markupsafe==3.0.2"],
    "win_amd64": ["markupsafe==3.0.2", "psutil==6.1.1", "pyzmq==26.2.0"],
    "macosx_11_0_arm64": ["markupsafe==3.0.2", "psutil==6.1.1"],
}


def download(folder, require, *words):
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(folder)]
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        require(" ".join(words), done.stderr[-300:])


@pytest.fixture(scope="module")
def drafts(tmp_path_factory, require):
    folder = tmp_path_factory.mktemp("wheels")
    for platform, names in WHEELS.items():
        words = ["--platform", platform, "--python-version", "3.11"] if platform else []
        download(folder, require, *words, *names)
    found = [take_apart(path) for path in sorted(folder.glob("*.whl"))]
    assert len(found) == sum(map(len, WHEELS.values()))
    return found


@pytest.fixture(scope="module")
def everybody(tmp_path_factory, require):
    folder = tmp_path_factory.mktemp("pips")
    for version in PIPS:
        download(folder, require, f"pip=={version}")
    with contextlib.ExitStack() as stack:
        found = [
            (
                f"pip {version}",
                stack.enter_context(judges.pip(folder / f"pip-{version}-py3-none-any.whl", folder / version)),
            )
            for version in PIPS
        ]
        yield [
            *found,
            ("uv", judges.uv(folder / "uv")),
            ("installer", judges.installer),
            ("packaging", judges.packaging),
            ("loader", judges.loader),
        ]


def test_good_wheels_are_taken_by_all(drafts, everybody, tmp_path):
    unchanged = Mutation("unchanged", None, lambda _: None)
    outcomes = [one(unchanged, draft, everybody, tmp_path) for draft in drafts]
    assert [str(each) for each in outcomes if each.disagreement] == []


def test_what_somebody_refuses_is_refused(drafts, everybody, tmp_path):
    outcomes = compare(list(enumerate(MUTATIONS)), drafts, everybody, tmp_path)
    assert len(outcomes) >= 150
    assert [str(each) for each in outcomes if each.disagreement] == []
    refused = {who for each in outcomes for who in each.said}
    assert refused == {who for who, _ in everybody}  # each of them was really asked


def test_each_disagreement_is_explained():
    check_documented()
