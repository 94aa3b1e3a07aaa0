"""Message base types of the admin API. Requests are strict; answers ignore fields that a newer daemon added."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class ApiRequest(BaseModel):
    """A body that a client sends: unknown keys are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class ApiAnswer(BaseModel):
    """A body that the daemon sends: additive changes do not break an older client."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class ErrorBody(ApiAnswer):
    """Document 2's envelope ``{"error": …}``; ``code`` and ``reason_code`` carry the same stable word, if any."""

    error: str
    code: str | None = None
    reason_code: str | None = None
