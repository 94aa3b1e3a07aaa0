"""HTTP to one admin API: credentials, time-outs, bounded answers, failures as leaves of the error tree.

Knows no route; ``admin_client`` does.
"""

from __future__ import annotations

import base64
import http.cookiejar
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

import httpx
from pydantic import TypeAdapter, ValidationError

from sbproxy.api.control import LoginAnswer
from sbproxy.client.core.refusal import mismatch, refusal
from sbproxy.client.core.target import admin_target
from sbproxy.client.failures import named_failures
from sbproxy.errors.client import ProtocolMismatch

MAX_ANSWER_BYTES = 32 << 20
CONNECT_TIMEOUT_S = 3.0
READ_TIMEOUT_S = 30.0
STREAM_SILENCE_S = 50.0
"""Longer than three of the daemon's heartbeats: a stream that is quieter than this is dead."""
SESSION_COOKIE = "sb_admin_session"

Answer = TypeVar("Answer")


class AdminTransport:
    """One daemon, one identity. Basic credentials first; an operator that only may log in gets a session."""

    def __init__(
        self,
        url: str,
        username: str,
        password: str,
        *,
        timeout: float = READ_TIMEOUT_S,
        connect_timeout: float = CONNECT_TIMEOUT_S,
    ) -> None:
        target = admin_target(url)
        self.url = target.base
        self.username = username
        self._timeout = timeout
        pair = base64.b64encode(f"{username}:{password}".encode()).decode("ascii")
        self._basic = {"authorization": f"Basic {pair}"}
        self._session: dict[str, str] | None = None
        # Cookies are kept by hand: a jar would pick up the session that the daemon offers to browsers, and then
        # every change would need its CSRF token. A proxy of the environment is never between us and loopback.
        jar = http.cookiejar.CookieJar(http.cookiejar.DefaultCookiePolicy(allowed_domains=[]))
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(timeout, connect=connect_timeout),
            trust_env=not target.loopback,
            follow_redirects=False,
            cookies=jar,
            headers={"accept-encoding": "identity", "user-agent": "sbproxy-client"},
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def call(
        self,
        method: str,
        path: str,
        answer: type[Answer] | TypeAdapter[Answer],
        *,
        body: bytes | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request, one typed answer. Raises a leaf of ClientError for everything else."""
        action = f"{method} {path}"
        async with self.open(method, path, body=body, params=params, headers=headers) as response:
            raw = await self._read(response, action)
        adapter = answer if isinstance(answer, TypeAdapter) else TypeAdapter(answer)
        try:
            return adapter.validate_json(raw)
        except ValidationError as error:
            raise mismatch(error, url=self.url, action=action) from None

    @asynccontextmanager
    async def open(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        silence_s: float | None = None,
    ) -> AsyncIterator[httpx.Response]:
        """A 2xx answer with its body still to be read. A first 401 is answered by a login, once."""
        action = f"{method} {path}"
        with named_failures(self.url, action, silence_s or self._timeout):
            response = await self._send(method, path, body, params, headers, silence_s)
            if response.status_code == 401:
                await response.aclose()
                await self._log_in()
                response = await self._send(method, path, body, params, headers, silence_s)
            try:
                if not response.is_success:
                    raw = await self._read(response, action)
                    raise refusal(response.status_code, raw, url=self.url, username=self.username, action=action)
                yield response
            finally:
                await response.aclose()

    async def _send(
        self,
        method: str,
        path: str,
        body: bytes | None,
        params: Mapping[str, str] | None,
        headers: Mapping[str, str] | None,
        silence_s: float | None,
    ) -> httpx.Response:
        sent = {**(self._session or self._basic), **(headers or {})}
        if body is not None:
            sent.setdefault("content-type", "application/json")
        request = self._http.build_request(method, self.url + path, content=body, params=params, headers=sent)
        if silence_s is not None:
            request.extensions["timeout"] = {**request.extensions["timeout"], "read": silence_s}
        return await self._http.send(request, stream=True)

    async def _log_in(self) -> None:
        """Turn the pair into a session (document 2: operators are not accepted by Basic on protected routes)."""
        self._session = None
        action = "POST /admin/login"
        request = self._http.build_request("POST", f"{self.url}/admin/login", headers=self._basic)
        response = await self._http.send(request, stream=True)
        try:
            raw = await self._read(response, action)
        finally:
            await response.aclose()
        token = _cookie(response, SESSION_COOKIE)
        if not response.is_success:
            raise refusal(response.status_code, raw, url=self.url, username=self.username, action=action)
        try:
            login = LoginAnswer.model_validate_json(raw)
        except ValidationError as error:
            raise mismatch(error, url=self.url, action=action) from None
        if token is None:
            raise ProtocolMismatch(self.url, action, "a login without a session cookie")
        self._session = {"cookie": f"{SESSION_COOKIE}={token}", "x-csrf-token": login.csrf_token}

    async def _read(self, response: httpx.Response, action: str) -> bytes:
        raw = bytearray()
        async for chunk in response.aiter_bytes():
            raw += chunk
            if len(raw) > MAX_ANSWER_BYTES:
                raise ProtocolMismatch(self.url, action, f"an answer of more than {MAX_ANSWER_BYTES} bytes")
        return bytes(raw)


def _cookie(response: httpx.Response, name: str) -> str | None:
    """The value of one Set-Cookie."""
    for header in response.headers.get_list("set-cookie"):
        pair = header.split(";", 1)[0].strip()
        key, _, value = pair.partition("=")
        if key == name:
            return str(value)
    return None
