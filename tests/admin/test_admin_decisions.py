"""The pure and small parts: the status table, rate windows, addresses, password hashes."""

from __future__ import annotations

import importlib
import pkgutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

import sbproxy.errors
from sbproxy.admin.accounts import Accounts, Credentials
from sbproxy.admin.core.addresses import AddressGate, counted_as
from sbproxy.admin.core.guess_limit import PER_ADDRESS, PER_NAME, GuessLimit
from sbproxy.admin.core.page_origin import is_foreign_page
from sbproxy.admin.core.rate_limit import RateLimit
from sbproxy.admin.passwords import PasswordHash, hash_password, verify_password
from sbproxy.admin.statuses import RELOAD_STATUSES, STATUSES, reason_of, reload_status_of, status_of
from sbproxy.config.core.document import AdminConfig, OperatorConfig
from sbproxy.errors import SbproxyError, leaves
from sbproxy.errors.admin import AdminError, PasswordHashInvalid, ReloadInFlight
from sbproxy.errors.artifacts import DigestMismatch, RemovalBlocked
from sbproxy.errors.cli import CliError
from sbproxy.errors.client import ClientError
from sbproxy.errors.config import ConfigError
from sbproxy.errors.gateway import UnusableProvider
from sbproxy.errors.modelhost import AdmissionRejected, ModelHostError, UnknownDeployment
from sbproxy.errors.observe import ObserveError

for _module in pkgutil.iter_modules(sbproxy.errors.__path__, "sbproxy.errors."):
    importlib.import_module(_module.name)

# These live in the processes of the CLI and the console and cannot reach the daemon's admin API.
ELSEWHERE = (CliError, ClientError)
LEAVES = [leaf for leaf in leaves() if not issubclass(leaf, ELSEWHERE)]


ONE_BY_ONE = (AdminError, ConfigError, ModelHostError, ObserveError)


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.__name__)
def test_every_failure_has_a_status(leaf: type[SbproxyError]) -> None:
    placed = [kind for kind in leaf.__mro__ if kind in STATUSES]
    assert placed, f"say in sbproxy/admin/statuses.py what HTTP status {leaf.__name__} has"
    assert placed[0] is leaf or not issubclass(leaf, ONE_BY_ONE), f"{leaf.__name__} needs a status of its own"
    assert 400 <= STATUSES[placed[0]] <= 599
    at_reload = next((RELOAD_STATUSES[kind] for kind in leaf.__mro__ if kind in RELOAD_STATUSES), None)
    assert at_reload in (400, 409, 500, 503), f"say in RELOAD_STATUSES what {leaf.__name__} means for a reload"


def test_no_row_of_the_tables_is_dead() -> None:
    branches = {branch for leaf in LEAVES for branch in leaf.__mro__}
    assert {*STATUSES, *RELOAD_STATUSES} <= branches


def test_statuses_and_reasons() -> None:
    assert status_of(UnknownDeployment("x")) == 404
    assert status_of(DigestMismatch("f", "a" * 64, "b" * 64)) == 502
    assert status_of(RemovalBlocked("a" * 64, "leased")) == 409
    assert reason_of(AdmissionRejected("x", "queue_full")) == "queue_full"
    assert reason_of(UnknownDeployment("x")) == "unknown_deployment"
    assert (reload_status_of(ReloadInFlight("signal")), reload_status_of(UnknownDeployment("x"))) == (409, 500)
    # A branch is the daemon's fault, except for those of its leaves that are the file's.
    assert reload_status_of(UnusableProvider("o", "p", "it has no base_url")) == 400
    assert reload_status_of(DigestMismatch("f", "a" * 64, "b" * 64)) == 500


def test_rate_windows() -> None:
    limit = RateLimit(2, 5)
    assert [limit.take("a", 0.0), limit.take("a", 1.0), limit.take("a", 2.0)] == [True, True, False]
    assert limit.retry_after_s("a", 2.0) == 58
    assert not limit.take("a", 59.9)
    # What was refused has not counted: the window began at 0 and is over at 60.
    assert limit.take("a", 60.0)


def test_the_overall_cap_holds_over_addresses() -> None:
    limit = RateLimit(2, 5)
    assert [limit.take(name, 0.0) for name in "abcdef"] == [True] * 5 + [False]
    assert limit.retry_after_s("f", 10.0) == 50
    assert limit.retry_after_s("g", 1.0) == 59
    assert limit.retry_after_s("g", 60.0) == 0


def test_a_flood_of_addresses_is_bounded() -> None:
    limit = RateLimit(1, 10**9, max_addresses=100)
    for number in range(1000):
        assert limit.take(str(number), 0.0)
    assert len(limit) == 100
    assert not limit.take("999", 0.0)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 30)), max_size=60))
def test_no_minute_holds_more_than_twice_the_cap(requests: list[tuple[str, float]]) -> None:
    """Fixed windows admit at most two caps within any minute, and one within a window."""
    limit, now, taken = RateLimit(3, 7), 0.0, list[tuple[str, float]]()
    for address, pause in requests:
        now += pause
        if limit.take(address, now):
            taken.append((address, now))
    for address, moment in taken:
        within = [when for who, when in taken if who == address and moment <= when < moment + 60]
        assert len(within) <= 6


@pytest.mark.parametrize(
    ("allowed", "remote", "admitted"),
    [
        ([], "127.0.0.1", True),
        ([], "127.9.9.9", True),
        ([], "::1", True),
        ([], "::ffff:127.0.0.1", True),
        ([], "10.0.0.1", False),
        ([], None, False),
        ([], "localhost", False),
        (["10.0.0.0/8"], "10.200.0.1", True),
        (["10.0.0.0/8"], "::ffff:10.1.1.1", True),
        (["10.0.0.0/8"], "127.0.0.1", False),
        (["10.0.0.5"], "10.0.0.5", True),
        (["10.0.0.5/8"], "10.9.9.9", True),
        (["fe80::/10"], "fe80::1%eth0", True),
        (["fd00::1"], "10.0.0.5", False),
    ],
)
def test_addresses(allowed: list[str], remote: str | None, admitted: bool) -> None:
    assert AddressGate(allowed).admits(remote) is admitted


@pytest.mark.parametrize(
    ("remote", "name"),
    [
        ("127.0.0.1", "loopback"),
        ("127.200.3.4", "loopback"),
        ("::1", "loopback"),
        ("::ffff:127.0.0.9", "loopback"),
        ("::ffff:10.1.1.1", "10.1.1.1"),
        ("10.1.1.1", "10.1.1.1"),
        ("fe80::1%eth0", "fe80::1"),
        ("", ""),
        (None, ""),
    ],
)
def test_what_is_counted_as_one_client(remote: str | None, name: str) -> None:
    assert counted_as(remote) == name


def test_guesses_for_one_name_from_one_address() -> None:
    limit = GuessLimit({"admin", "chief"})
    assert [limit.reserve("a", "admin", 0.0) for _ in range(PER_ADDRESS)] == [0] * PER_ADDRESS
    assert limit.reserve("a", "admin", 10.0) == 50
    # Neither another name nor another address pays for it.
    assert limit.reserve("a", "chief", 10.0) == 0
    assert limit.reserve("b", "admin", 10.0) == 0
    assert limit.reserve("a", "admin", 60.0) == 0


@pytest.mark.parametrize("name", ["admin", "made up"])
def test_guesses_for_one_name_from_many_addresses(name: str) -> None:
    """Alike for a name that exists and one that does not."""
    limit = GuessLimit({"admin", "chief"})
    tried = [limit.reserve(str(number), name, 0.0) for number in range(PER_NAME + 5)]
    assert tried == [0] * PER_NAME + [60] * 5
    assert limit.reserve("new", "chief", 0.0) == 0
    assert limit.reserve("new", "another made up", 0.0) == 0


def test_made_up_names_do_not_push_the_count_of_a_real_one_out_of_memory() -> None:
    limit = GuessLimit({"admin"})
    for number in range(PER_NAME):
        limit.reserve(str(number), "admin", 0.0)
    for number in range(12_000):
        limit.reserve("flood", str(number), 1.0)
    assert limit.reserve("0", "admin", 2.0) == 58


def test_right_passwords_do_not_count_and_do_not_wipe_out_guesses() -> None:
    limit = GuessLimit({"admin"})
    for _ in range(3 * PER_NAME):
        assert limit.reserve("a", "admin", 0.0) == 0
        limit.give_back("a", "admin", 0.0)
    guesses = 0
    for _ in range(100):  # somebody guesses while somebody else signs in all the time
        guesses += not limit.reserve("a", "admin", 1.0)
        if not limit.reserve("a", "admin", 1.0):
            limit.give_back("a", "admin", 1.0)
    assert guesses == PER_ADDRESS
    limit.give_back("nobody", "nothing was tried", 1.0)


OWN = "http://127.0.0.1:9090"
CONSOLE = "https://console.example"


@pytest.mark.parametrize(
    ("origins", "fetch_site", "foreign"),
    [
        ([], None, False),
        ([], "same-origin", False),
        ([], "none", False),
        ([], "cross-site", True),
        ([], "same-site", True),
        ([], "Cross-Site", True),
        ([], "", True),
        ([OWN], None, False),
        ([OWN], "same-origin", False),
        (["HTTP://127.0.0.1:9090"], None, False),
        ([OWN], "same-site", True),
        ([CONSOLE], "cross-site", False),
        ([CONSOLE], None, False),
        (["null"], None, True),
        (["null"], "same-origin", True),
        (["http://127.0.0.1:8080"], "same-site", True),
        (["http://127.0.0.1:8080"], None, True),
        (["https://127.0.0.1:9090"], None, True),
        (["http://evil.example"], "none", True),
        ([CONSOLE, "http://evil.example"], None, True),
        ([OWN, "http://evil.example"], None, True),
        ([""], None, True),
    ],
)
def test_pages_of_other_origins(origins: list[str], fetch_site: str | None, foreign: bool) -> None:
    assert is_foreign_page(origins, fetch_site, own=OWN, known={CONSOLE}) is foreign


def test_addresses_that_are_none() -> None:
    with pytest.raises(ValueError, match="host"):
        AddressGate(["host.example"])


def test_password_hashes() -> None:
    text = hash_password("pässword")
    stored = PasswordHash.parse(text)
    assert text.startswith("scrypt$16384$8$1$")
    assert str(stored) == text
    assert verify_password("pässword", stored)
    assert not verify_password("passwort", stored)
    assert hash_password("pässword") != text
    assert "pässword" not in repr(stored)
    assert text.rpartition("$")[2] not in repr(stored)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain",
        "bcrypt$1$2$3$AAAA$AAAA",
        "scrypt$x$8$1$AAAAAAAAAAAAAAAA$AAAA",
        "scrypt$16384$8$1$!$!",
        "scrypt$16383$8$1$AAAAAAAAAAAAAAAAAAAAAA==$AAAAAAAAAAAAAAAAAAAAAAAA",
        "scrypt$1073741824$8$1$AAAAAAAAAAAAAAAAAAAAAA==$AAAAAAAAAAAAAAAAAAAAAAAA",
        "scrypt$16384$8$99$AAAAAAAAAAAAAAAAAAAAAA==$AAAAAAAAAAAAAAAAAAAAAAAA",
        "scrypt$16384$8$1$AAAA$AAAAAAAAAAAAAAAAAAAAAAAA",
        "scrypt$16384$8$1$AAAAAAAAAAAAAAAAAAAAAA==$AAAA",
    ],
)
async def test_unusable_hashes_are_refused_at_the_start(text: str) -> None:
    with pytest.raises(ValueError):
        PasswordHash.parse(text)
    if text:
        config = AdminConfig(operators=[OperatorConfig(username="op", password_hash=text)])
        with pytest.raises(PasswordHashInvalid, match="op"):
            Accounts(config)


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=20), st.text(max_size=20))
async def test_only_the_exact_pair_is_the_top_level_identity(username: str, password: str) -> None:
    accounts = Accounts(AdminConfig(username="admin", password=SecretStr("secret")))
    found = accounts.check_basic(Credentials(username, password))
    assert (found is not None) == ((username, password) == ("admin", "secret"))
    exact = accounts.check_basic(Credentials("admin", "secret"))
    assert exact is not None
    assert "secret" not in repr(exact)
    assert password == "" or password not in repr(Credentials("admin", password)).removeprefix(
        "Credentials(username='admin')"
    )
