from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractune_core.blobs import Unsigned, open_signed, sign


@given(st.binary(max_size=200), st.binary(min_size=1))
def test_what_was_signed_opens_with_the_same_secret(payload: bytes, secret: bytes) -> None:
    assert open_signed(secret, sign(secret, payload)) == payload


@given(st.binary(max_size=200), st.integers(0, 500))
def test_a_changed_byte_or_another_secret_does_not(payload: bytes, where: int) -> None:
    signed = bytearray(sign(b"ours", payload))
    with pytest.raises(Unsigned):
        open_signed(b"theirs", bytes(signed))
    signed[where % len(signed)] ^= 1
    with pytest.raises(Unsigned):
        open_signed(b"ours", bytes(signed))
