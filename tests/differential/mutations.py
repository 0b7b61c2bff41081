"""Changes of wheels, one by one: `MUTATIONS`, in a fixed order.

A change says what verify has to find in the wheel (`cause`, a pattern in its words), or that the wheel stays good.
Whatever an installer or a loader refuses, verify must refuse, for that cause; what is good, all of them take.
"""

import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tests.differential.drafts import Draft, row
from tests.differential.libraries import (
    DYNAMIC,
    LOAD,
    header_of,
    libc_name,
    pe_at,
    pe_sections,
    place_of,
    put,
    python_name,
    renamed,
    with_kind,
    with_rows,
    with_tag,
)
from tests.differential.zipfields import field
from tests.unit.wheel.hostile_make import LINK, Member

Change = Callable[[Draft], None]


@dataclass(frozen=True)
class Mutation:
    """`cause` None: the wheel is as good as it was. `fits`: which wheels can be changed so."""

    name: str
    cause: str | None
    change: Change
    fits: Callable[[Draft], bool] = lambda _: True


MUTATIONS: list[Mutation] = []
_OTHER = b"Metadata-Version: 2.1\nName: other\nVersion: 1.0\n"


def add(name: str, cause: str | None, change: Change, fits: Callable[[Draft], bool] = lambda _: True) -> None:
    MUTATIONS.append(Mutation(name, cause, change, fits))


def edit(member: str, change: Callable[[bytes], bytes]) -> Change:
    """Change the content of a file in `.dist-info`."""

    def run(draft: Draft) -> None:
        name = f"{draft.info}/{member}"
        draft.files[name] = change(draft.files.get(name, b""))

    return run


def header(member: str, key: str, *values: str) -> Change:
    """Other values of a header; none: without it."""

    def run(content: bytes) -> bytes:
        text = content.decode()
        head, gap, body = text.partition("\n\n")
        lines: list[str] = []
        skipping = False
        for line in head.splitlines():
            skipping = line.lower().startswith(f"{key.lower()}:") or (skipping and line[:1] in " \t")
            if not skipping:
                lines.append(line)
        lines = [*(f"{key}: {value}" for value in values), *lines]
        return "\n".join(lines).encode() + (gap + body or "\n").encode()

    return edit(member, run)


def drop(member: str) -> Change:
    return lambda draft: draft.files.pop(f"{draft.info}/{member}") and None


def plus(*names: str, content: bytes = b"", mode: int | None = None) -> Change:
    """Further files; {own}, {data}, {info} stand for the wheel's own names."""

    def run(draft: Draft) -> None:
        for name in names:
            path = name.format(own=draft.package, data=draft.data, info=draft.info)
            draft.files[path] = content
            if mode is not None:
                draft.modes[path] = mode

    return run


def both(*changes: Change) -> Change:
    def run(draft: Draft) -> None:
        for change in changes:
            change(draft)

    return run


def recorded(change: Callable[[list[str]], list[str]]) -> Change:
    def run(draft: Draft) -> None:
        draft.record = change

    return run


def packed(change: Callable[[list[Member]], list[Member]]) -> Change:
    def run(draft: Draft) -> None:
        draft.members = change

    return run


def whole(change: Callable[[bytes], bytes]) -> Change:
    def run(draft: Draft) -> None:
        draft.whole = change

    return run


def called(change: Callable[[str], str]) -> Change:
    def run(draft: Draft) -> None:
        draft.filename = change(draft.filename)

    return run


def first(**fields: Any) -> Change:
    """Other fields of the first member."""
    return packed(lambda members: [replace(members[0], **fields), *members[1:]])


# --- METADATA --------------------------------------------------------------------------------------------------------
for _key, _values, _cause in [
    ("Metadata-Version", (), "Metadata-Version is missing"),
    ("Metadata-Version", ("99.9",), "Metadata-Version is 99.9"),
    ("Metadata-Version", ("3.0",), "Metadata-Version is 3.0"),
    ("Metadata-Version", ("garbage",), "Metadata-Version is garbage"),
    ("Metadata-Version", ("2.1", "2.1"), "Metadata-Version is 2.1, 2.1"),
    ("Name", (), "Name"),
    ("Name", ("somethingelse",), "says somethingelse"),
    ("Name", ("-bad-",), "not a valid|says"),
    ("Name", ("two words",), "not a valid|says"),
    ("Name", ("a", "b"), "2 Name headers"),
    ("Version", (), "Version"),
    ("Version", ("9.9.9",), "9.9.9"),
    ("Version", ("not a version",), "not a version"),
    ("Version", ("1.0", "1.0"), "2 Version headers"),
    ("Requires-Python", ("<3",), "excludes every Python"),
    ("Requires-Python", ("garbage",), "cannot be read"),
    ("Requires-Python", (">=3.8, <",), "cannot be read"),
    ("Requires-Python", (">3.8.*",), "cannot be read"),
    ("Requires-Python", (">= '3.8'",), "cannot be read"),
    ("Requires-Python", ("==3.*",), None),
    ("Requires-Dist", ("numpy >>1",), "cannot be read"),
    ("Requires-Dist", ("numpy ; python_verson < '3'",), "cannot be read"),
    ("Requires-Dist", ("numpy (>=1",), "cannot be read"),
    ("Requires-Dist", ("",), "cannot be read"),
    ("Requires-Dist", ("-numpy",), "cannot be read"),
    ("Requires-Dist", ("numpy[a",), "cannot be read"),
    ("Requires-Dist", ("numpy()",), "parentheses around nothing"),
    ("Requires-Dist", ("numpy; extra == ",), "cannot be read"),
    ("Requires-Dist", ("numpy>=1.*",), "cannot be read"),
    ("Requires-Dist", ("numpy~=1",), "cannot be read"),
    ("Requires-Dist", ("numpy==garbage",), "cannot be read"),
    ("Requires-Dist", ("numpy===anything",), "cannot be read"),
    ("Requires-Dist", ("numpy; 'x' in extras",), "are for lock files"),
    ("Requires-Dist", ("numpy; dependency_groups == 'x'",), "are for lock files"),
    ("Metadata-Version", ("2.1 ",), "Metadata-Version is 2.1"),
    ("Requires-Dist", ("numpy @ ../numpy",), "direct URL|cannot be read"),
    ("Requires-Dist", ("numpy (>=1.20)",), None),
    ("Requires-Dist", ("numpy>=1.20; python_version < '3'",), None),
    ("Provides-Extra", ("a b",), "is not a valid name"),
    ("Provides-Extra", ("-x",), "is not a valid name"),
    ("Provides-Extra", ("",), "is not a valid name"),
    ("Provides-Extra", ("test_two",), None),
    ("Dynamic", ("Name",), "Dynamic"),
    ("Dynamic", ("Nonsense",), "Dynamic"),
    ("Summary", ("one\n        two",), "Summary"),
    ("Description-Content-Type", ("text/html",), "Description-Content-Type"),
    ("Description-Content-Type", ("text/plain; charset=latin-1",), "Description-Content-Type"),
    ("Description-Content-Type", ("text/markdown; variant=Nonsense",), "Description-Content-Type"),
    ("License-Expression", ("Nonsense-1.0",), "License-Expression"),
    ("License-File", ("/etc/passwd",), "License-File"),
    ("License-File", ("../LICENSE",), "License-File"),
    ("Keywords", ("one,two",), None),
    ("Home-page", ("nonsense",), None),
    ("Project-URL", ("no comma",), None),
    ("Project-URL", ("a, https://example.org", "a, https://example.com"), "Project-URL"),
    ("Unknown-Header", ("x",), None),
    ("Classifier", ("Private :: Do Not Upload",), None),
    ("Obsoletes-Dist", ("x >>1",), None),
    ("Platform", ("any",), None),
]:
    _new = _key in ("Dynamic", "License-Expression", "License-File")
    _run = header("METADATA", _key, *_values)
    if _new:
        _run = both(
            header("METADATA", "Metadata-Version", "2.4"),
            header("METADATA", "License"),
            header("METADATA", "Classifier"),
            _run,
        )
    add(f"metadata-{_key}-{'-'.join(_values) or 'none'}"[:60], _cause, _run)
add("metadata-missing", "METADATA.*missing", drop("METADATA"))
add("metadata-empty", "Name", edit("METADATA", lambda _: b""))
add("metadata-latin-1", "not UTF-8", edit("METADATA", lambda raw: raw.replace(b"\n", b"\nAuthor: \xe9\n", 1)))
add("metadata-utf-16", "UTF-8|Name", edit("METADATA", lambda raw: raw.decode().encode("utf-16")))
add("metadata-bom", "Metadata-Version|Name", edit("METADATA", lambda raw: b"\xef\xbb\xbf" + raw))
add("metadata-crlf", None, edit("METADATA", lambda raw: raw.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")))
add("metadata-first-line-empty", "Name", edit("METADATA", lambda raw: b"\n" + raw))
for _name, _line in [("blank-behind", rb"\1 "), ("folded", rb"Name:\n \2")]:
    add(
        f"metadata-name-{_name}",
        "not a valid distribution name",
        edit("METADATA", lambda raw, line=_line: re.sub(rb"(?m)^(Name: (.*))$", line, raw, count=1)),
    )
add("metadata-escape-in-name", "control", header("METADATA", "Name", "a\x1b[2J"))
add("metadata-nul-in-version", "control|Version", header("METADATA", "Version", "1.0\0"))
add(
    "metadata-description-twice",
    "Description",
    edit("METADATA", lambda raw: b"Description: x\n" + raw.rstrip() + b"\n\nbody\n"),
)
add(
    "metadata-1.0-with-extras",
    "Provides-Extra|introduced",
    both(header("METADATA", "Provides-Extra", "x"), header("METADATA", "Metadata-Version", "1.0")),
)

# --- WHEEL -----------------------------------------------------------------------------------------------------------
for _key, _values, _cause in [
    ("Wheel-Version", (), "Wheel-Version is missing"),
    ("Wheel-Version", ("2.0",), "Wheel-Version 2.0"),
    ("Wheel-Version", ("0.9",), "Wheel-Version 0.9"),
    ("Wheel-Version", ("1.9",), None),
    ("Wheel-Version", ("1",), "Wheel-Version is 1"),
    ("Wheel-Version", ("one",), "Wheel-Version is one"),
    ("Wheel-Version", ("1.0.0",), "Wheel-Version is 1.0.0"),
    ("Wheel-Version", ("",), "Wheel-Version"),
    ("Wheel-Version", ("1.0", "1.0"), "Wheel-Version is"),
    ("Root-Is-Purelib", (), None),
    ("Root-Is-Purelib", ("maybe",), "Root-Is-Purelib"),
    ("Root-Is-Purelib", ("true", "false"), "Root-Is-Purelib"),
    ("Root-Is-Purelib", ("TRUE",), None),
    ("Generator", (), None),
    ("Tag", (), "tags"),
    ("Tag", ("py2-none-any",), "tags"),
    ("Tag", ("garbage",), "not a tag"),
    ("Tag", ("cp311-cp311",), "not a tag"),
    ("Tag", ("a-b-c-d",), "not a tag"),
    ("Tag", ("",), "not a tag"),
    ("Build", ("1",), None),
]:
    add(f"wheel-{_key}-{'-'.join(_values) or 'none'}"[:60], _cause, header("WHEEL", _key, *_values))
add(
    "wheel-version-upper", "Wheel-Version is missing", edit("WHEEL", lambda raw: raw.replace(b"Wheel-V", b"WHEEL-V", 1))
)
add("wheel-missing", "WHEEL.*missing", drop("WHEEL"))
add("wheel-empty", "Wheel-Version", edit("WHEEL", lambda _: b""))
add("wheel-latin-1", "not UTF-8", edit("WHEEL", lambda raw: raw.rstrip() + b"\nX: \xe9\n"))
add("wheel-bom", "Wheel-Version", edit("WHEEL", lambda raw: b"\xef\xbb\xbf" + raw))
add("wheel-first-line-empty", "Wheel-Version", edit("WHEEL", lambda raw: b"\n" + raw))
add("wheel-cut-by-empty-line", "tags", edit("WHEEL", lambda raw: raw.replace(b"Tag:", b"\nTag:", 1)))


# --- RECORD ----------------------------------------------------------------------------------------------------------
def _replaced(index: int, change: Callable[[str], str]) -> Change:
    return recorded(lambda lines: [*lines[:index], change(lines[index]), *lines[index:][1:]])


for _name, _cause, _change in [
    ("missing-row", "in the wheel but not in RECORD", recorded(lambda lines: lines[1:])),
    ("extra-row", "not in the wheel", recorded(lambda lines: [*lines, row("never/there.py", b"")])),
    ("wrong-hash", "sha256 is not", recorded(lambda lines: [row(lines[0].partition(",")[0], b"x"), *lines[1:]])),
    ("wrong-size", "length", _replaced(0, lambda line: line + "1")),
    ("md5", "accepted are sha256", _replaced(0, lambda line: line.partition(",")[0] + ",md5=1B2M2Y8AsgTpgAmY7PhCfg,0")),
    (
        "sha1",
        "accepted are sha256",
        _replaced(0, lambda line: line.partition(",")[0] + ",sha1=2jmj7l5rSw0yVb_vlWAYkK_YBwk,0"),
    ),
    ("unknown-hash", "accepted are sha256", _replaced(0, lambda line: line.partition(",")[0] + ",crc=abc,0")),
    (
        "hash-in-hexadecimal",
        "not a sha256",
        _replaced(0, lambda line: line.partition(",")[0] + ",sha256=" + "0" * 64 + ",0"),
    ),
    ("hash-padded", "not a sha256", _replaced(0, lambda line: line.replace(",", "=,").replace("=,", ",", 1))),
    ("no-hash", "without a hash", _replaced(0, lambda line: line.partition(",")[0] + ",,")),
    ("no-size", "without its length", _replaced(0, lambda line: line.rpartition(",")[0] + ",")),
    ("two-columns", "columns", _replaced(0, lambda line: line.rpartition(",")[0])),
    ("four-columns", "columns", _replaced(0, lambda line: line + ",x")),
    ("negative-size", "size", _replaced(0, lambda line: line.rpartition(",")[0] + ",-1")),
    ("size-in-words", "size", _replaced(0, lambda line: line.rpartition(",")[0] + ",many")),
    ("twice", "twice", recorded(lambda lines: [lines[0], *lines])),
    ("open-quote", "CSV", _replaced(0, lambda line: '"' + line)),
    ("absolute", "not in the wheel", recorded(lambda lines: ["/etc/passwd,,", *lines])),
    ("climbing", "not in the wheel", recorded(lambda lines: ["../../../x.py,,", *lines])),
    (
        "backslashes",
        "not in the wheel",
        _replaced(0, lambda line: line.replace("/", "\\", 1) if "/" in line else "x\\" + line),
    ),
    ("itself-missing", "RECORD", recorded(lambda lines: lines[:-1])),
    ("itself-hashed", "RECORD", _replaced(-1, lambda line: row(line.partition(",")[0], b"x"))),
    ("not-utf-8", "UTF-8", recorded(lambda lines: [*lines, "\udcff.py,,"])),
    ("empty", "RECORD", recorded(lambda _: [])),
    ("crlf", None, recorded(lambda lines: [line + "\r" for line in lines])),
    ("empty-lines", "an empty line", recorded(lambda lines: [*lines, "", ""])),
    ("all-quoted", None, recorded(lambda lines: [",".join(f'"{part}"' for part in line.split(",")) for line in lines])),
]:
    add(f"record-{_name}", _cause, _change)
add(
    "record-file-missing",
    "RECORD.*missing",
    packed(lambda members: [each for each in members if not str(each.name).endswith("/RECORD")]),
)
add("record-signature-listed", "RECORD.jws", plus("{info}/RECORD.jws", content=b"{}"))
add(
    "record-signature",
    None,
    both(
        plus("{info}/RECORD.jws", content=b"{}"),
        recorded(lambda lines: [line for line in lines if "RECORD.jws" not in line]),
    ),
)

# --- entry points ----------------------------------------------------------------------------------------------------
for _name, _cause, _text in [
    ("good", None, b"[console_scripts]\nmy-run = six:print_\n"),
    ("climbs", "name is none", b"[console_scripts]\n../../evil = m:f\n"),
    ("absolute", "name is none", b"[console_scripts]\n/tmp/evil = m:f\n"),
    ("space", "name is none", b"[console_scripts]\na b = m:f\n"),
    ("backslash", "name is none", b"[console_scripts]\na\\b = m:f\n"),
    ("no-function", "names no function", b"[console_scripts]\nx = m\n"),
    ("call", "names no object", b"[console_scripts]\nx = m:f()\n"),
    ("code", "names no object", b"[console_scripts]\nx = import os; os:system\n"),
    ("keyword-digit", "names no object", b"[console_scripts]\nx = 9m:f\n"),
    ("no-value", "cannot be read", b"[console_scripts]\nx\n"),
    ("empty-value", "names no object", b"[console_scripts]\nx = \n"),
    ("no-group", "cannot be read", b"x = m:f\n"),
    ("open-group", "cannot be read", b"[console_scripts\nx = m:f\n"),
    ("twice", "cannot be read", b"[console_scripts]\nx = m:f\nx = m:g\n"),
    ("behind-group", "cannot be read by pip", b"[one]\na = m:f\n[two]}\nb = m:f\n"),
    ("continued", "cannot be read by pip", b"[my.plugins]\na = m:f\n  [x]}\n"),
    ("semicolon", "cannot be read by pip", b"[my.plugins]\n; nothing\na = m:f\n"),
    ("group-twice", "cannot be read", b"[console_scripts]\nx = m:f\n[console_scripts]\ny = m:g\n"),
    ("latin-1", "cannot be read", b"[console_scripts]\nx\xe9 = m:f\n"),
    ("bom", "cannot be read", b"\xef\xbb\xbf[console_scripts]\nx = m:f\n"),
    ("python", "environment|entry point", b"[console_scripts]\npython = m:f\n"),
    ("pip-like", None, b"[console_scripts]\npip3 = m:f\n"),
    ("colon-delimiter", "cannot be read", b"[console_scripts]\nx: m\n"),
    ("unicode-name", None, "[console_scripts]\nx\u00e9 = m:f\n".encode()),
    ("extras", None, b"[console_scripts]\nx = m:f [one,two]\n"),
    ("broken-extras", "names no object", b"[console_scripts]\nx = m:f [one\n"),
    ("attr-dot", "names no object", b"[console_scripts]\nx = m:f.\n"),
    ("two-colons", "names no object", b"[console_scripts]\nx = m:f:g\n"),
    ("dots", "name is none", b"[console_scripts]\n.. = m:f\n"),
    ("empty-file", None, b""),
    ("comment", None, b"# nothing\n"),
    ("plugin-with-space", None, b"[my.plugins]\na b = m\n"),
    ("indented", None, b"[my.plugins]\n  a = m:f\n"),
    ("percent", None, b"[my.plugins]\na%%b = m:f\n"),
]:
    add(f"entry-points-{_name}", _cause, edit("entry_points.txt", lambda _, text=_text: text))

# --- where files go --------------------------------------------------------------------------------------------------
for _name, _cause, _path in [
    ("scheme-unknown", "is not a scheme", "{data}/wrong/x"),
    ("scheme-upper", "is not a scheme", "{data}/PURELIB/x"),
    ("scheme-file", "is not a scheme", "{data}/purelib"),
    ("scheme-none", "is not a scheme", "{data}/x"),
    ("data-other", "another wheel", "other-1.0.data/purelib/other.py"),
    ("stdlib", "Python's own library", "{data}/data/lib/python3.11/os.py"),
    ("python", "belongs to the environment", "{data}/scripts/python"),
    ("shadow", "has the name of", "json/__init__.py"),
    ("customize", "at its start", "sitecustomize.py"),
    ("long-part", "255 bytes", "{own}/" + "a" * 300 + ".py"),
    ("bidi", "invisible", "{own}/a\u202eyp.py"),
    ("zero-width", "invisible", "{own}/a\u200b.py"),
    ("soft-hyphen", "invisible", "{own}/a\u00ad.py"),
    ("tab", "control", "{own}/a\tb.py"),
    ("newline", "control", "{own}/a\nb.py"),
    ("delete", "control", "{own}/a\x7f.py"),
    ("colon", "colon", "{own}/a:b.py"),
    ("backslash", "backslash", "{own}\\a.py"),
    ("device", "device", "{own}/aux.py"),
    ("dot-end", "dot or space", "{own}/a."),
    ("climb", "normal form", "../evil.py"),
    ("climb-inside", "normal form", "{own}/../../evil.py"),
    ("climb-in-data", "normal form", "{data}/data/../../evil.py"),
    ("absolute", "absolute", "/tmp/farm-evil.py"),
    ("double-slash", "normal form", "{own}//x.py"),
    ("second-info", ".dist-info", "other-2.0.dist-info/METADATA"),
    ("unicode", None, "{own}/\u00e9t\u00e9.txt"),
    ("spaces", None, "{own}/a b.txt"),
    ("comma", None, "{own}/a,b.txt"),
    ("pth", None, "own.pth"),
    ("headers", None, "{data}/headers/own.h"),
    ("share", None, "{data}/data/share/own/readme"),
    ("script", None, "{data}/scripts/own-script"),
    ("dist-info-folder", None, "{info}/licenses/deep/LICENSE"),
    ("direct-url", None, "{info}/direct_url.json"),
    ("installer-file", None, "{info}/INSTALLER"),
    ("requested", None, "{info}/REQUESTED"),
    ("installer-folder", "with the name of a file", "{info}/INSTALLER/x"),
]:
    add(f"tree-{_name}", _cause, plus(_path))


for _name in ('a"b.txt', "a*b.txt", "what?.txt", "<stdin>.txt", "a|b.txt"):
    add(
        f"tree-windows-{_name}",
        "no file on Windows",
        plus("{own}/" + _name),
        lambda draft: draft.filename.endswith(("any.whl", "win_amd64.whl")),
    )


def _again(scheme: str) -> Change:
    def run(draft: Draft) -> None:
        inside = next(name for name in draft.files if ".dist-info/" not in name and ".data/" not in name)
        draft.files[f"{draft.data}/{scheme}/{inside}"] = b"other"

    return run


add("tree-platlib-over-root", "overwrites the other", _again("platlib"))
add("tree-purelib-over-root", "overwrites the other", _again("purelib"))
add("tree-data-over-root", "overwrites the other", _again("data/lib/python3.11/site-packages"))
add("tree-twins", "overwrites the other", plus("{data}/platlib/new.py", "{data}/purelib/new.py"))
add("tree-case-twins", "only by case", plus("{own}/twin.py", "{own}/TWIN.py"))
add("tree-unicode-twins", "normal form", plus("{own}/\u00e9.py", "{own}/e\u0301.py"))
add("tree-below-a-file", "not a folder", plus("{own}/file", "{own}/file/x.py"))
add("tree-data-below-a-file", "which is a file", plus("{own}/file", "{data}/purelib/{own}/file/x.py"))
add(
    "tree-command-over-script",
    "overwrites the other",
    both(plus("{data}/scripts/my-run"), edit("entry_points.txt", lambda _: b"[console_scripts]\nmy-run = m:f\n")),
)
add("tree-link", "symbolic link|out of", plus("{own}/link", content=b"../../../etc/passwd", mode=LINK))
add("tree-fifo", "neither a file", plus("{own}/pipe", mode=0o010644))
add("tree-data-folder-misnamed", "another wheel", plus("{own}-0.data/scripts/x"))


def egg_info(name: str, content: bytes, path: str = "other.egg-info/PKG-INFO") -> None:
    add(
        f"foreign-{name}",
        None if name == "good" else "of another package that pip cannot read",
        plus(path, content=content),
    )


egg_info("good", _OTHER)
egg_info("empty", b"")
egg_info("no-version", _OTHER.partition(b"Version: 1.0")[0])
egg_info("bad-version", _OTHER.replace(b"1.0\n", b"abc\n"))
egg_info("latin-1", _OTHER + b"Author: \xe9\n")
egg_info("no-file", b"", "other.egg-info/SOURCES.txt")
egg_info("in-data", b"", "{data}/purelib/other.egg-info/PKG-INFO")
egg_info("file", b"", "other-1.0.egg-info")
add("info-file", "2 .dist-info folders", plus("other.dist-info"))
add("tree-script-folder", "uv takes files alone", plus("{data}/scripts/deep/run"))


def _moved(change: Callable[[str], str]) -> Change:
    """Another name for the `.dist-info` folder."""

    def run(draft: Draft) -> None:
        info = draft.info
        draft.info = change(info)
        draft.files = {
            draft.info + name[len(info) :] if name.startswith(f"{info}/") else name: content
            for name, content in draft.files.items()
        }

    return run


add("info-other-name", "says", _moved(lambda info: "other-" + info.partition("-")[2]))
add("info-other-version", "version", _moved(lambda info: info.partition("-")[0] + "-99.dist-info"))
add("info-no-version", "version", _moved(lambda info: info.partition("-")[0] + ".dist-info"))
add("info-upper", "dist-info", _moved(lambda info: info.replace(".dist-info", ".DIST-INFO")))
add("info-none", "dist-info", _moved(lambda _: "canary"))
add("info-nested", "dist-info", _moved(lambda info: f"deep/{info}"))

# --- the file's name -------------------------------------------------------------------------------------------------
for _name, _cause, _rename in [
    ("no-tags", "not a wheel's file name", lambda name: name.split("-")[0] + "-1.0.whl"),
    ("version", "version", lambda name: "-".join([name.split("-")[0], "99.0", *name.split("-")[2:]])),
    (
        "version-garbage",
        "not a wheel's file name",
        lambda name: "-".join([name.split("-")[0], "abc", *name.split("-")[2:]]),
    ),
    ("project", "says", lambda name: "other-" + name.partition("-")[2]),
    ("build", None, lambda name: "-".join([*name.split("-")[:2], "1", *name.split("-")[2:]])),
    ("build-letters", "file name", lambda name: "-".join([*name.split("-")[:2], "x1", *name.split("-")[2:]])),
    ("python-tag", "tags", lambda name: "-".join([*name.split("-")[:2], "py4", *name.split("-")[3:]])),
    ("platform-tag", "tags", lambda name: "-".join([*name.split("-")[:-1], "linux_armv6l.whl"])),
    ("upper-ending", "file name", lambda name: name[:-4] + ".WHL"),
    ("zip-ending", "file name", lambda name: name[:-4] + ".zip"),
    ("empty-platform", "file name", lambda name: "-".join([*name.split("-")[:-1], ".whl"])),
    ("double-underscore", "file name|says", lambda name: name.replace("-", "__x-", 1)),
    ("six-parts", "file name", lambda name: name.replace("-", "-a-b-", 1)),
    ("copy", "file name|tags", lambda name: name[:-4] + " (1).whl"),
    ("upper-tag", "not in lower case", lambda name: name.replace("-cp3", "-Cp3").replace("-none-", "-None-")),
    (
        "build-long",
        "not a wheel's file name",
        lambda name: "-".join([*name.split("-")[:2], "9" * 20, *name.split("-")[2:]]),
    ),
]:
    add(f"filename-{_name}", _cause, called(_rename))

# --- the archive -----------------------------------------------------------------------------------------------------
add("zip-cut-half", "not a wheel", whole(lambda raw: raw[: len(raw) // 2]))
add("zip-cut-one-byte", "not a wheel", whole(lambda raw: raw[:-1]))
add("zip-empty", "not a wheel", whole(lambda _: b""))
add("zip-zeros", "not a wheel", whole(lambda raw: bytes(len(raw))))
add("zip-text", "not a wheel", whole(lambda _: b"<!doctype html><title>404</title>" * 10))
add("zip-appended", "end record", whole(lambda raw: raw + b"x" * 100))
add("zip-prefixed", "belong to no member|not where", whole(lambda raw: b"#!/bin/sh\n" + raw))
add("zip-two-archives", "belong to no member|not where", whole(lambda raw: raw + raw))
add("zip-comment", "end record", lambda draft: draft.archive.update(comment=b"hello"))
add("zip-gap", "belong to no member", lambda draft: draft.archive.update(gap=b"hidden"))
add("zip-count-low", "directory", lambda draft: draft.archive.update(end={"here": 1, "count": 1}))
add("zip-count-high", "directory", lambda draft: draft.archive.update(end={"here": 999, "count": 999}))
add("zip-start-wrong", "not where", lambda draft: draft.archive.update(end={"start": 7}))
add("zip-bad-crc", "CRC", first(crc=1))
add("zip-bad-size", "length|contradicts", first(size=7))
add("zip-encrypted", "encrypted", first(flags=1))
add("zip-bzip2", "compression method", first(method=12))
add("zip-lzma", "compression method", first(method=14))
add("zip-zstd", "compression method", first(method=93))
add("zip-garbage", "damaged|length|cut off", first(raw=b"\xff" * 40))
add("zip-stored", None, packed(lambda members: [replace(each, method=0) for each in members]))
add("zip-duplicate", "twice", packed(lambda members: [*members, replace(members[0], data=b"other")]))
add("zip-local-name", "names another member", first(local={"name": "evil.py"}))
add("zip-local-method", "contradicts", first(local={"method": 0}))
add("zip-overlap", "overlaps", packed(lambda members: [*members, replace(members[0], name="z.py", offset=0)]))
add("zip-unicode-path-field", "second name", first(extra=struct.pack("<2HBI", 0x7075, 8, 1, 0) + b"x.y"))
add("zip-extra-cut", "extra fields are cut off", first(extra=struct.pack("<2H", 1, 20) + bytes(5)))
add("zip-extra-zip64", "no other field refers to", first(extra=struct.pack("<2H2Q", 1, 16, 0, 0)))
add("zip-local-zip64", "no other field refers to", first(local={"extra": struct.pack("<2HQ", 1, 8, 0)}))
add("zip-central-descriptor", "contradicts", whole(field("central", "flags", lambda _: 8)))
add("zip-zip64", None, lambda draft: draft.archive.update(end64={}))
add("zip-zip64-damaged", "ZIP64", lambda draft: draft.archive.update(end64={"at": 3}))
add("zip-folders", None, packed(lambda members: [Member("own-folder/", mode=0o040755), *members]))
add(
    "zip-folder-with-content",
    "folder with content",
    packed(lambda members: [Member("own-folder/", b"x", mode=0o040755), *members]),
)
add(
    "zip-bomb",
    "bomb",
    packed(
        lambda members: [
            *members,
            Member("z", raw=zlib.compress(bytes(100 << 20), 9)[2:-4], size=100 << 20, crc=zlib.crc32(bytes(100 << 20))),
        ]
    ),
)
for _where in ("local", "central"):
    add(f"zip-{_where}-version", "newer version of the ZIP format", whole(field(_where, "version", lambda _: 64)))
add("zip-record-first", None, packed(lambda members: [members[-1], *members[:-1]]))


# --- libraries: what the loader refuses ------------------------------------------------------------------------------
def library(change: Callable[[bytes], bytes], *suffixes: str) -> Change:
    def run(draft: Draft) -> None:
        name = draft.library(*suffixes)
        draft.files[name] = change(draft.files[name])

    return run


def _is_glibc(draft: Draft) -> bool:
    """Whether the loader of this machine can be asked: there are extension modules for glibc."""
    return "-manylinux" in draft.filename and any(name.endswith(".so") for name in draft.files)


def elf(name: str, cause: str | None, change: Callable[[bytes], bytes]) -> None:
    add(f"elf-{name}", cause, library(change, ".so"), _is_glibc)


def segment(kind: int, index: int, value: int) -> Callable[[bytes], bytes]:
    """Another value of a field of a program header: 0 type, 1 flags, 2 offset, 3 address, 5 bytes, 7 alignment."""
    places = (0, 4, 8, 16, 24, 32, 40, 48)

    def run(data: bytes) -> bytes:
        at = header_of(data, kind)[0] + places[index]
        return put(data, at, "I" if index < 2 else "Q", value)

    return run


elf("cut-half", "damaged|beyond|outside", lambda data: data[: len(data) // 2])
elf("cut-100", "damaged", lambda data: data[:100])
elf("32-bit", "damaged|built for|bits", lambda data: put(data, 4, "B", 1))
elf("big-endian", "damaged|built for|bits", lambda data: put(data, 5, "B", 2))
elf("version-0", "ELF version", lambda data: put(data, 6, "B", 0))
elf("osabi", "another system", lambda data: put(data, 7, "B", 9))
elf("abi-version", "another system", lambda data: put(data, 8, "B", 9))
elf("machine", "built for", lambda data: put(data, 18, "H", 183))
elf("machine-unknown", "built for", lambda data: put(data, 18, "H", 4711))
elf("kind-object", "neither a library", lambda data: put(data, 16, "H", 1))
elf("kind-program", "a program, not", lambda data: put(data, 16, "H", 2))
elf("kind-core", "neither a library", lambda data: put(data, 16, "H", 4))
elf("header-version", "ELF version", lambda data: put(data, 20, "I", 7))
elf("program-header-size", "program headers|damaged", lambda data: put(data, 54, "H", 55))
elf("no-program-headers", "nothing of it is loaded", lambda data: put(data, 56, "H", 0))
elf("program-headers-beyond", "damaged", lambda data: put(data, 32, "Q", 1 << 40))
elf("no-dynamic", "no dynamic section", segment(DYNAMIC, 0, 0))
elf("no-loads", "damaged", lambda data: with_kind(data, LOAD, 0))
elf("load-address-odd", "does not fit its address|damaged|outside", segment(LOAD, 3, 0x123))
elf("load-beyond", "beyond the end", segment(LOAD, 5, 1 << 40))
elf("load-offset-odd", "damaged", segment(LOAD, 2, 1))
elf("needed-missing", "neither in the wheel nor", lambda data: renamed(data, b"libc.so.6", b"libq.so.6"))
elf("version-missing", "GLIBC|more than", lambda data: renamed(data, b"GLIBC_2.2.5", b"GLIBC_9.9.9"))
elf("symbol-missing", "undefined symbol", lambda data: renamed(data, python_name(data), b"Zy"))
elf("strings-nowhere", "damaged", lambda data: with_tag(data, 5, 1 << 40))
elf("symbols-nowhere", "a table lies outside", lambda data: with_tag(data, 6, 1 << 40))
elf("header-padding", "bytes where there must be none", lambda data: put(data, 9, "B", 1))
elf("load-not-readable", "that cannot be read", segment(LOAD, 1, 0))
elf("load-alignment", "not to pages", segment(LOAD, 7, 0x800))
elf(
    "load-larger",
    "overlap|written where it must be",
    lambda data: put(data, header_of(data, LOAD)[0] + 40, "Q", 1 << 30),
)
elf("dynamic-elsewhere", "not where its header says", segment(DYNAMIC, 3, 1))
elf("dynamic-empty", "no dynamic section", segment(DYNAMIC, 5, 0))
elf("init-nowhere", "outside its code", lambda data: with_tag(data, 12, 0))
elf("init-array-nowhere", "outside its data", lambda data: with_tag(data, 25, 1))
elf("init-array-beyond", "outside its data", lambda data: with_tag(data, 27, 1 << 30))
elf("relocation-size", "it must be 24", lambda data: with_tag(data, 9, 32))
elf("relocations-beyond", "table of relocations lies outside", lambda data: with_tag(data, 8, 24 << 20))
elf("relocation-count", "DT_RELACOUNT", lambda data: with_tag(data, 0x6FFFFFF9, 1 << 30))
elf("relocation-kind", "does not know|DT_RELACOUNT", lambda data: put(data, place_of(data, 7) + 8, "I", 255))
elf("relocation-place", "outside its data", lambda data: put(data, place_of(data, 7), "Q", 1 << 40))
elf(
    "packed-relocations-unversioned",
    "does not require GLIBC_ABI_DT_RELR",
    lambda data: with_rows(data, (36, 0), (35, 0), (37, 8)),  # DT_RELR, which leads to none
)
elf("symbols-elsewhere", "begin with the empty one", lambda data: with_tag(data, 6, 0x40))
elf("hash-filter", "hash table is damaged", lambda data: put(data, place_of(data, 0x6FFFFEF5) + 8, "I", 0))
elf("hash-shift", "does not lead to its symbols", lambda data: put(data, place_of(data, 0x6FFFFEF5) + 12, "I", 31))
elf("relocation-symbol", "symbol that is not in", lambda data: put(data, place_of(data, 23) + 12, "I", 1 << 20))
add(
    "elf-libc-symbol-missing",
    "undefined symbol",
    library(lambda data: renamed(data, libc_name(data), b"Zy"), ".so"),
    lambda draft: _is_glibc(draft) and draft.filename.startswith("psutil"),  # others take weak ones alone
)
elf("symbol-version", "of version 99, which is none", lambda data: put(data, place_of(data, 0x6FFFFFF0) + 2, "H", 99))
elf("version-revision", "in an unknown way", lambda data: put(data, place_of(data, 0x6FFFFFFE), "H", 9))
elf("version-hash", "the hash of the version", lambda data: put(data, place_of(data, 0x6FFFFFFE) + 16, "I", 1))
elf("sections-garbage", None, lambda data: put(put(data, 40, "Q", 0), 60, "HH", 0, 0))


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


for _name, _cause, _change in [
    ("cut-half", "damaged", _cut),
    ("no-signature", "damaged", lambda data: put(data, pe_at(data) - 4, "I", 0)),
    ("machine-32", "built for", lambda data: put(data, pe_at(data), "H", 0x14C)),
    ("machine-arm", "built for", lambda data: put(data, pe_at(data), "H", 0xAA64)),
    ("magic", "damaged", lambda data: put(data, pe_at(data) + 20, "H", 0x999)),
    ("no-optional-header", "damaged", lambda data: put(data, pe_at(data) + 16, "H", 0)),
    ("section-beyond", "damaged", lambda data: put(data, pe_sections(data)[0] + 20, "I", 1 << 30)),
]:
    add(f"pe-{_name}", _cause, library(_change, ".pyd"), lambda draft: "win_amd64" in draft.filename)
