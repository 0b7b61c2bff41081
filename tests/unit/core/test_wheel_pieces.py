"""What a bundle's run gave back: only the whole wheel of this very plan is taken."""

import hashlib
import json

import pytest

from farm.base.errors import UsageError
from farm.plan.build import resolve
from farm.plan.selectors import Selectors
from farm.plan.variant import Variant
from farm.run.wheel_pieces import join

DATA = bytes(range(256)) * 300
NAME = "canary-0.1.0+cpu.avx-cp37-abi3-linux_x86_64.whl"


@pytest.fixture(scope="session")
def plan(root):
    return resolve(root, Selectors(Variant.parse("cpu-avx-py311"), "canary"))


@pytest.fixture
def pieces(tmp_path, plan):
    folder = tmp_path / "pieces"
    folder.mkdir()
    for number in range(2):
        (folder / f"piece-{number:02d}").write_bytes(DATA[number * 40_000 : (number + 1) * 40_000])
    tell(folder, plan)
    return folder


def tell(folder, plan, **other):
    told = {"wheel": NAME, "size": len(DATA), "sha256": hashlib.sha256(DATA).hexdigest(), "pieces": 2}
    (folder / "result.json").write_text(json.dumps({**told, "plan": plan.digest, **other}))


def test_the_pieces_of_a_wheel_make_the_wheel(plan, pieces, tmp_path):
    wheel = join(plan, pieces, tmp_path / "wheel")
    assert wheel == tmp_path / "wheel" / NAME
    assert wheel.read_bytes() == DATA


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "piece-01").unlink(), "lacks piece-01"),
        (lambda folder: (folder / "piece-01").write_bytes(b"short"), "are not 76800 bytes together"),
        (lambda folder: (folder / "piece-01").write_bytes(bytes(36_800)), "its sha256 differs"),
        (lambda folder: (folder / "result.json").unlink(), r"result\.json: No such file"),
        (lambda folder: (folder / "result.json").write_text("[]"), "is not what a bundle's run writes"),
        (lambda folder: (folder / "result.json").write_bytes(b"\xff" * 100_000), "is not what a bundle's run writes"),
    ],
)
def test_what_is_not_whole_is_refused_and_leaves_no_wheel(plan, pieces, tmp_path, spoil, message):
    spoil(pieces)
    with pytest.raises(UsageError, match=message):
        join(plan, pieces, tmp_path / "wheel")
    assert list(tmp_path.rglob("*.whl")) == []


@pytest.mark.parametrize("name", ["../evil.whl", "/evil.whl", "a/b.whl", ".whl", "x.tar", "a\nb.whl"])
def test_a_name_that_leads_elsewhere_is_refused(plan, pieces, tmp_path, name):
    tell(pieces, plan, wheel=name)
    with pytest.raises(UsageError, match="is not what a bundle's run writes"):
        join(plan, pieces, tmp_path / "wheel")
    assert list(tmp_path.rglob("*.whl")) == []


def test_a_build_of_another_plan_is_refused(root, plan, pieces, tmp_path):
    other = resolve(root, Selectors(Variant.parse("cpu-sse41-py311"), "canary"))
    with pytest.raises(UsageError, match=f"a build of plan {plan.digest[:12]}, this is plan {other.digest[:12]}"):
        join(other, pieces, tmp_path / "wheel")
