"""Every error that exists has a place in what the data plane says, and says nothing private."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import typing
from typing import Any

import orjson
import pytest

import sbproxy.errors
from gateway.memory import MemoryResponse, MemoryUpstream, Rig, chat, completion, routes
from sbproxy.errors import SbproxyError, leaves
from sbproxy.errors.artifacts import ArtifactError
from sbproxy.errors.engines import EngineError, EngineLaunchFailed
from sbproxy.errors.gateway import GatewayError, ProviderRefused, UnusableProvider
from sbproxy.errors.governance import GovernanceRefusal
from sbproxy.errors.keys import KeyAdministrationError, KeyRefused
from sbproxy.errors.modelhost import (
    AdmissionRejected,
    FoundationChanged,
    InsufficientMemory,
    ModelHostError,
    NoReadyReplica,
    ResetRefused,
)
from sbproxy.gateway.statuses import ADMISSION, INTERNAL, OUTCOMES, outcome_of
from sbproxy.modelhost.core.status import AdmissionReason

for _module in pkgutil.iter_modules(sbproxy.errors.__path__, "sbproxy.errors."):
    importlib.import_module(_module.name)

REACHING = (GatewayError, ModelHostError, EngineError, ArtifactError, KeyRefused, GovernanceRefusal)
ELSEWHERE = ("admin", "client", "cli", "config", "catalog", "observe", "daemon", "devices", "governance", "jobs", "tui")
"""Modules of the tree whose leaves belong to other surfaces."""
LEAVES = sorted(leaves(), key=lambda leaf: leaf.__qualname__)
LEAVES_HERE = [leaf for leaf in LEAVES if issubclass(leaf, REACHING)]
NOT_BY_A_REQUEST = {UnusableProvider, ResetRefused, FoundationChanged}
PRIVATE = "/srv/private/model.gguf at 10.9.8.7:4001"


def build(leaf: type[SbproxyError]) -> SbproxyError:
    values: dict[str, Any] = {}
    hints = typing.get_type_hints(leaf)
    for field in dataclasses.fields(leaf):  # type: ignore[arg-type]
        kind = hints[field.name]
        if kind is str and field.name == "where":
            values[field.name] = "1 of 2 in the queue"  # meant for callers
        elif kind is str:
            values[field.name] = PRIVATE
        elif kind in (int, float):
            values[field.name] = kind(1)
        elif kind is bool:
            values[field.name] = False
        elif typing.get_origin(kind) is tuple:
            values[field.name] = ()
        else:
            values[field.name] = None
    return leaf(**values)


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.__name__)
def test_every_leaf_is_placed(leaf: type[SbproxyError]) -> None:
    module = leaf.__module__.rpartition(".")[2]
    if issubclass(leaf, REACHING):
        covered = [kind for kind in leaf.__mro__ if kind in OUTCOMES]
        assert covered or leaf is AdmissionRejected, f"give {leaf.__name__} a line in sbproxy.gateway.statuses"
        assert (outcome_of(build(leaf)) is INTERNAL) == (leaf in NOT_BY_A_REQUEST)
    else:
        assert module in ELSEWHERE or issubclass(leaf, KeyAdministrationError), (
            f"can {leaf.__name__} reach the data plane?"
        )
        assert outcome_of(build(leaf)) is INTERNAL


def test_every_leaf_of_the_gateway_has_its_own_line() -> None:
    assert [leaf.__name__ for leaf in LEAVES if issubclass(leaf, GatewayError) and leaf not in OUTCOMES] == []


def test_every_admission_reason_has_a_line() -> None:
    assert set(ADMISSION) == set(typing.get_args(AdmissionReason))


SHOWN_AS_THEY_ARE = {leaf for leaf in LEAVES_HERE if OUTCOMES.get(leaf) and OUTCOMES[leaf].sentence is None}


@pytest.mark.parametrize("leaf", LEAVES_HERE, ids=lambda leaf: leaf.__name__)
async def test_the_answer_has_the_shape_of_openai_and_no_private_detail(leaf: type[SbproxyError]) -> None:
    rig = Rig()
    rig.models.refusal = build(leaf)
    exchange = await rig.ask(body=chat(), headers=((b"x-request-id", b"req-7"),))
    outcome = outcome_of(rig.models.refusal)
    status = rig.models.refusal.status if isinstance(rig.models.refusal, ProviderRefused) else outcome.status
    assert exchange.status == status == rig.sink.last.status
    document = exchange.json()
    error = document["error"]
    assert error["type"] == outcome.kind or leaf is ProviderRefused
    assert error["message"]
    if outcome.managed:
        assert set(error) == {"message", "type", "code", "request_id", "retryable"}
        assert error["request_id"] == "req-7"
        assert document["sbproxy_reason"] == error["code"]
        assert rig.sink.last.error_class in ("model_unavailable", "queue_full", "queue_timeout")
    else:
        assert set(document) == {"error"}
        assert set(error) == {"message", "type", "param", "code"}
    if leaf not in SHOWN_AS_THEY_ARE:
        assert PRIVATE not in error["message"]
    assert rig.sink.last.error_class
    assert exchange.headers[b"content-type"] == b"application/json"
    assert exchange.headers[b"x-request-id"] == b"req-7"


@pytest.mark.parametrize(
    ("reason", "status", "retryable", "retry_after"),
    [
        ("queue_full", 429, True, b"30"),
        ("queue_timeout", 429, True, b"30"),
        ("draining", 503, True, b"30"),
        ("insufficient_capacity", 503, False, None),
        ("engine_unhealthy", 503, False, None),
        ("crash_loop", 503, False, None),
    ],
)
async def test_admission(reason: str, status: int, retryable: bool, retry_after: bytes | None) -> None:
    rig = Rig()
    rig.models.refusal = AdmissionRejected("local-qwen", reason, "8 wait already", retry_after_ms=29_001)
    exchange = await rig.ask(body=chat())
    assert exchange.status == status
    assert exchange.headers.get(b"retry-after") == retry_after
    error = exchange.json()["error"]
    assert (error["code"], error["retryable"]) == (reason, retryable)
    assert rig.sink.last.error_code == reason


async def test_no_ready_replica_is_document_ones_body() -> None:
    rig = Rig()
    rig.models.refusal = NoReadyReplica("local-qwen")
    exchange = await rig.ask(body=chat(), headers=((b"x-request-id", b"abc"),))
    assert exchange.status == 503
    assert exchange.headers[b"retry-after"] == b"1"
    assert exchange.json() == {
        "error": {
            "message": "the model 'qwen' has no ready replica and requests start none",
            "type": "managed_model_error",
            "code": "no_ready_replica",
            "request_id": "abc",
            "retryable": True,
        },
        "sbproxy_reason": "no_ready_replica",
    }


async def test_a_launch_that_failed_keeps_its_words_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.models.refusal = EngineLaunchFailed("llama_cpp", "bad_file", "cannot read /srv/models/x.gguf")
    exchange = await rig.ask(body=chat())
    assert exchange.json()["error"]["code"] == "engine_launch_failed"
    assert b"/srv" not in exchange.body
    assert "/srv/models/x.gguf" in caplog.text


async def test_a_model_name_with_braces_does_not_upset_the_sentence() -> None:
    name = "a{model}{0}"
    rig = Rig(routes({"name": "l", "provider_type": "managed_model", "deployment": "d", "models": [name]}))
    rig.models.refusal = NoReadyReplica("d")
    exchange = await rig.ask(body=orjson.dumps(chat(name)))
    assert exchange.status == 503
    assert name in exchange.json()["error"]["message"]


def memory_refusal(retry_after_ms: int | None) -> InsufficientMemory:
    return InsufficientMemory("d", 1, 1, 1, 1, 4, 2, "card", retry_after_ms=retry_after_ms)


@pytest.mark.parametrize(("after_ms", "header"), [(None, None), (2500, b"3"), (1, b"1")])
async def test_memory_that_may_come_back_says_when(after_ms: int | None, header: bytes | None) -> None:
    rig = Rig()
    rig.models.refusal = memory_refusal(after_ms)
    exchange = await rig.ask(body=chat())
    assert (exchange.status, exchange.headers.get(b"retry-after")) == (503, header)
    error = exchange.json()["error"]
    assert (error["code"], error["retryable"]) == ("insufficient_capacity", header is not None)


LOCAL = {"name": "local", "provider_type": "managed_model", "deployment": "d", "models": ["qwen"]}
CLOUD = {"name": "cloud", "provider_type": "openai", "base_url": "https://api.example.com/v1", "models": ["qwen"]}
ANY = {"name": "any", "provider_type": "openai", "base_url": "https://any.example.com/v1"}


@pytest.mark.parametrize(("spare", "answered_by"), [(CLOUD, "cloud"), (ANY, "any")])
async def test_a_cold_deployment_with_fallback_goes_to_the_next_provider(
    spare: dict[str, object], answered_by: str
) -> None:
    rig = Rig(routes(LOCAL, spare), MemoryUpstream(MemoryResponse(completion())))
    rig.models.refusal = NoReadyReplica("d", fallback=True)
    exchange = await rig.ask(body=chat())
    assert exchange.status == 200
    record = rig.sink.last
    assert (record.provider, record.route_class, record.failover_engaged) == (answered_by, "external", True)
    assert exchange.headers[b"x-sbproxy-route-class"] == b"external"


@pytest.mark.parametrize("fallback", [False, True])
async def test_without_another_provider_or_policy_the_cold_one_is_the_answer(fallback: bool) -> None:
    rig = Rig(routes(LOCAL) if fallback else routes(LOCAL, CLOUD))
    rig.models.refusal = NoReadyReplica("d", fallback=fallback)
    exchange = await rig.ask(body=chat())
    assert (exchange.status, exchange.headers[b"retry-after"]) == (503, b"1")
    assert exchange.json()["error"]["code"] == "no_ready_replica"
    assert rig.upstream.sent == []


async def test_two_cold_deployments_and_no_other_provider(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(routes(LOCAL, LOCAL | {"name": "second", "deployment": "e"}))
    rig.models.refusal = NoReadyReplica("d", fallback=True)
    exchange = await rig.ask(body=chat())
    assert exchange.status == 503
    assert rig.models.priorities == ["standard", "standard"]
