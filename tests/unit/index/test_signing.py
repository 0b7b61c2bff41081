"""Keys and envelopes."""

import json
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.base.errors import UsageError, VerificationFailedError
from farm.index.signing import load_public, load_signer, new_key, opened

TYPE = "application/x-test"


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    private = tmp_path_factory.mktemp("keys") / "farm.key"
    public = new_key(private)
    return private, public


def trusted(public):
    key = load_public(public)
    return {key.keyid: key}


def test_a_new_key_is_secret_and_is_never_written_over(pair):
    private, public = pair
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert b"PRIVATE" not in public.read_bytes()
    before = private.read_bytes()
    with pytest.raises(UsageError, match="exists; a key is never written over"):
        new_key(private)
    assert private.read_bytes() == before


def test_a_new_keys_folder_is_made_for_its_owner_alone(tmp_path):
    new_key(tmp_path / "keys" / "farm.key")
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot make the folder .*file: File exists"):
        new_key(tmp_path / "file" / "farm.key")


def test_what_was_signed_is_read_back_and_nothing_else(pair):
    private, public = pair
    signer = load_signer(private)
    envelope = signer.envelope({"a": 1}, TYPE)
    assert envelope == signer.envelope({"a": 1}, TYPE)
    assert opened(envelope, trusted(public), TYPE, "x") == ({"a": 1}, signer.keyid)
    with pytest.raises(VerificationFailedError, match="not application/other"):
        opened(envelope, trusted(public), "application/other", "x")
    changed = json.loads(envelope)
    changed["payload"] = json.loads(signer.envelope({"a": 2}, TYPE))["payload"]
    with pytest.raises(VerificationFailedError, match="not signed by a trusted key"):
        opened(json.dumps(changed).encode(), trusted(public), TYPE, "x")
    with pytest.raises(VerificationFailedError, match="no key is trusted"):
        opened(envelope, {}, TYPE, "x")


def test_a_signer_does_not_show_its_key(pair):
    private, _public = pair
    secret = private.read_text().splitlines()[1]
    assert secret not in repr(load_signer(private))


@pytest.mark.parametrize(
    "content", [b"", b"secret", b"-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n"]
)
def test_files_that_are_no_keys(tmp_path, content):
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="holds no ed25519 private key") as caught:
        load_signer(path)
    assert "c2VjcmV0" not in str(caught.value)
    with pytest.raises(UsageError, match="holds no ed25519 public key"):
        load_public(path)
    with pytest.raises(UsageError, match="cannot read the key"):
        load_signer(tmp_path / "none")


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["payload", "payloadType", "signatures", "keyid", "sig", "x"]), inner, max_size=5
        )
    ),
    max_leaves=12,
)


@given(_json)
def test_no_envelope_crashes_the_reader(pair, document):
    with pytest.raises(VerificationFailedError):
        opened(json.dumps(document).encode(), trusted(pair[1]), TYPE, "x")
