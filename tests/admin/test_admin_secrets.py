"""A canary for every secret of the admin plane: none of them may appear in an answer or in the log (report 74)."""

from __future__ import annotations

import base64
import io
import logging
from collections.abc import Iterator

import pytest

from sbproxy.observe.core.redact import Redactor
from sbproxy.observe.log_output import configure_logging
from support.admin_world import ADMIN, CHIEF, VIEWER, admin_config, admin_world

GUESS = "guessed-by-mistake-9417"


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    written = io.StringIO()
    configure_logging(logging.DEBUG, "json", Redactor(), written)
    yield written
    root.handlers[:] = handlers
    root.setLevel(level)


async def test_no_secret_leaves_by_answer_or_log(log: io.StringIO) -> None:
    said: list[str] = []
    async with admin_world() as world:
        browser = await world.log_in(CHIEF)
        # Only the answer to a login may carry the token, so it is not among those that are searched.
        tokens = [browser["Cookie"].partition("=")[2], browser["X-CSRF-Token"]]
        calls = [
            ("POST", "/admin/login", None, {"username": GUESS, "password": "x"}),
            ("POST", "/admin/login", None, {"username": "admin", "password": GUESS}),
            ("POST", "/admin/login", None, {"username": "admin", "password": [GUESS]}),
            ("POST", "/admin/model-host/load", ADMIN, {"deployment": "x", "password": GUESS}),
            ("POST", "/admin/model-host/load", ADMIN, {"deployment": {"a": GUESS}}),
            ("GET", "/admin/model-host/status", (GUESS, "x"), None),
            ("GET", "/admin/model-host/status", ("admin", GUESS), None),
            ("GET", "/api/requests?limit=" + GUESS, ADMIN, None),
            ("POST", "/admin/reload", ADMIN, None),
            ("GET", "/metrics", ADMIN, None),
        ]
        for method, path, who, body in calls:
            async with world.call(method, path, who, json=body) as answer:
                said.append(await answer.text())
        async with world.call("GET", "/api/health", headers=browser) as answer:
            said.append(await answer.text() + str(answer.headers))
        world.host.failure = RuntimeError(f"crashed with Authorization: Bearer {GUESS}")
        async with world.call("POST", "/admin/model-host/load", headers=browser, json={"deployment": "x"}) as answer:
            said.append(await answer.text())
            assert answer.status == 500
    logged = log.getvalue()
    assert "admin request failed" in logged
    secrets = [GUESS, ADMIN[1], VIEWER[1], CHIEF[1], *tokens]
    secrets += [base64.b64encode(f"{name}:{word}".encode()).decode() for name, word in (ADMIN, ("admin", GUESS))]
    for secret in secrets:
        assert all(secret not in text for text in said), secret[:4]
        assert secret not in logged


def test_reprs_hide_passwords() -> None:
    assert ADMIN[1] not in repr(admin_config())
    assert VIEWER[1] not in repr(admin_config())
