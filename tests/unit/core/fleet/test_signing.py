from __future__ import annotations

import hashlib
import hmac
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractune_core.fleet.signed_messages import Unsigned, open_signed, open_signed_json, sign, sign_json

PURPOSE = "a test"


@given(st.binary(max_size=200), st.binary(min_size=1), st.text(st.characters(exclude_characters="\0", codec="utf-8")))
def test_what_was_signed_opens_with_the_same_secret_for_the_same_purpose(
    payload: bytes, secret: bytes, purpose: str
) -> None:
    assert open_signed(secret, purpose, sign(secret, purpose, payload)) == payload


@given(st.binary(max_size=200), st.integers(0, 500))
def test_a_changed_byte_another_secret_or_another_purpose_does_not(payload: bytes, where: int) -> None:
    signed = bytearray(sign(b"ours", PURPOSE, payload))
    with pytest.raises(Unsigned, match="a test does not carry"):
        open_signed(b"theirs", PURPOSE, bytes(signed))
    with pytest.raises(Unsigned, match="another does not carry"):
        open_signed(b"ours", "another", bytes(signed))
    signed[where % len(signed)] ^= 1
    with pytest.raises(Unsigned):
        open_signed(b"ours", PURPOSE, bytes(signed))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(VALUES)
def test_json_opens_as_it_was(value: object) -> None:
    signed = sign_json(b"ours", PURPOSE, value)
    assert open_signed_json(b"ours", PURPOSE, signed) == open_signed_json(b"ours", PURPOSE, signed.encode()) == value
    for secret, purpose in ((b"theirs", PURPOSE), (b"ours", "another")):
        with pytest.raises(Unsigned):
            open_signed_json(secret, purpose, signed)


@given(st.text(max_size=120) | st.binary(max_size=120))
def test_what_is_no_message_is_unsigned(text: str | bytes) -> None:
    with pytest.raises(Unsigned):
        open_signed_json(b"ours", PURPOSE, text)


def test_a_message_whose_text_was_altered_is_unsigned() -> None:
    signed = sign_json(b"ours", PURPOSE, {"n": 1})
    assert signed.endswith(json.dumps({"n": 1}))
    for altered in (signed.replace("1}", "2}"), signed.upper(), signed[65:], f"{signed} ", signed.replace(" ", "", 1)):
        with pytest.raises(Unsigned):
            open_signed_json(b"ours", PURPOSE, altered)


@pytest.mark.parametrize("text", [b"", b"no JSON", b"\xff", b"[" * 100_000])
def test_signed_text_that_is_no_json_is_refused_as_unsigned(text: bytes) -> None:
    digest = hmac.digest(b"ours", PURPOSE.encode() + b"\0" + text, hashlib.sha256)
    with pytest.raises(Unsigned, match="cannot be read"):
        open_signed_json(b"ours", PURPOSE, digest.hex().encode() + b" " + text)
