"""Keys meet requests: rules, credentials, priorities, and what is booked however a request ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gateway.memory import HOSTED, LOCAL, MemoryModels, MemoryResponse, MemoryUpstream, Rig, chat, completion, routes
from sbproxy.errors.gateway import UpstreamUnreachable
from sbproxy.errors.keys import CredentialUnusable, KeyMissing, KeyRefused
from sbproxy.errors.modelhost import AdmissionRejected, NoReadyReplica
from sbproxy.gateway.key_gate import KeyGate
from sbproxy.keys.core.caller import Known, Unresolved
from sbproxy.keys.core.record import KeyBudget, KeyRecord
from sbproxy.keys.governance_local import LocalGovernor
from sbproxy.keys.governance_usage import limits_of

RECORD = KeyRecord(key_id="0123456789abcdef", secret_hash="x", created_at=1.0, updated_at=1.0)


@dataclass
class OneKey:
    """A keyring with one key, which every request with an authorization header has."""

    record: KeyRecord = RECORD

    def lookup(self, headers: Any, origin: str, required: bool) -> Known | KeyRefused | None:
        if any(name == b"authorization" for name, _ in headers):
            return Known(self.record, "v1", b"authorization")
        return KeyMissing("authorization") if required else None

    async def resolve(self, asked: Unresolved) -> None:
        raise AssertionError("everything is cached")


@dataclass
class Header:
    header: bytes
    value: bytes


class OneCredential:
    def cached(self, key: KeyRecord, provider: str, tenant_id: str) -> Header | None:
        return None

    async def presented(self, key: KeyRecord, provider: str, tenant_id: str) -> Header:
        if key.credential_id != "mine":
            raise CredentialUnusable(key.key_id, "it does not exist")
        return Header(b"x-api-key", b"bound-secret")


@pytest.fixture
def governor(tmp_path: Path) -> Iterator[LocalGovernor]:
    opened = LocalGovernor(tmp_path / "governance.sqlite3", clock=lambda: 1_700_000_000.5)
    yield opened
    asyncio.run(opened.close())


def gate(governor: LocalGovernor, record: KeyRecord = RECORD, price: tuple[int, int] | None = None) -> KeyGate:
    return KeyGate(OneKey(record), governor, OneCredential(), lambda *_: price, lambda: 1_700_000_000.5)


KEYED: dict[str, Any] = {"headers": ((b"authorization", b"Bearer x"),)}


async def used(governor: LocalGovernor, record: KeyRecord = RECORD) -> tuple[int, int, int]:
    """Requests of the minute, tokens and what is reserved."""
    usage = await governor.usage(record.key_id, limits_of(record))
    return usage.requests_per_minute.used, usage.lifetime.tokens, usage.budget_tokens.reserved


async def test_reported_usage_is_booked_and_nothing_stays_reserved(governor: LocalGovernor) -> None:
    rig = Rig(routes(HOSTED), MemoryUpstream(MemoryResponse(completion())), keys=gate(governor))
    exchange = await rig.ask(body=chat("big"), **KEYED)
    assert exchange.status == 200
    record = rig.sink.last
    assert (record.api_key_id, record.key_mode) == (RECORD.key_id, "minted")
    assert await used(governor) == (1, (record.tokens_in or 0) + (record.tokens_out or 0), 0)


async def test_without_a_key_a_request_passes_by_unless_one_is_required(governor: LocalGovernor) -> None:
    rig = Rig(routes(HOSTED), MemoryUpstream(MemoryResponse(completion())), keys=gate(governor))
    assert (await rig.ask(body=chat("big"))).status == 200
    assert await used(governor) == (0, 0, 0)
    strict = Rig(routes(HOSTED, require_governed_key=True), keys=gate(governor))
    assert (await strict.ask(body=chat("big"))).status == 401
    assert (await strict.ask("/v1/models", method="GET")).status == 401


@pytest.mark.parametrize(
    "refusal", [AdmissionRejected("d", "queue_full"), NoReadyReplica("d"), UpstreamUnreachable("d", "refused")]
)
async def test_what_never_reached_a_model_costs_nothing(governor: LocalGovernor, refusal: Exception) -> None:
    rig = Rig(routes(LOCAL), models=MemoryModels(refusal=refusal), keys=gate(governor))  # type: ignore[arg-type]
    assert (await rig.ask(body=chat(), **KEYED)).status >= 429
    assert await used(governor) == (0, 0, 0)


async def test_a_caller_that_leaves_pays_for_its_prompt(governor: LocalGovernor) -> None:
    waiting = asyncio.Event()
    rig = Rig(routes(HOSTED), MemoryUpstream(MemoryResponse([waiting])), keys=gate(governor))
    asking = asyncio.create_task(rig.ask(body=chat("big"), **KEYED))
    await asyncio.sleep(0.01)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    requests, tokens, reserved = await used(governor)
    assert (requests, reserved) == (1, 0)
    assert tokens > 0


async def test_the_keys_class_is_the_priority_of_admission(governor: LocalGovernor) -> None:
    models = MemoryModels(waits=True)
    rig = Rig(
        routes(LOCAL), MemoryUpstream(MemoryResponse(completion())), models,
        keys=gate(governor, replace(RECORD, priority="interactive")),
    )  # fmt: skip
    await rig.ask(body=chat(), **KEYED)
    assert models.priorities == ["interactive"]


async def test_a_bound_credential_replaces_the_providers_own(governor: LocalGovernor) -> None:
    upstream = MemoryUpstream(MemoryResponse(completion()))
    rig = Rig(routes(HOSTED), upstream, keys=gate(governor, replace(RECORD, credential_id="mine")))
    assert (await rig.ask(body=chat("big"), **KEYED)).status == 200
    headers = upstream.sent[0].headers
    assert headers[b"x-api-key"] == b"bound-secret"
    assert b"authorization" not in headers


async def test_a_bound_credential_that_cannot_be_used_stops_the_request(governor: LocalGovernor) -> None:
    upstream = MemoryUpstream()
    rig = Rig(routes(HOSTED), upstream, keys=gate(governor, replace(RECORD, credential_id="gone")))
    assert (await rig.ask(body=chat("big"), **KEYED)).status == 503
    assert upstream.sent == []
    assert await used(governor) == (0, 0, 0)


async def test_money_is_counted_for_hosted_models_and_stops_at_the_budget(governor: LocalGovernor) -> None:
    record = replace(RECORD, budget=KeyBudget(max_cost_usd=0.000_5))
    upstream = MemoryUpstream(MemoryResponse(completion()), MemoryResponse(completion()))
    rig = Rig(routes(HOSTED), upstream, keys=gate(governor, record, (1_000_000, 1_000_000)))
    assert (await rig.ask(body=chat("big", max_tokens=1000), **KEYED)).status == 402, "its ceiling is above the budget"
    assert (await rig.ask(body=chat("big", max_tokens=20), **KEYED)).status == 200
    usage = await governor.usage(record.key_id, limits_of(record))
    served = rig.sink.last
    assert usage.budget_micro_usd.used == (served.tokens_in or 0) + (served.tokens_out or 0)


async def test_five_long_calls_at_once_never_overspend_a_small_budget(governor: LocalGovernor) -> None:
    record = replace(RECORD, budget=KeyBudget(max_tokens=250))
    responses = [MemoryResponse(completion()) for _ in range(5)]
    rig = Rig(routes(HOSTED), MemoryUpstream(*responses), keys=gate(governor, record))
    answers = await asyncio.gather(*(rig.ask(body=chat("big", max_tokens=100), **KEYED) for _ in range(5)))
    statuses = sorted(each.status for each in answers)
    assert statuses.count(402) >= 3
    assert 200 in statuses
    usage = await governor.usage(record.key_id, limits_of(record))
    assert usage.budget_tokens.used <= 250


async def test_a_fallback_goes_only_where_the_key_may(governor: LocalGovernor) -> None:
    spare = HOSTED | {"models": ["qwen"]}
    record = replace(RECORD, blocked_providers=(str(spare["name"]),))
    models = MemoryModels(refusal=NoReadyReplica("d", fallback=True))
    rig = Rig(routes(LOCAL, spare), models=models, keys=gate(governor, record))
    assert (await rig.ask(body=chat(), **KEYED)).status == 503
    assert rig.upstream.sent == []
