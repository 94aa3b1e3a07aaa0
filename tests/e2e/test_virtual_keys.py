"""Virtual keys on live traffic: a real daemon, its admin API, and a fake engine behind it (contracts 7, 8, 50)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import fake_engine
from support.daemon import FAKE_ENGINE_CONFIG, Answer, Daemon, daemon, tiny_catalog

pytestmark = pytest.mark.e2e

STATIC = "team-key-0123456789abcdef"
CONFIG = FAKE_ENGINE_CONFIG.replace(
    "  model_host:\n", "  key_management: {enabled: true, inbound: {require: true}}\n  model_host:\n"
).replace(
    "  localhost:\n",
    "  localhost:\n    credentials:\n"
    f"      - {{name: team, key: {STATIC}, policies: [{{type: rate_limit, rpm: 2}}]}}\n",
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("keys")
    tiny_catalog(folder)
    fake_engine.install(folder)
    with daemon(folder, CONFIG) as handle:
        handle.start()
        yield handle


def mint(served: Daemon, **policy: Any) -> tuple[str, str]:
    """The token and the id of a new key."""
    answer = served.ask("POST", "/admin/keys", policy, admin=True)
    assert answer.status == 201, answer.body
    body = answer.json()
    return body["token"], body["key"]["key_id"]


def chat(served: Daemon, token: str | None, model: str = "tiny", **more: Any) -> Answer:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, **more}
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return served.ask("POST", "/v1/chat/completions", body, headers=headers)


def code_of(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json()["error"]["code"]


def _rows(answer: Any) -> Any:
    return answer if isinstance(answer, list) else answer["requests"]


def usage(served: Daemon, key_id: str) -> Any:
    return served.ask("GET", f"/admin/keys/{key_id}/usage", admin=True).json()["usage"]


def test_without_a_key_nobody_is_answered_and_with_a_wrong_one_neither(served: Daemon) -> None:
    assert chat(served, None).status == 401
    assert chat(served, "sbp_0123456789abcdef_" + "0" * 64).status == 401
    assert served.ask("GET", "/v1/models").status == 401
    assert served.ask("GET", "/metrics").status == 200


def test_a_minted_key_answers_and_its_use_is_counted(served: Daemon) -> None:
    token, key_id = mint(served, name="alice", max_budget_tokens=10_000)
    assert chat(served, token).status == 200
    counted = usage(served, key_id)
    assert counted["budget_tokens"]["used"] > 0
    assert counted["budget_tokens"]["reserved"] == 0
    assert counted["requests_per_minute"]["used"] == 1
    rows = served.ask("GET", f"/api/requests?api_key_id={key_id}", admin=True).json()
    assert [(row["api_key_id"], row["key_mode"], row["status"]) for row in _rows(rows)] == [(key_id, "minted", 200)]
    assert token not in str(rows)


def test_models_that_a_key_may_not_use_are_refused_and_not_listed(served: Daemon) -> None:
    token, _ = mint(served, blocked_models=["tiny"])
    assert chat(served, token).status == 403
    assert chat(served, token, model="org/tiny:q4#1").status == 200
    listed = served.ask("GET", "/v1/models", headers={"Authorization": f"Bearer {token}"}).json()
    assert [row["id"] for row in listed["data"]] == ["org/tiny:q4#1"]


def test_providers_and_tools_that_a_key_may_not_use(served: Daemon) -> None:
    token, _ = mint(served, allowed_providers=["another"])
    assert chat(served, token).status == 403
    token, _ = mint(served, allowed_tools=[])
    tool = {"type": "function", "function": {"name": "delete", "parameters": {"type": "object"}}}
    assert chat(served, token, tools=[tool]).status == 403
    assert chat(served, token).status == 200


def test_a_key_can_send_all_its_requests_to_one_model(served: Daemon) -> None:
    token, _ = mint(served, route_to_model="org/tiny:q4#1")
    answer = chat(served, token)
    assert (answer.status, answer.json()["model"]) == (200, "org/tiny:q4#1")


def test_rates_and_budgets(served: Daemon) -> None:
    token, _ = mint(served, max_requests_per_minute=1)
    first, second = chat(served, token), chat(served, token)
    if second.status == 200:  # a minute ended between them
        second = chat(served, token)
    assert first.status == 200
    assert second.status == 429
    assert 1 <= int(second.headers["retry-after"]) <= 60
    token, key_id = mint(served, max_budget_tokens=40)
    assert [chat(served, token, max_tokens=1000).status, chat(served, token).status] == [402, 200]
    assert usage(served, key_id)["budget_tokens"]["reserved"] == 0


def test_a_request_that_no_engine_took_costs_nothing(served: Daemon) -> None:
    token, key_id = mint(served)
    assert chat(served, token, model="nobody").status == 404
    assert usage(served, key_id)["lifetime"]["requests"] == 0


def test_blocked_and_revoked_keys_stop_at_once(served: Daemon) -> None:
    token, key_id = mint(served)
    assert chat(served, token).status == 200
    assert served.ask("POST", f"/admin/keys/{key_id}/block", {}, admin=True).status == 200
    assert chat(served, token).status == 403
    assert served.ask("POST", f"/admin/keys/{key_id}/unblock", {}, admin=True).status == 200
    assert chat(served, token).status == 200
    rotated = served.ask("POST", f"/admin/keys/{key_id}/rotate", {}, admin=True)
    assert rotated.status == 200, rotated.body
    assert chat(served, rotated.json()["token"]).status == 200


def test_a_static_key_with_a_rate(served: Daemon) -> None:
    statuses = [chat(served, STATIC).status for _ in range(4)]
    assert statuses[:2] == [200, 200]
    assert 429 in statuses[2:]
    two = served.ask(
        "POST",
        "/v1/chat/completions",
        {"model": "tiny", "messages": [{"role": "user", "content": "x"}]},
        headers={"Authorization": f"Bearer {STATIC}", "x-api-key": "another-key-0123456789"},
    )
    assert two.status == 400


def test_a_stream_that_the_client_left_is_charged(served: Daemon) -> None:
    import http.client
    import json

    token, key_id = mint(served)
    fake_engine.set_mode(served.status_row()["port"], "slow_tokens")
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "stream": True, "max_tokens": 50}
    connection.request(
        "POST", "/v1/chat/completions", json.dumps(body),
        {"Host": "localhost", "Content-Type": "application/json", "Authorization": f"Bearer {token}"},
    )  # fmt: skip
    connection.getresponse().read(60)
    connection.sock and connection.sock.close()
    connection.close()
    deadline = time.monotonic() + 10
    while (counted := usage(served, key_id))["lifetime"]["tokens"] == 0:
        assert time.monotonic() < deadline, counted
        time.sleep(0.05)
    assert counted["lifetime"]["estimated_tokens"] > 0
    assert counted["budget_tokens"]["reserved"] == 0
    fake_engine.set_mode(served.status_row()["port"], "normal")


def test_keys_and_their_use_outlive_the_daemon_and_no_secret_is_told(served: Daemon) -> None:
    token, key_id = mint(served, max_budget_tokens=10_000)
    assert chat(served, token).status == 200
    before = usage(served, key_id)["budget_tokens"]["used"]
    assert served.stop() == 0
    served.start()
    assert usage(served, key_id)["budget_tokens"]["used"] == before
    assert chat(served, token).status == 200
    assert token not in served.log
    assert STATIC not in served.log
    config = served.ask("GET", "/admin/config", admin=True)
    assert STATIC.encode() not in config.body


def test_a_changed_key_management_needs_a_restart(served: Daemon, tmp_path: Path) -> None:
    text = served.config.read_text()
    served.config.write_text(text.replace("inbound: {require: true}", "inbound: {require: false}"))
    refused = served.ask("POST", "/admin/reload", admin=True)
    assert refused.status == 400
    assert "key_management" in str(refused.json()["error"])
    served.config.write_text(text)
