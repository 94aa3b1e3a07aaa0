"""What governance refuses a virtual key, and what keeps its ledger from answering.

Limits are in requests, tokens or micro-USD (millionths of a dollar); texts go to the key's user and name no key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sbproxy.errors.tree import SbproxyError


class GovernanceError(SbproxyError):
    """Branch: the ledger of what virtual keys may use and have used."""


class GovernanceRefusal(GovernanceError):
    """Branch: a request that may not run now. Governors return these; the gateway raises them."""


@dataclass(eq=False)
class RateExceeded(GovernanceRefusal):
    """429: no room in this minute. ``counter`` is ``requests_per_minute`` or ``tokens_per_minute``.

    ``retry_after_s`` is the time to the minute's end, whole seconds, for ``Retry-After``.
    """

    code: ClassVar[str] = "rate_limit_exceeded"
    retryable: ClassVar[bool] = True
    counter: str
    limit: int
    used: int
    reserved: int
    asked: int
    retry_after_s: int

    def text(self) -> str:
        state = f"{self.counter} of this key: {self.used} used and {self.reserved} reserved of {self.limit}"
        if self.asked > self.limit:
            return f"{state}; this request may use {self.asked}, which no minute has room for: lower its max_tokens"
        return f"{state}; this request may use {self.asked}: try again in {self.retry_after_s} s"


@dataclass(eq=False)
class BudgetExhausted(GovernanceRefusal):
    """402: no room in the budget. ``counter`` is ``max_tokens`` or ``max_micro_usd``."""

    code: ClassVar[str] = "budget_exceeded"
    counter: str
    limit: int
    used: int
    reserved: int
    asked: int

    def text(self) -> str:
        what = "tokens" if self.counter == "max_tokens" else "micro-USD"
        return (
            f"budget of this key: {self.used} used and {self.reserved} reserved of {self.limit} {what};"
            f" this request may use {self.asked}: ask for less or have the budget raised"
        )


@dataclass(eq=False)
class GovernanceUnavailable(GovernanceRefusal):
    """503: the shared ledger does not answer; the key itself is not at fault (document 2, key usage).

    ``reason`` may name the backend's address: it is for operators.
    """

    code: ClassVar[str] = "governance_unavailable"
    retryable: ClassVar[bool] = True
    reason: str

    def text(self) -> str:
        return f"governance backend unavailable: {self.reason}; see that its Redis runs and try again"


@dataclass(eq=False)
class GovernanceStoreUnusable(GovernanceError):
    """The local ledger's file cannot be opened: what keys have spent is not known, so the daemon does not start."""

    code: ClassVar[str] = "governance_store_unusable"
    path: str
    reason: str

    def text(self) -> str:
        return f"governance ledger {self.path}: {self.reason}; mend or restore the file, or move it away to begin anew"
