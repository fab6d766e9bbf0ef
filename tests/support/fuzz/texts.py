"""Texts and small files: shares, page tokens, tokens, credentials, addresses."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from fractune.cli.options import fleet_secret, redis_address
from fractune_core.access import TokenText, read_authority, read_pair, read_token_file, without_password
from fractune_core.errors import BadRequest
from fractune_core.fleet.redis_state import no_redis
from fractune_core.model_inputs import MOST_SIZE, NamedSizes
from fractune_core.shares import parse_shares
from fractune_server.authenticator import ANYBODY, set_caller
from fractune_server.services.paging import PageTokens
from tests.support.fuzz.mutations import Mutator
from tests.support.fuzz.target import Target

_WORDS = (
    *("cpu", "mps", "mps-sm", "mig", "green", "full", "none", ":", ",", " ", "1", "0", "9", "25", "100", "101", "9999"),
    *(
        "1g.18gb",
        "+me",
        "MIG-",
        "12345678-1234-1234-1234-123456789abc",
        "-1",
        "٣",
        "²",
        "\n",
        "\t",
        "\0",
        "\ud800",
        "é",
    ),
)
set_caller(ANYBODY)
TOKENS = PageTokens(b"secret")
_PAGES = (
    TOKENS.write([0.5, 7]),
    TOKENS.write([3]),
    TOKENS.write([float("nan"), 1]),
    TOKENS.write([10**30]),
    "====",
    "W10=",
)
_URLS = (
    *(
        "redis://user@host:6379/0",
        "rediss://:secret@host",
        "unix:///run/redis.sock?password=secret",
        "redis://[::1]:1/x",
    ),
)
_TOKEN = TokenText("0123456789ab", "f" * 64).text


_SIZES = (
    *("s", "past", " + ", " - ", "*", " ", "+", "?", "-1", "a/b", "(", "ids:0", ":", "2147483647", "0", "1", "2", "7"),
    *("|", "|", "|", "=", "\u0663", "9" * 40),
)


def _named_sizes(text: str) -> None:
    """Names of axes, then `key=size`."""
    *dims, last = text.split("|")
    key, _, size = last.partition("=")
    names = NamedSizes({"ids": dims, "mask": ["s", "past"]})
    sizes = {key or "s": int(size)} if size.isascii() and size.isdecimal() else {"s": 3, "past": 4}
    known = names.solved({"ids": [7]} if key else {}, sizes)
    for name, axis in names.axes:
        found = names.shape(name, known)[axis]
        assert found is None or isinstance(found, int)
    assert all(1 <= each <= MOST_SIZE for each in known.values())


def _shares(text: str) -> None:
    for share in parse_shares(text):
        assert parse_shares(str(share)) == [share]
        assert share.host_cores > 0


def _page(text: str) -> None:
    for length in (1, 2):
        with contextlib.suppress(BadRequest):
            place = TOKENS.read(text, length)
            assert place is None or TOKENS.read(TOKENS.write(place), length) is not None
    TOKENS.read(text, 1)


def _address(url: str) -> None:
    shown = without_password(url)
    assert ":secret@" not in shown
    raise no_redis(url, ValueError("fuzz"))


class _Folder:
    """Where the files of a target lie."""

    def __init__(self) -> None:
        self.path = Path()

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            self.path = Path(folder)
            yield

    def written(self, read: Callable[[Path], object]) -> Callable[[bytes], None]:
        """What takes bytes, of a reader of files."""

        def take(payload: bytes) -> None:
            path = self.path / "file"
            path.write_bytes(payload)
            read(path)

        return take


def file_target(name: str, make: Callable[[Mutator], bytes], read: Callable[[Path], object], weight: int) -> Target:
    """A target that reads files."""
    folder = _Folder()
    return Target(name, make, folder.written(read), folder.opened, weight)


def _credentials(path: Path) -> None:
    refusals: list[BadRequest] = []
    readers: tuple[Callable[[], object], ...] = (
        lambda: read_token_file(path),
        lambda: fleet_secret(path),
        lambda: redis_address("redis://user@host", path),
        lambda: read_authority("--ca", path),
        lambda: read_pair("--tls-cert", path, "--tls-key", path),
    )
    for read in readers:
        try:
            read()
        except BadRequest as error:
            refusals.append(error)
    if refusals:
        raise refusals[0]


_PEM = b"-----BEGIN CERTIFICATE-----\nMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA\n-----END CERTIFICATE-----\n"

TARGETS = (
    Target("shares", lambda mutator: mutator.words(_WORDS, 8), _shares, weight=30),
    Target("sizes by name", lambda mutator: mutator.words(_SIZES, 14), _named_sizes, weight=6),
    Target("page tokens", lambda mutator: mutator.text(mutator.random.choice(_PAGES)), _page, weight=6),
    Target("tokens", lambda mutator: mutator.text(_TOKEN), TokenText.parse, weight=10),
    Target("addresses of Redis", lambda mutator: mutator.text(mutator.random.choice(_URLS)), _address, weight=6),
    file_target(
        "credential files", lambda m: m.blob(m.random.choice((_TOKEN.encode(), _PEM, b"secret\n"))), _credentials, 2
    ),
)
