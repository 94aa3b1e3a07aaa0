"""Following a job survives lost connections, says what was lost, and always ends with the job's last state."""

from __future__ import annotations

import asyncio
import json

import pytest

from sbproxy.client import AdminClient, JobUpdate, StreamGap, stream
from sbproxy.errors.client import DaemonRefused, DaemonUnreachable, ProtocolMismatch
from support.raw_server import answer, raw_server

JOB = "01JZZZZZZZZZZZZZZZZZZZZZZZ"
SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n: connected\n\n"
CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "RECONNECT_DELAYS_S", (0.01, 0.01))


def job(state: str, done: int = 0) -> dict[str, object]:
    return {
        "id": JOB,
        "kind": "load",
        "subject": "local",
        "state": state,
        "progress": {"completed_bytes": done, "total_bytes": 100, "current_file": None},
        "created_at_ms": 1,
        "updated_at_ms": 2,
        "terminal_at_ms": None,
        "error": None,
        "error_code": None,
    }


def event(sequence: int, body: dict[str, object], name: str | None = None) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}id: {sequence}\ndata: {json.dumps(body)}\n\n".encode()


async def follow(url: str) -> list[JobUpdate | StreamGap]:
    async with AdminClient(url, "admin", "pw") as client:
        return [item async for item in client.follow_job(JOB)]


async def test_ends_with_the_terminal_event() -> None:
    async def respond(number: int, head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + event(4, job("downloading", 10)) + event(5, job("ready", 100)))
        await writer.drain()
        await asyncio.sleep(5)

    async with raw_server(respond) as server:
        async with asyncio.timeout(3):
            items = await follow(server.url)
    assert [(item.sequence, item.job.state) for item in items if isinstance(item, JobUpdate)] == [
        ("4", "downloading"),
        ("5", "ready"),
    ]


async def test_resumes_after_the_last_event_and_reports_a_gap() -> None:
    async def respond(number: int, head: bytes, writer: asyncio.StreamWriter) -> None:
        if number == 1:
            # A chunked body that breaks off, as when the daemon or the path to it dies.
            body = event(4, job("running"))
            writer.write(CHUNKED_HEAD + f"{len(body):x}\r\n".encode() + body + b"\r\n40\r\nid: 5")
        else:
            writer.write(SSE_HEAD + event(8, {"missed": 3}, "gap") + event(9, job("ready", 100)))

    async with raw_server(respond) as server:
        items = await follow(server.url)
    assert [type(item) for item in items] == [JobUpdate, StreamGap, JobUpdate]
    assert isinstance(items[1], StreamGap)
    assert items[1].missed == 3
    assert b"last-event-id: 4\r\n" in server.heads[1].lower()


async def test_a_stream_that_ends_early_is_settled_by_reading_the_job() -> None:
    async def respond(number: int, head: bytes, writer: asyncio.StreamWriter) -> None:
        if b"/stream " in head:
            writer.write(SSE_HEAD + event(1, job("running")))
        else:
            writer.write(answer("200 OK", json.dumps({"schema_version": 1, "job": job("failed")}).encode()))

    async with raw_server(respond) as server:
        items = await follow(server.url)
    last = items[-1]
    assert isinstance(last, JobUpdate)
    assert last.job.state == "failed"


async def test_a_daemon_that_stays_away_is_reported_after_the_last_wait() -> None:
    async def respond(number: int, head: bytes, writer: asyncio.StreamWriter) -> None:
        if number == 1:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9999\r\n\r\n")
            writer.write(event(1, job("running")))

    async with raw_server(respond) as server:
        with pytest.raises(DaemonUnreachable):
            await follow(server.url)
    assert len(server.heads) == 3  # one connection, and one after each of the two waits


async def test_an_unknown_job_is_a_refusal_at_once() -> None:
    async def respond(number: int, head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(answer("404 Not Found", b'{"error":"there is no job","code":"unknown_job"}'))

    async with raw_server(respond) as server:
        with pytest.raises(DaemonRefused, match="unknown_job"):
            await follow(server.url)
    assert len(server.heads) == 1


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        (answer("200 OK", b"{}", "content-type: application/json"), "event stream"),
        (SSE_HEAD + b"data: {}\n\n", "id"),
    ],
)
async def test_what_is_no_job_stream_is_a_mismatch(raw: bytes, word: str) -> None:
    async def respond(number: int, head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)

    async with raw_server(respond) as server:
        with pytest.raises(ProtocolMismatch, match=word):
            await follow(server.url)


async def test_an_event_kind_of_a_newer_daemon_is_skipped() -> None:
    async def respond(number: int, head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + event(1, {"x": 1}, "weather") + event(2, job("ready")))

    async with raw_server(respond) as server:
        items = await follow(server.url)
    assert [item.sequence for item in items] == ["2"]
