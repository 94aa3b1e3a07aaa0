"""Login, logout, session discovery, and the life of a session (document 2)."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbproxy.admin.core.session_token import SESSION_SECONDS, Session, sign, verify
from sbproxy.admin.sessions import Sessions
from sbproxy.config.core.document import AdminTlsConfig
from support.admin_world import ADMIN, AS_JSON, CHIEF, START, VIEWER, admin_config, admin_world

KEY = b"k" * 32


@pytest.mark.parametrize(("who", "role"), [(ADMIN, "admin"), (VIEWER, "read_only"), (CHIEF, "admin")])
async def test_login_by_body_and_by_header(who: tuple[str, str], role: str) -> None:
    async with admin_world() as world:
        body = {"username": who[0], "password": who[1]}
        for options in ({"json": body}, {"who": who}):
            async with world.call("POST", "/admin/login", **options) as answer:
                assert answer.status == 200
                said = await answer.json()
                assert list(said) == ["role", "csrf_token", "username"]
                assert (said["role"], said["username"]) == (role, who[0])
                cookie = answer.headers["Set-Cookie"]
                assert cookie.endswith("; HttpOnly; SameSite=Strict; Path=/; Max-Age=28800")
                assert answer.headers["X-CSRF-Token"] == said["csrf_token"]
                assert "password" not in cookie


async def test_the_cookie_is_secure_with_tls() -> None:
    config = admin_config(tls=AdminTlsConfig(cert="/c.pem", key="/k.pem"))
    async with admin_world(config) as world, world.call("POST", "/admin/login", ADMIN) as answer:
        assert answer.headers["Set-Cookie"].endswith("; Secure")


UNREADABLE = [
    None,
    b"",
    b"{",
    b"[]",
    b'"x"',
    b"{}",
    b'{"username": "admin"}',
    b'{"username": 1, "password": "x"}',
    b'{"username": "admin", "password": "x", "role": "admin"}',
    b'{"username": "%s", "password": ""}' % (b"a" * 2000),
]


@pytest.mark.parametrize("body", UNREADABLE)
async def test_a_login_without_a_readable_body_is_a_400(body: bytes | None) -> None:
    async with admin_world() as world, world.call("POST", "/admin/login", data=body, headers=AS_JSON) as answer:
        assert answer.status == 400
        assert (await answer.json())["code"] == "invalid_body"


@pytest.mark.parametrize("who", [(ADMIN[0], "wrong"), ("nobody", "x"), (CHIEF[0], "wrong"), (VIEWER[0], "")])
async def test_wrong_credentials_are_a_401_and_leave_a_line(
    who: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sbproxy.admin.audit")
    async with admin_world() as world:
        status, body = await world.post("/admin/login", {"username": who[0], "password": who[1]}, None)
        assert (status, body) == (401, {"error": "Unauthorized"})
    (line,) = [vars(record) for record in caplog.records if record.name == "sbproxy.admin.audit"]
    assert line["outcome"] == "login_failed"
    # A name that is not ours may be a password typed into the wrong field.
    assert line["operator"] == ("-" if who[0] == "nobody" else who[0])


async def test_session_discovery_never_refuses() -> None:
    async with admin_world() as world:
        assert await world.get("/admin/session", None) == (200, {"authenticated": False})
        assert await world.get("/admin/session", ("admin", "wrong")) == (200, {"authenticated": False})
        assert await world.get("/admin/session", None, headers={"Cookie": "sb_admin_session=x.y"}) == (
            200,
            {"authenticated": False},
        )
        browser = await world.log_in(VIEWER)
        assert await world.get("/admin/session", None, headers={"Cookie": browser["Cookie"]}) == (
            200,
            {
                "authenticated": True,
                "username": "viewer",
                "role": "read_only",
                "via_session": True,
                "csrf_token": browser["X-CSRF-Token"],
            },
        )
        async with world.call("GET", "/admin/session", ADMIN) as answer:
            said = await answer.json()
            assert (said["via_session"], said["username"]) == (False, "admin")
            assert said["csrf_token"] == answer.headers["X-CSRF-Token"]


async def test_logout_revokes_and_is_always_fine() -> None:
    async with admin_world() as world:
        browser = await world.log_in(CHIEF)
        async with world.call("POST", "/admin/logout", headers={"Cookie": browser["Cookie"]}) as answer:
            assert answer.status == 200
            assert answer.headers["Set-Cookie"] == "sb_admin_session=; HttpOnly; SameSite=Strict; Path=/; Max-Age=0"
        assert (await world.get("/api/health", None, headers=browser))[0] == 401
        assert (await world.post("/admin/logout", None, None))[0] == 200


async def test_a_session_ends_after_eight_hours() -> None:
    async with admin_world() as world:
        browser = await world.log_in(CHIEF)
        world.clock.value += SESSION_SECONDS - 1
        assert (await world.get("/api/health", None, headers=browser))[0] == 200
        world.clock.value += 1
        assert (await world.get("/api/health", None, headers=browser))[0] == 401


def test_another_process_does_not_know_the_session() -> None:
    _, token = Sessions(lambda: START).issue("admin")
    assert Sessions(lambda: START).find(token) is None


def test_too_many_revocations_end_every_session_instead_of_reviving_one() -> None:
    now = [START]
    sessions = Sessions(lambda: now[0], max_revoked=2)
    issued = [sessions.issue("admin") for _ in range(4)]
    for session, _ in issued[:3]:
        sessions.revoke(session)
    assert [sessions.find(token) for _, token in issued] == [None] * 4
    fresh, token = sessions.issue("admin")
    assert sessions.find(token) == fresh
    now[0] += SESSION_SECONDS
    sessions.revoke(fresh)
    assert sessions.find(token) is None


TEXT = st.text(max_size=40)


@settings(deadline=None)
@given(st.builds(Session, TEXT, st.integers(0, 2**40), TEXT, TEXT))
def test_a_signed_session_comes_back(session: Session) -> None:
    assert verify(sign(session, KEY), KEY, session.issued_at) == session
    assert verify(sign(session, KEY), b"other" * 8, session.issued_at) is None
    assert verify(sign(session, KEY), KEY, session.expires_at) is None


@settings(deadline=None)
@given(st.data())
def test_a_changed_token_is_nobodys(data: Any) -> None:
    token = sign(Session("admin", 1000, "nonce", "csrf"), KEY)
    position = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.characters().filter(lambda char: char != token[position]))
    forged = token[:position] + other + token[position + 1 :]
    found = verify(forged, KEY, 1000)
    # The last base64 character has spare bits; whatever still decodes to the signed bytes is the same session.
    assert found is None or found == Session("admin", 1000, "nonce", "csrf")


@settings(deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_refused_quietly(text: str) -> None:
    assert verify(text, KEY, 1000) is None
