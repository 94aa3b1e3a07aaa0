"""The shared key store on Redis, and the broadcast of changes to every process that uses it.

Two hashes hold the records; what has to be atomic is a script. Every wait is bounded.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar, cast
from urllib.parse import urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.driver_info import DriverInfo
from redis.exceptions import RedisError

from sbproxy import __version__
from sbproxy.errors.keys import (
    CredentialInUse,
    KeyRecordExists,
    KeyRevisionConflict,
    KeyStoreFailed,
    UnknownCredential,
    UnknownKey,
)
from sbproxy.keys.core.record import CredentialRecord, KeyRecord
from sbproxy.keys.core.written import decode_credential, decode_key, encode_credential, encode_key
from sbproxy.keys.ports import Invalidated
from sbproxy.keys.sqlite_store import NAMED_KEYS

LOG = logging.getLogger("sbproxy.keys")
KEYS: Final = "sbproxy:{keys}:records"
CREDENTIALS: Final = "sbproxy:{keys}:credentials"
CHANNEL: Final = "sbproxy:{keys}:invalidated"
TIMEOUT_S = 2.0
CONNECTIONS = 16
RETRY_S = (0.1, 5.0)
"""First and longest pause before the broadcast is subscribed again."""
MAX_MESSAGE = 4096
LISTEN_S = 15.0
"""How long the subscription waits before it looks whether the connection lives."""

# -1: no such key, -2: no such credential, 0: done, anything above: the revision that is there.
_SWAP = """
local found = redis.call('HGET', KEYS[1], ARGV[1])
if not found then return -1 end
local revision = cjson.decode(found)['policy_revision']
if revision ~= tonumber(ARGV[2]) then return revision end
if ARGV[4] ~= '' and redis.call('HEXISTS', KEYS[2], ARGV[4]) == 0 then return -2 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 0
"""
_INSERT = """
if ARGV[3] ~= '' and redis.call('HEXISTS', KEYS[2], ARGV[3]) == 0 then return -2 end
return redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2])
"""
_REPLACE = """
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
"""
_DELETE_CREDENTIAL = """
local bound = {}
for _, text in ipairs(redis.call('HVALS', KEYS[1])) do
  local record = cjson.decode(text)
  if record['credential_id'] == ARGV[1] then bound[#bound + 1] = record['key_id'] end
end
if #bound > 0 then table.sort(bound) return bound end
return redis.call('HDEL', KEYS[2], ARGV[1])
"""

# Said here, or the client would look on the disk for its own version at every connection.
_DRIVER = DriverInfo("sbproxy", __version__)
_Result = TypeVar("_Result")


def redis_at(url: str, *, connections: int = CONNECTIONS) -> Redis:
    """A client that waits for nothing longer than :data:`TIMEOUT_S`. Connects when it is first asked."""
    pool = BlockingConnectionPool.from_url(
        url, max_connections=connections, timeout=TIMEOUT_S, socket_timeout=TIMEOUT_S,
        socket_connect_timeout=TIMEOUT_S, health_check_interval=15, driver_info=_DRIVER,
    )  # fmt: skip
    return Redis.from_pool(pool)


def shown_url(url: str) -> str:
    """The address without user, password and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{(parts.netloc.rpartition('@')[2])}{parts.path}"


class RedisKeyStore:
    """A :class:`~sbproxy.keys.ports.KeyStore`."""

    def __init__(self, url: str) -> None:
        self._redis = redis_at(url)
        self._where = shown_url(url)

    async def close(self) -> None:
        await self._redis.aclose()

    async def get_key(self, key_id: str) -> KeyRecord | None:
        text = await self._asked(_await(self._redis.hget(KEYS, key_id)))
        return self._decoded(decode_key, text) if text is not None else None

    async def list_keys(self) -> Sequence[KeyRecord]:
        texts = await self._asked(_await(self._redis.hvals(KEYS)))
        records = [self._decoded(decode_key, text) for text in texts]
        return sorted(records, key=lambda record: (record.created_at, record.key_id))

    async def insert_key(self, record: KeyRecord) -> None:
        done = await self._run(
            _INSERT, (KEYS, CREDENTIALS), record.key_id, encode_key(record), record.credential_id or ""
        )
        if done == -2:
            raise UnknownCredential(record.credential_id or "")
        if not done:
            raise KeyRecordExists("key", record.key_id)

    async def swap_key(self, record: KeyRecord, expected_revision: int) -> None:
        said = (record.key_id, str(expected_revision), encode_key(record), record.credential_id or "")
        done = await self._run(_SWAP, (KEYS, CREDENTIALS), *said)
        if done == -1:
            raise UnknownKey(record.key_id)
        if done == -2:
            raise UnknownCredential(record.credential_id or "")
        if done:
            raise KeyRevisionConflict(record.key_id, expected_revision, int(done))

    async def delete_key(self, key_id: str) -> bool:
        return bool(await self._asked(_await(self._redis.hdel(KEYS, key_id))))

    async def get_credential(self, credential_id: str) -> CredentialRecord | None:
        text = await self._asked(_await(self._redis.hget(CREDENTIALS, credential_id)))
        return self._decoded(decode_credential, text) if text is not None else None

    async def list_credentials(self) -> Sequence[CredentialRecord]:
        texts = await self._asked(_await(self._redis.hvals(CREDENTIALS)))
        records = [self._decoded(decode_credential, text) for text in texts]
        return sorted(records, key=lambda record: (record.created_at, record.id))

    async def insert_credential(self, record: CredentialRecord) -> None:
        if not await self._asked(_await(self._redis.hsetnx(CREDENTIALS, record.id, encode_credential(record)))):
            raise KeyRecordExists("credential", record.id)

    async def replace_credential(self, record: CredentialRecord) -> None:
        if not await self._run(_REPLACE, (CREDENTIALS,), record.id, encode_credential(record)):
            raise UnknownCredential(record.id)

    async def delete_credential(self, credential_id: str) -> bool:
        done = await self._run(_DELETE_CREDENTIAL, (KEYS, CREDENTIALS), credential_id)
        if isinstance(done, list):
            raise CredentialInUse(credential_id, tuple(name.decode() for name in done[:NAMED_KEYS]))
        return bool(done)

    async def _run(self, script: str, keys: tuple[str, ...], *arguments: str) -> Any:
        return await self._asked(_await(self._redis.eval(script, len(keys), *keys, *arguments)))

    async def _asked(self, answer: Awaitable[_Result]) -> _Result:
        try:
            async with asyncio.timeout(2 * TIMEOUT_S):
                return await answer
        except (RedisError, OSError, TimeoutError) as error:
            # The client's own words may hold the address with its password.
            raise KeyStoreFailed(self._where, f"Redis does not answer ({type(error).__name__})") from error

    def _decoded(self, decode: Callable[[bytes], _Result], text: bytes) -> _Result:
        try:
            return decode(text)
        except ValueError as error:
            raise KeyStoreFailed(self._where, str(error)) from error


class RedisBroadcast:
    """A :class:`~sbproxy.keys.ports.Broadcast`. A gap in the subscription is made good by dropping everything."""

    def __init__(self, url: str) -> None:
        self._redis = redis_at(url, connections=2)
        # The subscription waits for messages as long as it takes.
        self._subscriber = Redis.from_url(
            url, socket_connect_timeout=TIMEOUT_S, health_check_interval=15, driver_info=_DRIVER
        )
        self._where = shown_url(url)
        self._task: asyncio.Task[None] | None = None
        self.subscribed = asyncio.Event()

    def listen(self, heard: Callable[[Invalidated], None]) -> None:
        self._task = asyncio.create_task(self._listen(heard), name="key-broadcast")

    async def publish(self, what: Invalidated) -> None:
        text = json.dumps({"kind": what.kind, "id": what.id})
        try:
            async with asyncio.timeout(2 * TIMEOUT_S):
                await self._redis.publish(CHANNEL, text)
        except (RedisError, OSError, TimeoutError) as error:
            raise KeyStoreFailed(self._where, f"Redis does not answer ({type(error).__name__})") from error

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._redis.aclose()
        await self._subscriber.aclose()

    async def _listen(self, heard: Callable[[Invalidated], None]) -> None:
        pause = RETRY_S[0]
        while True:
            try:
                async with self._subscriber.pubsub() as channel:
                    await channel.subscribe(CHANNEL)
                    while True:
                        message = await channel.get_message(timeout=LISTEN_S)
                        if message is None:
                            continue
                        if message["type"] == "message":
                            heard(_read(message["data"]))
                            continue
                        # Subscribed, for the first time or again by the client itself: what was said while nobody
                        # listened is unknown.
                        heard(Invalidated("key", None))
                        heard(Invalidated("credential", None))
                        pause = RETRY_S[0]
                        self.subscribed.set()
            except (RedisError, OSError, TimeoutError) as error:
                self.subscribed.clear()
                LOG.warning("key broadcast of %s is interrupted (%s)", self._where, type(error).__name__)
            await asyncio.sleep(pause)
            pause = min(pause * 2, RETRY_S[1])


def _read(data: bytes) -> Invalidated:
    """What cannot be read means: everything may have changed."""
    try:
        said = json.loads(data[:MAX_MESSAGE])
        kind, named = said["kind"], said["id"]
    except (ValueError, TypeError, KeyError):
        return Invalidated("key", None)
    if kind == "credential":
        return Invalidated("credential", named if isinstance(named, str) else None)
    return Invalidated("key", named if isinstance(named, str) else None)


def _await(answer: Any) -> Awaitable[Any]:
    """The client's types say "value or awaitable"; the asyncio client always gives the latter."""
    return cast("Awaitable[Any]", answer)
