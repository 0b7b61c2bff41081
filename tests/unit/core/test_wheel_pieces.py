"""What a bundle's run gave back: only the whole wheel of this very plan is taken."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from farm.base.errors import UsageError
from farm.engines.transfer import RefusedOutputError
from farm.run.offline_bundle import STAND_IN, join_pieces, stand_ins
from tests.plans import plan_of

SCRIPTS = Path(__file__).parents[3] / "dockerfiles/scripts"
NAME = "canary-0.1.0+cpu.avx-cp37-abi3-linux_x86_64.whl"
WHEEL = bytes(range(256)) * 300


def packed(**members):
    """What `run` cuts into pieces: a tar of files, with members that a hostile machine may put
    there.
    """
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, data in {
            f"built/wheel/{NAME}": WHEEL,
            "built/lib/libx.so.1": b"library",
            **members,
        }.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


DATA = packed()


@pytest.fixture(scope="session")
def plan():
    return plan_of("cpu-avx-py311", "canary")


def give(folder, plan, data=DATA, **other):
    folder.mkdir(exist_ok=True)
    for number in range(2):
        (folder / f"piece-{number:02d}").write_bytes(
            data[number * 40_000 :][: 40_000 if number == 0 else None]
        )
    result = {
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "pieces": 2,
        "plan": plan.digest,
    }
    (folder / "result.json").write_text(json.dumps({**result, **other}))
    return folder


@pytest.fixture
def pieces(tmp_path, plan):
    return give(tmp_path / "pieces", plan)


def test_the_pieces_make_the_wheel_and_its_libraries(plan, pieces, tmp_path):
    wheel = join_pieces(plan, pieces, tmp_path / "built")
    assert wheel == tmp_path / "built/wheel" / NAME
    assert wheel.read_bytes() == WHEEL
    assert (tmp_path / "built/lib/libx.so.1").read_bytes() == b"library"
    assert stand_ins(tmp_path / "built/lib") == []


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "piece-01").unlink(), "lacks piece-01"),
        (
            lambda folder: (folder / "piece-01").write_bytes(b"short"),
            f"are not {len(DATA)} bytes together",
        ),
        (
            lambda folder: (folder / "piece-01").write_bytes(bytes(len(DATA) - 40_000)),
            "are damaged: their sha256",
        ),
        (lambda folder: (folder / "result.json").unlink(), r"result\.json: No such file"),
        (
            lambda folder: (folder / "result.json").write_text("[]"),
            "is not what a bundle's run writes",
        ),
        (
            lambda folder: (folder / "result.json").write_bytes(b"\xff" * 100_000),
            "is not what a bundle's run writes",
        ),
    ],
)
def test_incomplete_pieces_are_refused_and_leave_no_wheel(plan, pieces, tmp_path, spoil, message):
    spoil(pieces)
    with pytest.raises(UsageError, match=message):
        join_pieces(plan, pieces, tmp_path / "built")
    assert list(tmp_path.rglob("*.whl")) == []


@pytest.mark.parametrize("name", ["built/../../evil", "/evil", "built/lib/../../../evil"])
def test_a_member_that_leads_elsewhere_is_refused(plan, tmp_path, name):
    pieces = give(tmp_path / "pieces", plan, packed(**{name: b"x"}))
    with pytest.raises(RefusedOutputError, match="not a plain file below its folder"):
        join_pieces(plan, pieces, tmp_path / "here/built")
    assert list(tmp_path.rglob("evil")) == []


def test_stand_ins_used_only_for_linking_are_recognized(tmp_path):
    (tmp_path / "libcublas.so.11").write_bytes(b"\x7fELF...GCC: 12\0" + STAND_IN + b"\0")
    (tmp_path / "libz.so.1").write_bytes(b"\x7fELF")
    assert stand_ins(tmp_path) == ["libcublas.so.11"]
    packer = (SCRIPTS / "pack_toolchain.py").read_text(encoding="utf-8")
    assert f'STAND_IN = "{STAND_IN.decode()}"' in packer


def test_a_build_of_another_plan_is_refused(plan, pieces, tmp_path):
    other = plan_of("cpu-sse41-py311", "canary")
    with pytest.raises(
        UsageError, match=f"a build of plan {plan.digest[:12]}, this is plan {other.digest[:12]}"
    ):
        join_pieces(other, pieces, tmp_path / "built")
