"""Where a server may call, and how it signs."""

from __future__ import annotations

import pytest

from examples.webhook_receiver import TOLERANCE_S, is_genuine
from fractune_core.access.webhooks import WebhookRules, signature
from fractune_core.errors import BadRequest

RULES = WebhookRules.parse("ci.example.com, Build.example.com:8443,10.0.0.5:8080")
SECRET, BODY, AT = b"0123456789abcdef", b'{"job": "jobs/1"}', 1_000_000


@pytest.mark.parametrize(
    "url",
    [
        "https://ci.example.com/hooks?token=1",
        "http://ci.example.com",
        "https://CI.example.com:443/",
        "https://build.example.com:8443/x",
        "http://10.0.0.5:8080/x",
    ],
)
def test_named_hosts_are_called(url: str) -> None:
    RULES.check(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/",
        "https://evil.ci.example.com/",
        "https://ci.example.com.evil.org/",
        "https://ci.example.com:22/",
        "https://build.example.com/",
        "http://10.0.0.5/",
        "http://169.254.169.254/latest/meta-data",
        "http://127.0.0.1:8080/",
        "http://[::1]/",
    ],
)
def test_others_are_not_and_the_path_is_told_nobody(url: str) -> None:
    with pytest.raises(BadRequest, match="this server does not call") as refused:
        RULES.check(f"{url}secret")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "ci.example.com",
        "ftp://ci.example.com/",
        "file:///etc/passwd",
        "https://user:word@ci.example.com/",
        "https://ci.example.com@evil.org/",
        "https://evil.org\\@ci.example.com/",
        "https://ci.example.com/#x",
        "https://ci.example.com/\r\nX: y",
        "https://ci.example.com/ x",
        "https://ci.example.com:99999/",
        "https://[ci.example.com/",
        "https://ci.example.com/" + "x" * 2048,
        "",
    ],
)
def test_what_is_no_plain_address_is_refused(url: str) -> None:
    with pytest.raises(BadRequest, match="write http://HOST"):
        RULES.check(url)


def test_without_hosts_nothing_is_called() -> None:
    with pytest.raises(BadRequest, match="this server calls no webhooks; its operator starts it with --webhook-hosts"):
        WebhookRules().check("https://ci.example.com/")


@pytest.mark.parametrize(
    "text", ["https://ci.example.com", "a@b", "ci.example.com/x", "ci:x", "ci:0", ":80", "[::1]:80"]
)
def test_hosts_that_cannot_be_meant(text: str) -> None:
    with pytest.raises(BadRequest, match="write HOST or HOST:PORT"):
        WebhookRules.parse(text)


def test_the_example_takes_what_the_server_signs_and_nothing_else() -> None:
    header = signature(SECRET, AT, BODY)
    assert is_genuine(SECRET, header, BODY, AT + 1)
    assert not is_genuine(SECRET, header, BODY + b" ", AT + 1)
    assert not is_genuine(b"another secret!!", header, BODY, AT + 1)
    assert not is_genuine(SECRET, header.replace(str(AT), str(AT + 9)), BODY, AT + 1)
    assert not is_genuine(SECRET, header, BODY, AT + TOLERANCE_S + 1)
    assert not is_genuine(SECRET, "", BODY, AT)
    assert not is_genuine(SECRET, "v1=", BODY, AT)
