"""Finds out who a request comes from: Basic for the top-level identity, a session cookie for everybody else.

Guessing is slowed down here; what a role may do is decided in ``sbproxy.admin.gate``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from sbproxy.admin.accounts import Account, Accounts, Credentials, Role, basic_credentials
from sbproxy.admin.audit import audit
from sbproxy.admin.core.rate_limit import GLOBAL_FACTOR, RateLimit
from sbproxy.admin.core.session_token import Session
from sbproxy.admin.replies import refuse
from sbproxy.admin.sessions import COOKIE, Sessions

CSRF_HEADER = "X-CSRF-Token"
FAILED_LOGINS_PER_MINUTE = 30


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller; ``session`` is None for HTTP Basic."""

    account: Account
    session: Session | None

    @property
    def username(self) -> str:
        return self.account.username

    @property
    def role(self) -> Role:
        return self.account.role


class TooManyFailures(Exception):
    """Control flow within the admin package: this address has guessed enough for now."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(retry_after_s)
        self.retry_after_s = retry_after_s


ISSUED: web.RequestKey[tuple[Session, str]] = web.RequestKey("issued_session", tuple)
"""A session made for this request and its token; the answer carries both to the browser."""


class Authenticator:
    """``monotonic`` is in seconds."""

    def __init__(self, accounts: Accounts, sessions: Sessions, monotonic: Callable[[], float]) -> None:
        self.accounts = accounts
        self.sessions = sessions
        self._monotonic = monotonic
        self._failures = RateLimit(FAILED_LOGINS_PER_MINUTE, FAILED_LOGINS_PER_MINUTE * GLOBAL_FACTOR)

    def session_of(self, request: web.Request) -> Session | None:
        session = self.sessions.find(request.cookies.get(COOKIE))
        return session if session and self.accounts.find(session.username) else None

    def identify(self, request: web.Request) -> Principal | None:
        """Who this is, or None. Basic goes first: a client that sends both is a program with a cookie jar.

        A Basic caller without a session gets one with the answer. Raises TooManyFailures.
        """
        session = self.session_of(request)
        given = basic_credentials(request.headers.get("Authorization"))
        if given is not None:
            account = self._guarded_basic(request, given, has_session=session is not None)
            if account is not None:
                if session is None:
                    request[ISSUED] = self.sessions.issue(account.username)
                return Principal(account, None)
        account = self.accounts.find(session.username) if session else None
        return Principal(account, session) if account and session else None

    async def log_in(self, request: web.Request, given: Credentials) -> Account | None:
        """Raises TooManyFailures."""
        self._refuse_guessing(request)
        account = await self.accounts.check_login(given)
        if account is None:
            self._failed(request, given)
        return account

    def _guarded_basic(self, request: web.Request, given: Credentials, *, has_session: bool) -> Account | None:
        if not has_session:
            self._refuse_guessing(request)
        account = self.accounts.check_basic(given)
        if account is None and not has_session:
            self._failed(request, given)
        return account

    def _refuse_guessing(self, request: web.Request) -> None:
        address, now = request.remote or "", self._monotonic()
        if self._failures.exhausted(address, now):
            raise TooManyFailures(self._failures.retry_after_s(address, now))

    def _failed(self, request: web.Request, given: Credentials) -> None:
        self._failures.take(request.remote or "", self._monotonic())
        known = self.accounts.find(given.username)
        audit(request, known.username if known else "-", "-", "login_failed")


def unauthorized() -> web.Response:
    return refuse(401, "Unauthorized", headers={"WWW-Authenticate": 'Basic realm="sbproxy admin", charset="UTF-8"'})


def too_many_requests(retry_after_s: int) -> web.Response:
    return refuse(429, "Too Many Requests", headers={"Retry-After": str(retry_after_s)})
