"""The checks before any handler: order, statuses and bodies of contracts section 3."""

from __future__ import annotations

import logging

import pytest

from sbproxy.admin.gate import PROBES
from sbproxy.config.core.document import AdminTlsConfig
from support.admin_world import ADMIN, AS_JSON, CHIEF, VIEWER, admin_config, admin_world

UNAUTHORIZED = {"error": "Unauthorized"}
READ_ONLY = {"error": "forbidden: read-only operator cannot perform this action"}
CSRF = {"error": "CSRF token missing or invalid"}
FOREIGN = {"error": "forbidden: sent by a page of another origin; proxy.admin.cors_origins lists those that may"}
LOAD = {"deployment": "local-qwen"}
LOAD_PATH = "/admin/model-host/load"

PROTECTED = [
    ("GET", "/admin/model-host/catalog"),
    ("GET", "/admin/model-host/deployments"),
    ("PUT", "/admin/model-host/deployments"),
    ("GET", "/admin/model-host/status"),
    ("GET", "/admin/model-host/files"),
    ("GET", "/admin/model-host/jobs"),
    ("GET", "/admin/model-host/jobs/stream"),
    ("POST", "/admin/model-host/load"),
    ("POST", "/admin/model-host/stop"),
    ("POST", "/admin/model-host/drain"),
    ("POST", "/admin/model-host/evict"),
    ("POST", "/admin/model-host/reset"),
    ("GET", "/api/requests"),
    ("GET", "/api/requests/stream"),
    ("GET", "/api/health"),
    ("POST", "/admin/reload"),
    ("GET", "/admin/drift"),
    ("GET", "/metrics"),
    ("GET", "/nowhere"),
]


@pytest.mark.parametrize(("method", "path"), PROTECTED)
async def test_protected_routes_want_credentials(method: str, path: str) -> None:
    async with admin_world() as world, world.call(method, path, json=LOAD) as answer:
        assert answer.status == 401
        assert await answer.json() == UNAUTHORIZED
        assert answer.headers["WWW-Authenticate"].startswith("Basic ")
        assert "Set-Cookie" not in answer.headers
        assert world.host.calls == []


@pytest.mark.parametrize(
    "who",
    [("admin", "wrong"), ("Admin", ADMIN[1]), ("", ""), VIEWER, CHIEF],
    ids=["password", "case", "empty", "operator", "hashed-operator"],
)
async def test_basic_is_for_the_top_level_identity_only(who: tuple[str, str]) -> None:
    async with admin_world() as world:
        assert await world.get("/admin/model-host/status", who) == (401, UNAUTHORIZED)


@pytest.mark.parametrize(
    "header", ["Basic", "Basic !!!", "Basic YWRtaW4=", "Bearer abc", "Basic /w==", "Basic " + "QUFB" * 2000]
)
async def test_unreadable_authorization_is_no_authorization(header: str) -> None:
    async with admin_world() as world:
        assert await world.get("/api/health", None, headers={"Authorization": header}) == (401, UNAUTHORIZED)


async def test_basic_needs_no_csrf_token_and_gets_a_session() -> None:
    async with admin_world() as world, world.call("POST", LOAD_PATH, ADMIN, json=LOAD) as answer:
        assert answer.status == 202
        cookie = answer.headers["Set-Cookie"]
        assert cookie.startswith("sb_admin_session=")
        assert cookie.endswith("; HttpOnly; SameSite=Strict; Path=/; Max-Age=28800")
        browser = {"Cookie": cookie.partition(";")[0], "X-CSRF-Token": answer.headers["X-CSRF-Token"]}
        assert (await world.post(LOAD_PATH, LOAD, None, headers=browser))[0] == 202
        # Who has one already does not get another.
        async with world.call("GET", "/api/health", ADMIN, headers={"Cookie": browser["Cookie"]}) as again:
            assert "Set-Cookie" not in again.headers


async def test_a_session_must_echo_its_own_csrf_token_to_change_anything() -> None:
    async with admin_world() as world:
        browser, other = await world.log_in(CHIEF), await world.log_in(CHIEF)
        cookie = {"Cookie": browser["Cookie"]}
        assert await world.post(LOAD_PATH, LOAD, None, headers=cookie) == (403, CSRF)
        for wrong in ("", "x", other["X-CSRF-Token"], browser["X-CSRF-Token"] + "x", "\u00e9"):
            assert await world.post(LOAD_PATH, LOAD, None, headers={**cookie, "X-CSRF-Token": wrong}) == (403, CSRF)
        assert world.host.calls == []
        assert (await world.get("/api/health", None, headers=cookie))[0] == 200
        assert (await world.post(LOAD_PATH, LOAD, None, headers=browser))[0] == 202


async def test_a_read_only_operator_looks_and_changes_nothing() -> None:
    async with admin_world() as world:
        browser = await world.log_in(VIEWER)
        assert (await world.get("/admin/model-host/status", None, headers=browser))[0] == 200
        for path in (LOAD_PATH, "/admin/model-host/reset", "/admin/reload", "/nowhere"):
            assert await world.post(path, LOAD, None, headers=browser) == (403, READ_ONLY)
        # The missing token is seen before the missing role.
        cookie = {"Cookie": browser["Cookie"]}
        assert await world.post(LOAD_PATH, LOAD, None, headers=cookie) == (403, CSRF)
        assert world.host.calls == []


FOREIGN_PAGES = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": "https://evil.example", "Sec-Fetch-Site": "none"},
]


@pytest.mark.parametrize("page", FOREIGN_PAGES, ids=str)
async def test_a_page_elsewhere_changes_nothing(page: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    """Neither with Basic credentials that the browser has cached, nor with a session, nor by logging somebody in."""
    caplog.set_level(logging.INFO, "sbproxy.admin.audit")
    async with admin_world(admin_config(cors_origins=["https://console.example"])) as world:
        browser = await world.log_in(CHIEF)
        assert await world.post(LOAD_PATH, LOAD, ADMIN, headers=page) == (403, FOREIGN)
        assert await world.post(LOAD_PATH, LOAD, None, headers={**browser, **page}) == (403, FOREIGN)
        login = {"username": CHIEF[0], "password": CHIEF[1]}
        assert await world.post("/admin/login", login, None, headers=page) == (403, FOREIGN)
        assert await world.post("/admin/logout", None, None, headers={**browser, **page}) == (403, FOREIGN)
        assert world.host.calls == []
        assert (await world.get("/api/health", None, headers=browser))[0] == 200
        assert (await world.get("/api/health", ADMIN, headers=page))[0] == 200
    lines = [vars(record) for record in caplog.records if record.name == "sbproxy.admin.audit"]
    assert [(line["operator"], line["outcome"]) for line in lines] == [
        ("chief", "login"),
        ("admin", "403"),
        ("chief", "403"),
        ("-", "403"),
        ("-", "403"),
    ]


async def test_our_own_page_and_a_known_one_may() -> None:
    async with admin_world(admin_config(cors_origins=["https://console.example"])) as world:
        own = f"http://{world.server.host}:{world.server.port}"
        for page in (
            {"Origin": "https://console.example", "Sec-Fetch-Site": "cross-site"},
            {"Origin": own, "Sec-Fetch-Site": "same-origin"},
            {"Sec-Fetch-Site": "none"},
        ):
            assert (await world.post(LOAD_PATH, LOAD, ADMIN, headers=page))[0] == 202


async def test_the_own_origin_is_that_of_the_scheme_that_is_served() -> None:
    async with admin_world(admin_config(tls=AdminTlsConfig(cert="/c.pem", key="/k.pem"))) as world:
        host = {"Host": "admin.example"}
        plain, tls = ({**host, "Origin": f"{scheme}://admin.example"} for scheme in ("http", "https"))
        assert await world.post(LOAD_PATH, LOAD, ADMIN, headers=plain) == (403, FOREIGN)
        assert (await world.post(LOAD_PATH, LOAD, ADMIN, headers=tls))[0] == 202


NOT_JSON = {
    "error": "a request body must be JSON; send it with Content-Type: application/json",
    "code": "unsupported_media_type",
    "reason_code": "unsupported_media_type",
}


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
async def test_a_body_must_say_that_it_is_json(kind: str) -> None:
    """Anything else a form of any web page could send as well."""
    body = b'{"deployment": "local-qwen"}'
    async with admin_world() as world:
        for path in (LOAD_PATH, "/admin/reload"):
            async with world.call("POST", path, ADMIN, data=body, headers={"Content-Type": kind}) as answer:
                assert (answer.status, await answer.json()) == (415, NOT_JSON)
        login = b'{"username": "admin", "password": "x"}'
        async with world.call("POST", "/admin/login", data=login, headers={"Content-Type": kind}) as answer:
            assert answer.status == 415
        assert world.host.calls == []
        for good in ("application/json", "application/json; charset=utf-8", "application/merge-patch+json"):
            async with world.call("POST", LOAD_PATH, ADMIN, data=body, headers={"Content-Type": good}) as answer:
                assert answer.status == 202
        # Without a body there is nothing to declare.
        assert (await world.post("/admin/reload"))[0] == 200


QUERY_ROUTES = {"/api/requests", "/admin/model-host/jobs"}
NO_QUERY = [(method, path) for method, path in PROTECTED if path not in QUERY_ROUTES | {"/nowhere"}]


@pytest.mark.parametrize(
    ("method", "path"),
    [*NO_QUERY, *(("GET", path) for path in sorted(PROBES)), ("POST", "/admin/login"), ("GET", "/admin/session")],
)
async def test_a_route_without_parameters_refuses_every_parameter(method: str, path: str) -> None:
    async with admin_world() as world:
        for query in ("limit=1", "x", "force=true&force=false"):
            async with world.call(method, f"{path}?{query}", ADMIN, json=LOAD) as answer:
                said = await answer.json()
                assert (answer.status, said["code"]) == (400, "unknown_parameter")
                assert "known are none" in said["error"]
        assert world.host.calls == []


async def test_what_does_not_exist_is_not_asked_for_its_parameters() -> None:
    async with admin_world() as world:
        assert (await world.get("/nowhere?x=1"))[0] == 404
        assert (await world.get("/admin/reload?x=1"))[0] == 405
        assert (await world.get("/admin/model-host/status?x=1", None))[0] == 401


@pytest.mark.parametrize("address", ["10.1.2.3", "10.0.0.0/8"])
async def test_addresses_that_are_not_allowed_are_refused_before_credentials_are_read(address: str) -> None:
    async with admin_world(admin_config(allow_ips=[address])) as world:
        for path in ("/admin/model-host/status", "/healthz"):
            status, body = await world.get(path)
            assert (status, "allow_ips" in body["error"]) == (403, True)


async def test_an_address_list_admits_its_networks() -> None:
    async with admin_world(admin_config(allow_ips=["10.0.0.1", "127.0.0.0/8"])) as world:
        assert (await world.get("/api/health"))[0] == 200


async def test_the_body_bound_comes_before_everything() -> None:
    body = b"x" * (512 * 1024 + 1)
    config = admin_config(allow_ips=["10.1.2.3"])
    async with admin_world(config) as world, world.call("POST", LOAD_PATH, data=body) as answer:
        said = await answer.json()
        assert answer.status == 413
        assert set(said) == {"code", "reason_code", "error"}
        assert said["code"] == "request_body_too_large"


async def test_a_chunked_body_is_bounded_while_it_is_read() -> None:
    async def pieces():  # type: ignore[no-untyped-def]
        for _ in range(20):
            yield b"x" * 65536

    async with admin_world() as world, world.call("POST", LOAD_PATH, ADMIN, data=pieces(), headers=AS_JSON) as answer:
        assert answer.status == 413
        assert (await answer.json())["code"] == "request_body_too_large"


async def test_the_rate_limit_counts_per_minute_and_spares_the_probes() -> None:
    async with admin_world(admin_config(rate_limit_per_minute=3)) as world:
        for _ in range(3):
            assert (await world.get("/api/health"))[0] == 200
        async with world.call("GET", "/api/health", ADMIN) as refused:
            assert refused.status == 429
            assert await refused.json() == {"error": "Too Many Requests"}
            assert 1 <= int(refused.headers["Retry-After"]) <= 60
        for path in PROBES:
            assert (await world.get(path, None))[0] == 200
        world.clock.value += 60
        assert (await world.get("/api/health"))[0] == 200


async def test_preflight_echoes_only_known_origins() -> None:
    async with admin_world(admin_config(cors_origins=["https://console.example"])) as world:
        async with world.call("OPTIONS", LOAD_PATH, headers={"Origin": "https://console.example"}) as known:
            assert known.status == 204
            assert known.headers["Access-Control-Allow-Origin"] == "https://console.example"
            assert "X-CSRF-Token" in known.headers["Access-Control-Allow-Headers"]
        for stranger in ("https://evil.example", "https://console.example.evil.example", "null"):
            async with world.call("OPTIONS", LOAD_PATH, headers={"Origin": stranger}) as unknown:
                assert unknown.status == 204
                assert "Access-Control-Allow-Origin" not in unknown.headers
        async with world.call("GET", "/api/health", ADMIN, headers={"Origin": "https://console.example"}) as got:
            assert got.headers["Access-Control-Allow-Origin"] == "https://console.example"
            assert got.headers["Vary"] == "Origin"


async def test_unknown_paths_and_wrong_verbs() -> None:
    async with admin_world() as world:
        assert await world.get("/admin/nowhere") == (404, {"error": "Not Found"})
        async with world.call("GET", "/admin/reload", ADMIN) as answer:
            assert answer.status == 405
            assert answer.headers["Allow"] == "POST"
            assert await answer.json() == {"error": "Method Not Allowed"}
        async with world.call("DELETE", "/admin/model-host/deployments", ADMIN) as answer:
            assert answer.status == 405
            assert answer.headers["Allow"] == "GET,HEAD,PUT"
        async with world.call("GET", "/admin/login") as answer:
            assert answer.status == 405


async def test_what_nobody_foresaw_is_a_500_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    async with admin_world() as world:
        world.host.failure = RuntimeError("the inside of the daemon")
        status, body = await world.post(LOAD_PATH, LOAD)
        assert status == 500
        assert body["error"] == "internal error"
        assert "the inside" not in str(body)
        (record,) = [record for record in caplog.records if record.exc_info]
        assert vars(record)["request_id"] == body["request_id"]


async def test_answers_do_not_name_the_server_and_are_not_cached() -> None:
    async with admin_world() as world, world.call("GET", "/api/health", ADMIN) as answer:
        assert answer.headers["Server"] == "sbproxy"
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_every_change_leaves_one_audit_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sbproxy.admin.audit")
    async with admin_world() as world:
        viewer = await world.log_in(VIEWER)
        await world.post(LOAD_PATH, LOAD)
        await world.post(LOAD_PATH, {"deployment": "nope"})
        await world.post(LOAD_PATH, LOAD, None, headers=viewer)
        await world.get("/admin/model-host/status")
        lines = [vars(record) for record in caplog.records if record.name == "sbproxy.admin.audit"]
        assert [(line["operator"], line["role"], line["route"], line["outcome"]) for line in lines] == [
            ("viewer", "read_only", "/admin/login", "login"),
            ("admin", "admin", LOAD_PATH, "202"),
            ("admin", "admin", LOAD_PATH, "404"),
            ("viewer", "read_only", LOAD_PATH, "403"),
        ]
        assert "nope" not in caplog.text
