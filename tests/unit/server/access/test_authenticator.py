"""Who passes the authenticator: tokens of a real store."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pytest

from fractune_core.access.tokens import Quotas, Scope, TokenText
from fractune_core.errors import AccessRefused, ScopeMissing, TooManyAttempts
from fractune_core.jobs import Priority
from fractune_server.access.authenticator import BURST, Attempts, Authenticator, Caller
from fractune_server.store.store import Store, sqlite_url

PEER = "ipv4:192.0.2.1:5000"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    made = Store(sqlite_url(tmp_path_factory.mktemp("state")))
    yield made
    made.close()


@pytest.fixture
def authenticator(store: Store) -> Authenticator:
    return Authenticator(store.tokens, token_needed=True, attempts=Attempts(lambda: 0.0))


def admit(
    authenticator: Authenticator, token: TokenText | str | None, needed: Scope = Scope.READ, peer: str = PEER
) -> Caller:
    text = token.text if isinstance(token, TokenText) else token
    return authenticator.admit("/a/b", needed, peer, {} if text is None else {"authorization": f"Bearer {text}"})


def test_a_token_passes_with_its_scope_and_quotas(authenticator: Authenticator, store: Store) -> None:
    made = store.tokens.create("ci", Scope.SUBMIT, time.time() + 60, Quotas(open_jobs=3))
    assert admit(authenticator, made, Scope.SUBMIT) == Caller(
        made.token_id, Scope.SUBMIT, Quotas(open_jobs=3), Priority.NORMAL, token_name="ci"
    )
    with pytest.raises(ScopeMissing, match=rf"token {made.token_id} \(ci\) has the scope submit, .* needs operate"):
        admit(authenticator, made, Scope.OPERATE)


def test_expired_and_revoked_ones_do_not(authenticator: Authenticator, store: Store) -> None:
    old = store.tokens.create("old", Scope.ADMIN, time.time() - 1, Quotas())
    with pytest.raises(AccessRefused, match="is expired"):
        admit(authenticator, old)
    made = store.tokens.create("gone", Scope.ADMIN, None, Quotas())
    assert admit(authenticator, made).scope is Scope.ADMIN
    assert store.tokens.revoke(made.token_id)
    with pytest.raises(AccessRefused, match="is revoked"):
        admit(authenticator, made)


def test_wrong_and_missing_ones_do_not_and_nothing_tells_which_id_exists(
    authenticator: Authenticator, store: Store
) -> None:
    made = store.tokens.create("ci", Scope.ADMIN, None, Quotas())
    said = set()
    for wrong in (
        f"fractune_{made.token_id}_{'0' * 64}",
        f"fractune_{'0' * 12}_{made.secret}",
        "guess",
        made.text[:-1],
    ):
        with pytest.raises(AccessRefused) as refused:
            admit(authenticator, wrong)
        said.add(str(refused.value))
    assert len(said) == 1
    with pytest.raises(AccessRefused, match="needs a token"):
        admit(authenticator, None)


def test_wrong_ones_are_slowed_by_address_and_missing_ones_are_not(authenticator: Authenticator, store: Store) -> None:
    made = store.tokens.create("ci", Scope.ADMIN, None, Quotas())
    for _ in range(2 * BURST):
        with pytest.raises(AccessRefused, match="needs a token"):
            admit(authenticator, None)
    for _ in range(BURST):
        with pytest.raises(AccessRefused, match="does not know"):
            admit(authenticator, "guess")
    with pytest.raises(TooManyAttempts, match=r"try again in \d\.\d s"):
        admit(authenticator, made)
    assert admit(authenticator, made, peer="ipv4:192.0.2.2:5000").token_id == made.token_id


def test_a_certificate_in_place_of_a_token(store: Store) -> None:
    authenticator = Authenticator(store.tokens, token_needed=False)
    assert admit(authenticator, None, Scope.ADMIN) == Caller()
    made = store.tokens.create("ci", Scope.READ, None, Quotas())
    with pytest.raises(ScopeMissing):
        admit(authenticator, made, Scope.SUBMIT)
    with pytest.raises(AccessRefused):
        admit(authenticator, "guess")


def test_a_socket_of_this_machine_asks_for_nothing(authenticator: Authenticator) -> None:
    assert admit(authenticator, None, Scope.ADMIN, peer="unix:") == Caller()


def test_a_stranger_does_not_fill_the_log(authenticator: Authenticator, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(10 * BURST):
        with pytest.raises(AccessRefused):
            admit(authenticator, None)
    assert BURST <= len(caplog.records) <= 2 * BURST


def test_refusals_are_logged_without_secrets(
    authenticator: Authenticator, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    made = store.tokens.create("ci", Scope.READ, None, Quotas())
    with caplog.at_level(logging.DEBUG):
        for wrong in (made, TokenText(made.token_id, "f" * 64)):
            with pytest.raises(AccessRefused):
                admit(authenticator, wrong, Scope.ADMIN)
    assert "refused /a/b from ipv4:192.0.2.1:5000" in caplog.text
    assert made.secret not in caplog.text
    assert "f" * 64 not in caplog.text
    assert made.secret not in repr(made)
