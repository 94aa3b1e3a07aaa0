"""Finds out who a request comes from: Basic for the top-level identity, a session cookie for everybody else.

Guessing is slowed down here; what a role may do is decided in ``sbproxy.admin.gate``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from sbproxy.admin.accounts import Account, Accounts, Credentials, Role, basic_credentials
from sbproxy.admin.audit import audit
from sbproxy.admin.core.addresses import counted_as
from sbproxy.admin.core.guess_limit import GuessLimit
from sbproxy.admin.core.session_token import Session
from sbproxy.admin.replies import refuse
from sbproxy.admin.sessions import COOKIE, Sessions

CSRF_HEADER = "X-CSRF-Token"


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
    """Control flow within the admin package: no password is tried for this caller now."""

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
        self._guesses = GuessLimit(accounts.usernames)

    def session_of(self, request: web.Request) -> Session | None:
        session = self.sessions.find(request.cookies.get(COOKIE))
        return session if session and self.accounts.find(session.username) else None

    def identify(self, request: web.Request) -> Principal | None:
        """Who this is, or None. Basic decides where it is given: a session beside it must not hide a wrong password.

        A Basic caller without a session gets one with the answer. Raises TooManyFailures.
        """
        session = self.session_of(request)
        given = basic_credentials(request.headers.get("Authorization"))
        if given is not None:
            top = self._try_basic(request, given)
            if top is not None and session is None:
                request[ISSUED] = self.sessions.issue(top.username)
            return Principal(top, None) if top else None
        account = self.accounts.find(session.username) if session else None
        return Principal(account, session) if account and session else None

    async def log_in(self, request: web.Request, given: Credentials) -> Account | None:
        """Raises TooManyFailures."""
        if self.accounts.busy:
            raise TooManyFailures(1)
        self._reserve(request, given)
        account = await self.accounts.check_login(given)
        if account is None:
            self._failed(request, given)
        else:
            # An operator's program has tried Basic before it logs in.
            self._right(request, given, attempts=2)
        return account

    def _try_basic(self, request: web.Request, given: Credentials) -> Account | None:
        self._reserve(request, given)
        account = self.accounts.check_basic(given)
        if account is None:
            self._failed(request, given)
        else:
            self._right(request, given, attempts=1)
        return account

    def _reserve(self, request: web.Request, given: Credentials) -> None:
        wait_s = self._guesses.reserve(counted_as(request.remote), given.username, self._monotonic())
        if wait_s:
            raise TooManyFailures(wait_s)

    def _right(self, request: web.Request, given: Credentials, attempts: int) -> None:
        self._guesses.give_back(counted_as(request.remote), given.username, self._monotonic(), attempts)

    def _failed(self, request: web.Request, given: Credentials) -> None:
        known = self.accounts.find(given.username)
        audit(request, known.username if known else "-", "-", "login_failed")


def unauthorized() -> web.Response:
    return refuse(401, "Unauthorized", headers={"WWW-Authenticate": 'Basic realm="sbproxy admin", charset="UTF-8"'})


def too_many_requests(retry_after_s: int) -> web.Response:
    return refuse(429, "Too Many Requests", headers={"Retry-After": str(retry_after_s)})
