"""What a virtual key costs a request: CPU microseconds of a cached lookup, of a refused one, and of the policy.

Run: ``python benchmarks/keys.py [rounds]``. Uses the real directory over a store that answers from memory.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any

from sbproxy.keys.core.policy import Ask, admit
from sbproxy.keys.core.record import KeyRecord
from sbproxy.keys.core.token import mint, verifier
from sbproxy.keys.directory import CacheSettings, KeyDirectory, Known, Unresolved
from sbproxy.keys.presented import PresentedKeys

PEPPER = b"a pepper of thirty-two bytes 123"
SECRET = "5" * 64
KEYS = 1000
REST = (
    (b"host", b"ai.local"),
    (b"accept", b"application/json"),
    (b"accept-encoding", b"gzip, deflate"),
    (b"connection", b"keep-alive"),
    (b"user-agent", b"OpenAI/Python"),
    (b"content-type", b"application/json"),
)


class MemoryStore:
    async def get_key(self, key_id: str) -> KeyRecord:
        return KeyRecord(key_id=key_id, secret_hash=verifier(SECRET, PEPPER), allowed_models=("small", "large"))


def headers_of(token: str) -> tuple[tuple[bytes, bytes], ...]:
    return (*REST, (b"authorization", b"Bearer " + token.encode()))


def microseconds(rounds: int, call: Callable[[], Any]) -> float:
    """The best of five, for the machine may do other things."""
    best = float("inf")
    for _ in range(5):
        began = time.process_time()
        for _ in range(rounds):
            call()
        best = min(best, (time.process_time() - began) / rounds * 1e6)
    return best


async def main(rounds: int) -> None:
    store: Any = MemoryStore()
    presented = PresentedKeys((("authorization", "Bearer "), ("x-api-key", ""), ("x-sb-api", "")))
    directory = KeyDirectory(store, PEPPER, presented, CacheSettings(ttl_s=3600, negative_ttl_s=3600))
    all_headers = [headers_of(mint(f"{number:016x}", SECRET)) for number in range(KEYS)]
    wrong = headers_of(mint("0" * 16, "6" * 64))
    for headers in (*all_headers, wrong):
        asked = directory.lookup(headers, "ai.local", True)
        assert isinstance(asked, Unresolved)
        await directory.resolve(asked)
    known = directory.lookup(all_headers[500], "ai.local", True)
    assert isinstance(known, Known)
    record = known.record
    print(f"{KEYS} cached keys, {rounds} rounds, microseconds of CPU a call")
    print(f"  known key    {microseconds(rounds, lambda: directory.lookup(all_headers[500], 'ai.local', True)):6.2f}")
    print(f"  wrong secret {microseconds(rounds, lambda: directory.lookup(wrong, 'ai.local', True)):6.2f}")
    print(f"  policy       {microseconds(rounds, lambda: admit(record, Ask('small', 'local'), 0.0)):6.2f}")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000))
