"""What the observing side refuses: filters of the request log, log settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sbproxy.errors.tree import SbproxyError


class ObserveError(SbproxyError):
    """Branch: request log and process log."""


@dataclass(eq=False)
class UnknownParameter(ObserveError):
    """A query parameter that the request log has no meaning for. ``known`` lists those it has."""

    code: ClassVar[str] = "unknown_parameter"
    name: str
    known: tuple[str, ...]

    def text(self) -> str:
        return f"unknown query parameter {self.name!r}; known are {', '.join(self.known) or 'none'}"


@dataclass(eq=False)
class UnsupportedParameter(ObserveError):
    """A documented filter whose data this version does not record."""

    code: ClassVar[str] = "unsupported_parameter"
    name: str

    def text(self) -> str:
        return f"query parameter {self.name!r} is not supported by this version: it records nothing to filter by"


@dataclass(eq=False)
class InvalidParameter(ObserveError):
    """A query parameter with a value outside its range, or given twice. The value itself is not repeated."""

    code: ClassVar[str] = "invalid_parameter"
    name: str
    expected: str

    def text(self) -> str:
        return f"query parameter {self.name!r} must be {self.expected}"


@dataclass(eq=False)
class LogSettingInvalid(ObserveError):
    """A log level or format that does not exist. ``source`` is the flag or variable that said it."""

    code: ClassVar[str] = "log_setting_invalid"
    source: str
    value: str
    known: tuple[str, ...]

    def text(self) -> str:
        return f"{self.source}: {self.value!r} is not one of ({', '.join(self.known)})"


@dataclass(eq=False)
class ValueStoreUnusable(ObserveError):
    """The value ledger's file cannot be read or written now. Nothing was added to it; counting goes on in memory."""

    code: ClassVar[str] = "value_store_unusable"
    retryable: ClassVar[bool] = True
    path: str
    reason: str

    def text(self) -> str:
        return (
            f"value ledger {self.path}: {self.reason}; completions are counted in memory until it can be used:"
            " mend its folder, or move the file away to begin anew"
        )
