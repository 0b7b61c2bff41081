import base64
import csv
import hashlib
import io
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.base.errors import VerificationFailedError
from farm.wheel import metadata
from farm.wheel.metadata import Row, compare_record, parse_record, render_record

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # sha256 of nothing
OTHER = hashlib.sha256(b"other").hexdigest()

paths = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r\n\0"), min_size=1)
SIZES_OF_DIGESTS = {"sha256": 32, "sha384": 48, "sha512": 64}
sizes = st.none() | st.integers(0, 2**60)
rows = st.builds(Row, paths, st.none(), sizes, st.just("sha256")) | st.sampled_from(
    list(SIZES_OF_DIGESTS)
).flatmap(
    lambda algorithm: st.builds(
        Row,
        path=paths,
        digest=st.binary(
            min_size=SIZES_OF_DIGESTS[algorithm], max_size=SIZES_OF_DIGESTS[algorithm]
        ).map(bytes.hex),
        size=sizes,
        algorithm=st.just(algorithm),
    )
)


def test_reads_and_writes_the_documented_form():
    text = b'a/b.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\n"with, comma",,\n'
    expected = [Row("a/b.py", EMPTY, 0), Row("with, comma", None, None)]
    assert parse_record(text) == expected
    assert render_record(expected) == text
    assert base64.urlsafe_b64decode("47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU=").hex() == EMPTY


@given(st.lists(rows))
def test_round_trip(lines):
    assert parse_record(render_record(lines)) == lines


@given(st.binary(max_size=300) | st.text(max_size=100).map(str.encode))
def test_any_bytes_give_rows_or_one_error(raw):
    with suppress(VerificationFailedError):  # any other exception fails the test
        assert all(isinstance(row, Row) for row in parse_record(raw))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"a,b\n", "2 columns"),
        (b"a,md5=abcd,1\n", "accepted are sha256, sha384, sha512"),
        (b"a,sha256=short,1\n", "not a sha256"),
        (
            b"a,sha256=47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU,0\n",
            "not a sha256",
        ),  # not the URL-safe alphabet
        (b"a,,-1\n", "not a size"),
        (b"a,,1e9\n", "not a size"),
        (b"\xff,,\n", "UTF-8"),
        (b'"open,,\n', "not CSV"),
    ],
)
def test_bad_lines_are_named(line, why):
    with pytest.raises(VerificationFailedError, match=why):
        parse_record(line)


def test_compare_finds_every_kind_of_difference():
    files = {
        "ok": (EMPTY, 0),
        "changed": (OTHER, 5),
        "longer": (OTHER, 5),
        "bare": (EMPTY, 0),
        "new": (EMPTY, 0),
    }
    files |= {"i/RECORD": (EMPTY, 0), "i/RECORD.jws": (EMPTY, 0)}
    lines = [
        Row("ok", EMPTY, 0),
        Row("changed", EMPTY, 5),
        Row("longer", OTHER, 4),
        Row("bare", None, None),
        Row("gone", EMPTY, 0),
        Row("ok", EMPTY, 0),
        Row("i/RECORD", None, None),
    ]
    assert compare_record(None, lines, "i/RECORD", files) == [
        ("changed", "its sha256 is not the one in RECORD"),
        ("longer", "its length is not the one in RECORD"),
        ("bare", "listed in RECORD without a hash"),
        ("gone", "listed in RECORD but not in the wheel"),
        ("ok", "listed twice in RECORD"),
        ("new", "in the wheel but not in RECORD"),
    ]
    assert (
        compare_record(
            None, [*lines[:1], lines[-1]], "i/RECORD", {"ok": (EMPTY, 0), "i/RECORD": (OTHER, 9)}
        )
        == []
    )


DIGEST = "sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"
SIZES = ("0", "7", "9" * 18, "9" * 19, "9" * 20)
WORDS = st.sampled_from(
    ["a/b.py", "c d", '"e,f"', DIGEST, *SIZES, ",", ",,", "\n", "\r\n", '"', "", "x"]
)


@given(
    st.lists(WORDS, max_size=12).map("".join),
    st.lists(st.tuples(WORDS, WORDS, WORDS).map(",".join), max_size=5),
)
def test_what_is_read_is_what_a_reader_of_csv_reads(text, lines):
    for content in (text, "\n".join(lines), "\r\n".join([*lines, ""])):
        try:
            found = parse_record(content.encode())
        except VerificationFailedError:
            continue
        expected = [
            line for line in csv.reader(io.StringIO(content, newline=""), strict=True) if line
        ]
        assert [row.path for row in found] == [line[0] for line in expected]
        assert [row.size for row in found] == [
            int(line[2]) if line[2] else None for line in expected
        ]
        assert [row.digest for row in found] == [EMPTY if line[1] else None for line in expected]


@pytest.mark.parametrize("path", ["a", '"a,b"'])
def test_a_size_has_at_most_19_digits(path):
    assert parse_record(f"{path},,{'9' * 19}\n".encode())[0].size == 10**19 - 1
    with pytest.raises(VerificationFailedError, match=f"line 1: '{'9' * 20}' is not a size"):
        parse_record(f"{path},,{'9' * 20}\n".encode())


@pytest.mark.parametrize("path", ["a", '"a,b"'])
def test_the_number_of_record_rows_is_limited(monkeypatch, path):
    monkeypatch.setattr(metadata, "_MAX_ROWS", 50)
    row = f"{path},,\n".encode()
    assert len(parse_record(row * 49)) == 49
    assert len(parse_record(row * 50)) == 50
    with pytest.raises(VerificationFailedError, match="more than 50 rows"):
        parse_record(row * 51)


@pytest.mark.parametrize(
    "bad",
    [
        DIGEST[:-1],
        DIGEST + "A",
        DIGEST.replace("256", "255"),
        DIGEST[:-1] + "V",
        DIGEST[:-1] + "+",
        DIGEST[7:],
    ],
)
def test_one_wrong_digest_among_right_ones_is_named(bad):
    with pytest.raises(VerificationFailedError, match="RECORD line 2: "):
        parse_record(f"a,{DIGEST},7\nb,{bad},7\nc,{DIGEST},7\n".encode())
