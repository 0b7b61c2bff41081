"""A part of tests/e2e/installers, without downloads: small wheels, this environment's pip, uv, installer, packaging."""

import importlib.util
from pathlib import Path

import pytest

from tests.differential import judges
from tests.differential.compare import NOBODY, check_documented, compare, one
from tests.differential.drafts import take_apart
from tests.differential.mutations import MUTATIONS, Mutation

EVERY = 25  # of so many changes one is made
PARTS = [each for each in enumerate(MUTATIONS) if each[0] % EVERY == 0 and not each[1].name.startswith("elf-")]


@pytest.fixture(scope="module")
def drafts(tmp_path_factory, make_wheel, make_elf, make_pe):
    folder = tmp_path_factory.mktemp("wheels")
    files = {"canary/__init__.py": b"", "canary/data.txt": b"text"}
    library = {**files, "canary/_C.cpython-311-x86_64-linux-gnu.so": make_elf(needed=["libc.so.6"])}
    module = {**files, "canary/_C.cp311-win_amd64.pyd": make_pe(needed=["python311.dll", "KERNEL32.dll"])}
    made = [
        make_wheel(folder, files, tag="py3-none-any"),
        make_wheel(folder, library, tag="cp311-cp311-manylinux_2_17_x86_64"),
        make_wheel(folder, module, tag="cp311-cp311-win_amd64"),
    ]
    return [take_apart(path) for path in made]


@pytest.fixture(scope="module")
def everybody(tmp_path_factory):
    folder = tmp_path_factory.mktemp("judges")
    spec = importlib.util.find_spec("pip")
    assert spec is not None
    assert spec.origin is not None
    with judges.pip(Path(spec.origin).parents[1], folder / "pip") as pip:
        yield [
            ("pip", pip),
            ("uv", judges.uv(folder / "uv")),
            ("installer", judges.installer),
            ("packaging", judges.packaging),
        ]


def test_good_wheels_are_taken_by_all(drafts, everybody, tmp_path):
    unchanged = Mutation("unchanged", None, lambda _: None)
    outcomes = [one(unchanged, draft, everybody, tmp_path) for draft in drafts]
    assert [str(each) for each in outcomes if each.disagreement] == []


def test_what_somebody_refuses_is_refused(drafts, everybody, tmp_path):
    outcomes = compare(PARTS, drafts, everybody, tmp_path)
    assert [str(each) for each in outcomes if each.disagreement not in (None, NOBODY)] == []
    assert {who for each in outcomes for who in each.said} == {who for who, _ in everybody}


def test_each_disagreement_is_explained():
    check_documented()
