"""The script in the build: what it packs of a compiler cache, and what it lets in."""

import contextlib
import hashlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "dockerfiles/scripts/cache_packs.py"
SCOPE = "canary-0.1.0-x86_64-debian-bookworm"
ONE, TWO, THREE = ("ab12" + digit * 29 for digit in "0gv")
BEGAN = 1_700_000_000


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("cache_packs", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Machine:
    """A cache, and the folder of packs that its builds are given."""

    def __init__(self, folder):
        self.folder, self.cache, self.packs, self.out = folder, folder / "ccache", folder / "packs", folder / "out"
        self.since = folder / "since"
        for each in (self.cache, self.packs):
            each.mkdir(parents=True)
        self.since.touch()
        os.utime(self.since, (BEGAN, BEGAN))
        self.ask()

    def ask(self, stored=(), max_bytes=1 << 20, **more):
        request = {"schema": 1, "scope": SCOPE, "stored": stored, "max_bytes": max_bytes} | more
        (self.packs / "request.json").write_text(json.dumps(request))

    def add(self, key, data, *, age=-10, level=2):
        path = self.cache.joinpath(*key[:level], key[level:])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (BEGAN - age, BEGAN - age))
        return path

    def give(self, data):
        sha256 = hashlib.sha256(data).hexdigest()
        (self.packs / f"{sha256}.tar").write_bytes(data)
        return sha256

    def run(self, *arguments):
        command = [sys.executable, SCRIPT, arguments[0], self.packs, self.cache, *arguments[1:]]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def take(self):
        return self.run("take")

    def put(self):
        """The report, and the new pack."""
        self.run("put", self.since, self.out)
        report = json.loads((self.out / "report.json").read_text())
        packs = [path.read_bytes() for path in self.out.glob("*.tar")]
        for path in self.out.iterdir():
            path.unlink()
        return report, packs[0] if packs else None

    def held(self):
        """Every entry, by its key."""
        tops = [self.cache / digit for digit in "0123456789abcdef"]
        files = [path for top in tops for path in top.rglob("*") if path.is_file()]
        return {"".join(path.relative_to(self.cache).parts): path.read_bytes() for path in files}


@pytest.fixture
def machine(tmp_path):
    return lambda name="here": Machine(tmp_path / name)


def tar(*members, kind=tarfile.USTAR_FORMAT):
    """A tar of (name, content or changes of its TarInfo)."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=kind) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
            else:
                for key, value in content.items():
                    setattr(info, key, value)
            if isinstance(content, bytes):
                archive.addfile(info, io.BytesIO(content))
            else:  # of one that only says to be large there is the header alone; addfile of Python 3.14 refuses that
                archive.fileobj.write(info.tobuf(kind))
                archive.offset = stream.tell()
    return stream.getvalue()


# --- what goes out, and in again -------------------------------------------------------------------


def test_what_a_build_made_or_used_goes_to_another_machine(machine):
    one, two = machine("one"), machine("two")
    one.add(ONE + "R", b"made" * 1000)
    one.add(ONE + "M", b"manifest", level=3)
    one.add(TWO + "R", b"of another build", age=10)
    for name in ("ccache.conf", "CACHEDIR.TAG", "a/stats", "a/b/stats", "a/b/cleaned", f"a/b/12{'x' * 29}R", "tmp/x.R"):
        (one.cache / name).parent.mkdir(parents=True, exist_ok=True)
        (one.cache / name).write_text("ccache's own")
    report, pack = one.put()
    name = hashlib.sha256(pack).hexdigest()
    assert report == {"schema": 1, "held": [], "pack": name, "objects": 1}
    with tarfile.open(fileobj=io.BytesIO(pack)) as archive:
        assert archive.getnames() == [ONE + "M", ONE + "R"]

    assert two.give(pack) == name
    two.ask([name])
    assert two.take() == "farm: 1 packs taken into the compiler cache\n"
    assert two.held() == {ONE + "R": b"made" * 1000, ONE + "M": b"manifest"}
    assert two.put() == ({"schema": 1, "held": [name], "pack": None, "objects": 0}, None)
    two.add(THREE + "R", b"more")
    report, more = two.put()
    assert (report["held"], report["objects"]) == ([name], 1)
    with tarfile.open(fileobj=io.BytesIO(more)) as archive:
        assert archive.getnames() == [THREE + "R"]


def test_the_same_entries_are_the_same_pack(machine):
    packs = []
    for name, level, order in (("one", 2, (ONE, TWO)), ("two", 4, (TWO, ONE))):
        here = machine(name)
        for key in order:
            here.add(key + "R", key.encode(), level=level)
        packs.append(here.put()[1])
    assert packs[0] == packs[1]


def test_a_pack_is_taken_once_and_replaces_nothing(machine):
    here = machine()
    kept = here.add(ONE + "R", b"mine", level=3)
    here.add(ONE + "M", b"mine")
    name = here.give(tar((ONE + "M", b"theirs"), (ONE + "R", b"theirs"), (TWO + "R", b"new")))
    here.ask([name])
    here.take()
    assert here.held() == {ONE + "R": b"mine", ONE + "M": b"mine", TWO + "R": b"new"}
    assert kept.read_bytes() == b"mine"
    assert not (here.cache / ONE[0] / ONE[1] / f"{ONE[2:]}R").exists()
    (here.cache / TWO[0] / TWO[1] / f"{TWO[2:]}R").unlink()
    assert here.take() == ""
    assert here.held() == {ONE + "R": b"mine", ONE + "M": b"mine"}


def test_what_the_store_has_no_more_is_packed_again(machine):
    here = machine()
    here.add(ONE + "R", b"x")
    name = here.put()[0]["pack"]
    here.ask([name])
    assert here.put()[0] == {"schema": 1, "held": [name], "pack": None, "objects": 0}
    here.ask(None)  # a store that does not answer has lost nothing
    assert here.put()[0] == {"schema": 1, "held": [name], "pack": None, "objects": 0}
    here.ask(["f" * 64])
    assert here.put()[0] == {"schema": 1, "held": [], "pack": name, "objects": 1}


def test_what_does_not_fit_goes_with_the_next(machine):
    here = machine()
    sizes = [300_000, 600_000, 300_000]
    for key, size in zip((ONE, TWO, THREE), sizes, strict=True):
        here.add(key + "R", bytes(size))
    here.ask(max_bytes=700_000)
    first, pack = here.put()
    assert len(pack) <= 700_000
    assert first["objects"] == 2
    here.ask([first["pack"]], max_bytes=700_000)
    second, pack = here.put()
    assert len(pack) <= 700_000
    with tarfile.open(fileobj=io.BytesIO(pack)) as archive:
        assert archive.getnames() == [TWO + "R"]
    here.ask([first["pack"], second["pack"]], max_bytes=700_000)
    assert here.put()[0]["pack"] is None


def test_links_in_the_cache_are_not_followed(machine, tmp_path):
    here = machine()
    (tmp_path / "secret").write_text("secret")
    path = here.add(ONE + "R", b"")
    path.unlink()
    path.symlink_to(tmp_path / "secret")
    assert here.put() == ({"schema": 1, "held": [], "pack": None, "objects": 0}, None)


# --- what is not let in ----------------------------------------------------------------------------


HOSTILE = {
    "absolute": tar(("/etc/cron.d/x", b"x")),
    "outside": tar((f"../../{ONE}R", b"x")),
    "outside, with the name of an entry": tar((f"{ONE[:4]}/../{ONE}R", b"x")),
    "a path": tar((f"a/b/{ONE[2:]}R", b"x")),
    "ccache's settings": tar(("ccache.conf", b"remote_storage = http://somewhere\n")),
    "symlink": tar((TWO + "R", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"})),
    "hard link": tar((TWO + "R", {"type": tarfile.LNKTYPE, "linkname": "/etc/passwd"})),
    "folder": tar((TWO + "R", {"type": tarfile.DIRTYPE})),
    "device": tar((TWO + "R", {"type": tarfile.CHRTYPE})),
    "fifo": tar((TWO + "R", {"type": tarfile.FIFOTYPE})),
    "sparse": tar((TWO + "R", {"type": tarfile.GNUTYPE_SPARSE})),
    "long name": tar(("x" * 300, b"x"), kind=tarfile.GNU_FORMAT),
    "pax header": tar(("ü" * 200, b"x"), kind=tarfile.PAX_FORMAT),
    "too large": tar((TWO + "R", {"size": (512 << 20) + 1})),
    "huge": tar((TWO + "R", {"size": 1 << 40}), kind=tarfile.GNU_FORMAT),
    "negative": tar((TWO + "R", {"size": -512}), kind=tarfile.GNU_FORMAT),
    "no kind of entry": tar((TWO + "X", b"x")),
    "newline": tar((TWO + "R\n", b"x")),
    "shorter than it says": tar((TWO + "R", b"x" * 5000))[:3000],
    "no end": tar((TWO + "R", b"x" * 500))[:1024],
    "no tar": b"no tar at all" * 100,
    "gzip": b"\x1f\x8b" + bytes(5000),
    "empty": b"",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_packs(machine, tmp_path, what):
    here = machine()
    name = here.give(HOSTILE[what])
    here.ask([name])
    before = {path for path in tmp_path.rglob("*") if "ccache" not in path.parts}
    said = here.take()
    assert said.startswith(f"farm: pack {name[:12]} of the compiler cache is not taken: "), said
    if what in ("too large", "huge", "negative"):
        assert said.endswith(" is no entry of ccache\n")
    assert set(here.held()) <= {TWO + "R"}  # where only the end is missing, it is an entry like any other
    assert {path for path in tmp_path.rglob("*") if "ccache" not in path.parts} == before
    notes = here.cache / "farm-packs" / SCOPE
    assert [path for path in here.cache.rglob("*") if path.is_file() and notes not in path.parents] == [
        path for path in here.cache.rglob("*R") if path.is_file()
    ]
    assert not any(path.is_symlink() for path in here.cache.rglob("*"))
    assert here.take() == ""  # it is not tried again


def test_nothing_after_what_is_wrong_is_taken_and_other_packs_are(machine):
    here = machine()
    bad = here.give(tar((ONE + "R", b"before"), ("../x", b"x"), (TWO + "R", b"after")))
    good = here.give(tar((THREE + "R", b"good")))
    here.ask([bad, good])
    said = here.take()
    assert "'../x' is no entry of ccache" in said
    assert here.held() == {ONE + "R": b"before", THREE + "R": b"good"}


def test_packs_have_a_bound(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "MAX_ENTRIES", 3)
    monkeypatch.setattr(script, "MAX_FETCHED", 20 * 512)
    here = Machine(tmp_path)
    keys = [f"{number:04x}{'0' * 29}R" for number in range(4)]
    pack = tmp_path / "x.tar"
    pack.write_bytes(tar(*((key, b"x") for key in keys)))
    with pytest.raises(script.Refused, match="more than 3 entries"):
        list(script.unpack(pack, here.cache))
    names = [here.give(tar((key, b"y" * 10))) for key in (ONE + "R", TWO + "R")]
    here.ask(names)
    script.take(here.packs, here.cache)
    assert len({ONE + "R", TWO + "R"} & set(here.held())) == 1


@pytest.mark.parametrize(
    "request_",
    [
        b"",
        b"[]",
        b"{",
        b'{"schema": 1, "scope": 5}',
        b'{"schema": 2, "scope": "x"}',
        b'{"schema": 1, "scope": "../x", "stored": [], "max_bytes": 1}',
    ],
)
def test_a_request_that_is_none_costs_no_build(machine, request_):
    here = machine()
    (here.packs / "request.json").write_bytes(request_)
    here.add(ONE + "R", b"x")
    for said in (here.take(), here.run("put", here.since, here.out)):
        assert said.startswith("farm: the compiler cache goes on without packs: ")
    assert not here.out.exists()
    assert not (here.cache / "farm-packs").exists()
    assert not (here.cache / "x").exists()


ENTRY = tar((ONE + "R", b"x" * 700))


@given(st.one_of(st.binary(max_size=3000), st.tuples(st.integers(0, 1500), st.binary(min_size=1, max_size=40))))
def test_no_pack_does_more_than_be_refused(tmp_path_factory, script, data):
    if not isinstance(data, bytes):  # an entry with some bytes of its header or content changed
        at, other = data
        data = ENTRY[:at] + other + ENTRY[at + len(other) :]
    folder = tmp_path_factory.mktemp("pack")
    cache, pack = folder / "cache", folder / "pack.tar"
    cache.mkdir()
    pack.write_bytes(data)
    taken = []
    with contextlib.suppress(script.Refused):
        taken += script.unpack(pack, cache)
    assert all(script.KEY.fullmatch(key) for key in taken)
    assert {path.name for path in folder.iterdir()} == {"cache", "pack.tar"}
    files = [path for path in cache.rglob("*") if path.is_file()]
    assert all(script.KEY.fullmatch("".join(path.relative_to(cache).parts)) for path in files)
