"""ULIDs: 48 bits of Unix milliseconds and 80 random bits as 26 characters. Clock and randomness come from outside."""

from __future__ import annotations

import re

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_TEXT = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_RANDOM_BITS = 80
_RANDOM_LIMIT = 1 << _RANDOM_BITS


def is_ulid(text: str) -> bool:
    """Whether the text is a ULID in its canonical, upper-case form."""
    return _TEXT.fullmatch(text) is not None


def encode(unix_ms: int, randomness: int) -> str:
    """The text of one ULID; ``randomness`` is below 2**80."""
    number = (unix_ms << _RANDOM_BITS) | randomness
    return "".join(_ALPHABET[(number >> shift) & 31] for shift in range(125, -1, -5))


class MonotonicUlids:
    """Strictly growing ids of one process, also within a millisecond and when the clock steps back."""

    def __init__(self) -> None:
        self._last = (0, 0)

    def next(self, unix_ms: int, randomness: int) -> str:
        last_ms, last_random = self._last
        if unix_ms > last_ms:
            self._last = (unix_ms, randomness % _RANDOM_LIMIT)
        elif last_random + 1 < _RANDOM_LIMIT:
            self._last = (last_ms, last_random + 1)
        else:
            self._last = (last_ms + 1, randomness % _RANDOM_LIMIT)
        return encode(*self._last)
