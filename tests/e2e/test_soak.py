"""Ten thousand requests with disconnects, reloads and a killed engine leak nothing (issue M1, what it must show 5)."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from support import fake_engine
from support.daemon import FAKE_ENGINE_CONFIG, Daemon, daemon, tiny_catalog

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

REQUESTS = 10_000
CLIENTS = 16
SEED = 20261130

UNARY = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}).encode()
STREAM = json.dumps({"model": "tiny", "stream": True, "messages": [{"role": "user", "content": "hello"}]}).encode()
UNKNOWN = json.dumps({"model": "nope", "messages": [{"role": "user", "content": "hello"}]}).encode()


def head(body: bytes) -> bytes:
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    )


class Client:
    """Keep-alive client of one connection that sometimes leaves in the middle."""

    def __init__(self, port: int, outcomes: Counter[str], dice: random.Random) -> None:
        self._port, self._outcomes, self._dice = port, outcomes, dice
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def run(self, count: int) -> None:
        for _ in range(count):
            try:
                async with asyncio.timeout(60):
                    self._outcomes[await self._one()] += 1
            except (ConnectionError, asyncio.IncompleteReadError):
                self._outcomes["cut"] += 1
                await self._leave()
        await self._leave()

    async def _one(self) -> str:
        reader, writer = self._streams = self._streams or await asyncio.open_connection("127.0.0.1", self._port)
        roll = self._dice.random()
        body = UNKNOWN if roll < 0.02 else STREAM if roll < 0.4 else UNARY
        writer.write(head(body) + body)
        await writer.drain()
        if self._dice.random() < 0.1:
            if self._dice.random() < 0.5:
                await reader.read(self._dice.randrange(1, 400))
            await self._leave()
            return "left"
        answer = await reader.readuntil(b"\r\n\r\n")
        status = answer.split(b" ", 2)[1].decode()
        text = answer.lower()
        if b"transfer-encoding: chunked" in text:
            payload = await read_chunked(reader)
            assert payload.rstrip().endswith(b"data: [DONE]"), payload[-200:]
        else:
            length = int(text.split(b"content-length: ")[1].split(b"\r\n")[0])
            payload = await reader.readexactly(length)
            if status != "200":
                assert {"message", "type", "code"} <= set(json.loads(payload)["error"]), payload
                status += ":" + str(json.loads(payload)["error"]["code"])
        if b"connection: close" in text:
            await self._leave()
        return status

    async def _leave(self) -> None:
        if self._streams is not None:
            _, writer = self._streams
            self._streams = None
            writer.transport.abort()
            await asyncio.sleep(0)


async def read_chunked(reader: asyncio.StreamReader) -> bytes:
    """The body; IncompleteReadError for one that the gateway cut, by a reset or before the last chunk."""
    payload = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        payload += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
    return payload


VARIANTS = (
    ("max_queue_depth: 64", "max_queue_depth: 63"),  # a new generation beside the old one
    ('models: [tiny, "org/tiny:q4#1"]', "models: [tiny, extra]"),  # routes only
)


async def disturb(served: Daemon, done: asyncio.Event) -> None:
    """Reloads all the time, with other content each time; one kill -9 of the engine in the middle."""
    loop = asyncio.get_running_loop()
    killed = False
    written = served.config.read_text()
    for round_ in range(10_000):
        if done.is_set():
            break
        text = written
        for number, (old, new) in enumerate(VARIANTS):
            if round_ >> number & 1:
                assert old in text
                text = text.replace(old, new)
        served.config.write_text(text)
        answer = await loop.run_in_executor(None, lambda: served.ask("POST", "/admin/reload", admin=True))
        assert answer.status in (200, 409), answer.body
        if round_ == 4 and not killed:
            row = await loop.run_in_executor(None, served.status_row)
            os.kill(row["pid"], signal.SIGKILL)
            killed = True
        await asyncio.sleep(0.5)
    assert killed


async def load(served: Daemon) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    done = asyncio.Event()
    disturber = asyncio.create_task(disturb(served, done))
    clients = [Client(served.port, outcomes, random.Random(SEED + n)) for n in range(CLIENTS)]
    await asyncio.gather(*(client.run(REQUESTS // CLIENTS) for client in clients))
    done.set()
    await disturber
    return outcomes


def test_ten_thousand_requests_leak_nothing(tmp_path: Path) -> None:
    tiny_catalog(tmp_path)
    fake_engine.install(tmp_path)
    with daemon(tmp_path, FAKE_ENGINE_CONFIG) as served:
        served.start()
        assert served.chat().status == 200
        assert served.process is not None
        watched = psutil.Process(served.process.pid)
        before_fds, before_rss = watched.num_fds(), watched.memory_info().rss
        outcomes = asyncio.run(load(served))

        assert sum(outcomes.values()) == REQUESTS // CLIENTS * CLIENTS
        # Only the killed engine may have cut streams or refused: as many as were on it, and those that came meanwhile.
        typed = {
            "200",
            "left",
            "cut",
            "404:model_not_found",
            "502:upstream_broken",
            "502:upstream_unreachable",
            "503:engine_unhealthy",
            "503:draining",
        }
        assert set(outcomes) <= typed, outcomes
        assert outcomes["cut"] <= CLIENTS, outcomes
        assert outcomes["200"] + outcomes["left"] + outcomes["404:model_not_found"] > REQUESTS * 0.97, outcomes

        row = served.wait_state("ready") if served.chat().status == 200 else served.status_row()
        assert (row["active_requests"], row["queued_requests"]) == (0, 0)
        # One ready replica once the drained generations are gone.
        for _ in range(100):
            rows = served.ask("GET", "/admin/model-host/status", admin=True).json()["deployments"]
            if len(rows) == 1:
                break
            time.sleep(0.1)
        assert [each["state"] for each in rows] == ["ready"]
        row = rows[0]
        children = [child for child in watched.children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]
        assert [child.pid for child in children] == [row["pid"]]
        assert watched.num_fds() <= before_fds + 24, (before_fds, watched.num_fds())
        assert watched.memory_info().rss < before_rss + 60 * 2**20
        assert "Traceback" not in served.log
        assert served.stop() == 0
