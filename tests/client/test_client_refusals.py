"""Every way a daemon, or what stands in its place, can fail a client becomes one typed error with a next step."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from sbproxy.client import AdminClient, transport
from sbproxy.errors.client import (
    ClientError,
    DaemonRefused,
    DaemonSilent,
    DaemonUnreachable,
    Forbidden,
    ProtocolMismatch,
    Unauthorized,
)
from support.raw_server import Respond, answer, raw_server

SECRET = "s3cret-of-the-operator"
DRIFT = {
    "config_path": "/etc/sb.yml",
    "loaded_revision": "a",
    "loaded_content_hash": "sha256:1",
    "on_disk_content_hash": "sha256:1",
    "drift": False,
    "on_disk_size_bytes": 10,
    "checked_at": "2026-01-01T00:00:00.000Z",
}


def always(raw: bytes) -> Respond:
    async def respond(number: int, head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)

    return respond


async def drift_error(respond: Respond, **options: float) -> ClientError:
    async with raw_server(respond) as server, AdminClient(server.url, "ops", SECRET, **options) as client:
        with pytest.raises(ClientError) as caught:
            await client.drift()
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value)
    return caught.value


async def test_a_good_answer_is_typed_and_a_newer_field_is_ignored() -> None:
    body = json.dumps({**DRIFT, "added_in_2030": 1}).encode()
    async with raw_server(always(answer("200 OK", body))) as server, AdminClient(server.url, "ops", SECRET) as client:
        assert (await client.drift()).on_disk_size_bytes == 10
    assert b"\r\nauthorization: basic " in server.heads[0].lower()
    assert SECRET.encode() not in server.heads[0]


async def test_nobody_listens() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with AdminClient(f"http://127.0.0.1:{port}", "ops", SECRET) as client:
        with pytest.raises(DaemonUnreachable, match=r"connection refused.*SB_ADMIN_URL"):
            await client.status()


@pytest.mark.parametrize(
    ("raw", "kind", "word"),
    [
        (answer("403 Forbidden", b'{"error":"admin role required"}'), Forbidden, "admin role required"),
        (
            answer("403 Forbidden", b'{"error":"edit sb.yml","code":"authority_read_only"}'),
            DaemonRefused,
            "authority_read_only",
        ),
        (answer("409 Conflict", b'{"error":"busy","reason_code":"draining"}'), DaemonRefused, "draining"),
        (answer("429 Too Many Requests", b'{"error":"slow down"}'), DaemonRefused, "429"),
        (answer("500 Oops", b"<html>nginx</html>"), ProtocolMismatch, "HTTP 500"),
        (answer("404 Not Found", b"no"), ProtocolMismatch, "HTTP 404"),
        (answer("302 Found", b"", "location: http://elsewhere/"), ProtocolMismatch, "redirect"),
        (answer("200 OK", b"<html>hello</html>"), ProtocolMismatch, "check the address"),
        (answer("200 OK", b'{"config_path": 3}'), ProtocolMismatch, "config_path"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", ProtocolMismatch, "HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{", DaemonUnreachable, "ended early"),
        (b"", DaemonUnreachable, "ended early"),
    ],
)
async def test_refusals(raw: bytes, kind: type[ClientError], word: str) -> None:
    error = await drift_error(always(raw))
    assert type(error) is kind
    assert word in str(error)


async def test_a_newer_message_format_is_not_guessed_at() -> None:
    raw = answer("200 OK", b'{"schema_version":2,"jobs":[]}')
    async with raw_server(always(raw)) as server, AdminClient(server.url, "ops", SECRET) as client:
        with pytest.raises(ProtocolMismatch, match=r"schema_version.*same version"):
            await client.jobs()


async def test_wrong_password_names_what_to_set() -> None:
    error = await drift_error(always(answer("401 Unauthorized", b'{"error":"unauthorized"}')))
    assert type(error) is Unauthorized
    assert "SB_ADMIN_PASSWORD" in str(error)
    assert "'ops'" in str(error)


async def test_silence_is_bounded() -> None:
    async def never(number: int, head: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.5)

    error = await drift_error(never, timeout=0.1)
    assert type(error) is DaemonSilent
    assert error.timeout_s == 0.1


async def test_an_endless_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_ANSWER_BYTES", 1000)
    error = await drift_error(always(answer("200 OK", b"x" * 5000)))
    assert type(error) is ProtocolMismatch
    assert "more than 1000 bytes" in str(error)


async def test_an_operator_that_basic_does_not_admit_gets_a_session() -> None:
    login = json.dumps({"role": "read_only", "csrf_token": "c5rf", "username": "ops"}).encode()

    async def respond(number: int, head: bytes, writer: asyncio.StreamWriter) -> None:
        if head.startswith(b"POST /admin/login"):
            writer.write(answer("200 OK", login, "set-cookie: sb_admin_session=t0ken; HttpOnly; Path=/"))
        elif b"sb_admin_session=t0ken" in head:
            writer.write(answer("200 OK", json.dumps(DRIFT).encode()))
        else:
            writer.write(answer("401 Unauthorized", b'{"error":"unauthorized"}'))

    async with raw_server(respond) as server, AdminClient(server.url, "ops", SECRET) as client:
        assert (await client.drift()).drift is False
        assert (await client.drift()).drift is False
    assert [head.split(b" ", 2)[1] for head in server.heads] == [
        b"/admin/drift",
        b"/admin/login",
        b"/admin/drift",
        b"/admin/drift",
    ]
    assert b"x-csrf-token: c5rf" in server.heads[-1].lower()
    assert b"authorization" not in server.heads[-1].lower()


async def test_the_session_offered_to_browsers_is_not_taken() -> None:
    raw = answer("200 OK", json.dumps(DRIFT).encode(), "set-cookie: sb_admin_session=x; Path=/")
    async with raw_server(always(raw)) as server, AdminClient(server.url, "ops", SECRET) as client:
        await client.drift()
        await client.drift()
    assert b"cookie" not in server.heads[1].lower()


async def test_ids_cannot_leave_their_place_in_the_path() -> None:
    raw = answer("404 Not Found", b'{"error":"no","code":"unknown_job"}')
    async with raw_server(always(raw)) as server, AdminClient(server.url, "ops", SECRET) as client:
        with pytest.raises(DaemonRefused, match="unknown_job"):
            await client.job("../status?x=1")
    assert server.heads[0].startswith(b"GET /admin/model-host/jobs/..%2Fstatus%3Fx%3D1 ")
