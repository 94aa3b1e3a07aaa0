"""Who may use the admin API: the top-level identity and the configured operators (document 2, "Authentication")."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from sbproxy.admin.passwords import PasswordHash, unmatchable, verify_password
from sbproxy.config.core.document import AdminConfig
from sbproxy.errors.admin import PasswordHashInvalid

Role = Literal["admin", "read_only"]
MAX_CREDENTIAL = 1024
PARALLEL_CHECKS = 2
"""How many slow hashes run at once: each holds a thread and 16 MiB."""
MAX_CHECKS = 64
"""How many may run or wait for their turn, which takes about two seconds then."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a caller presented."""

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Account:
    """A known identity. Exactly one of the two secrets is set."""

    username: str
    role: Role
    password: str | None = field(default=None, repr=False)
    password_hash: PasswordHash | None = field(default=None, repr=False)


class Accounts:
    """Raises PasswordHashInvalid when an operator's hash cannot be used."""

    def __init__(self, config: AdminConfig) -> None:
        self._top = Account(config.username, "admin", config.password.get_secret_value())
        accounts = [self._top]
        for operator in config.operators:
            secret = operator.password.get_secret_value() if operator.password else None
            accounts.append(
                Account(operator.username, operator.role, secret, _parsed(operator.username, operator.password_hash))
            )
        self._accounts = {account.username: account for account in reversed(accounts)}
        self._slots = asyncio.Semaphore(PARALLEL_CHECKS)
        self._checks = 0
        # Who has no hash, or no account, is checked against this: how long a refusal takes tells nothing about a name.
        self._decoy = unmatchable(account.password_hash for account in accounts if account.password_hash)

    @property
    def usernames(self) -> Collection[str]:
        return self._accounts.keys()

    @property
    def busy(self) -> bool:
        """Whether ``check_login`` should not be called now."""
        return self._checks >= MAX_CHECKS

    def find(self, username: str) -> Account | None:
        return self._accounts.get(username)

    def check_basic(self, given: Credentials) -> Account | None:
        """The top-level identity only: operators use ``POST /admin/login``. As fast as every request needs it."""
        known = _same(given.username, self._top.username)
        right = _same(given.password, self._top.password or "")
        return self._top if known and right else None

    async def check_login(self, given: Credentials) -> Account | None:
        """Any account. Always one slow hash, also for a name that nobody has."""
        account = self._accounts.get(given.username)
        stored = account.password_hash if account else None
        self._checks += 1
        try:
            async with self._slots:
                right = await asyncio.to_thread(verify_password, given.password, stored or self._decoy)
        finally:
            self._checks -= 1
        if account is not None and stored is None:
            right = _same(given.password, account.password or "")
        return account if right else None


def basic_credentials(header: str | None) -> Credentials | None:
    """What an ``Authorization: Basic`` header says; None when there is none, or it cannot be read."""
    scheme, _, encoded = (header or "").partition(" ")
    if scheme.lower() != "basic" or len(encoded) > 2 * MAX_CREDENTIAL:
        return None
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    username, colon, password = text.partition(":")
    return Credentials(username, password) if colon else None


def _same(given: str, expected: str) -> bool:
    """Constant time, also over the length."""
    left, right = (hashlib.sha256(text.encode()).digest() for text in (given, expected))
    return hmac.compare_digest(left, right)


def _parsed(username: str, text: str | None) -> PasswordHash | None:
    if text is None:
        return None
    try:
        return PasswordHash.parse(text)
    except ValueError as reason:
        raise PasswordHashInvalid(username, str(reason)) from None
