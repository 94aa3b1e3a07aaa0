"""``GET /admin/model-host/value``: its shape, empty and filled."""

from __future__ import annotations

from sbproxy.api.value import ValueAnswer
from sbproxy.observe.core.value import Price, PriceTable
from support.admin_world import VIEWER, admin_world, request_record
from support.snapshot import check_json_snapshot

VALUE = "/admin/model-host/value"


async def test_before_anything_was_served() -> None:
    async with admin_world() as world:
        status, body = await world.get(VALUE)
        assert status == 200
        assert body == {
            "models": [],
            "total_saved_micros": 0,
            "total_cloud_spent_micros": 0,
            "total_local_completions": 0,
            "total_cloud_completions": 0,
            "compression": [],
            "compression_totals": {},
            "total_compression_tokens_saved": 0,
            "total_compression_gross_cost_saved_micros": 0,
        }


async def test_both_lanes_and_their_totals() -> None:
    async with admin_world() as world:
        price = Price(150_000, 600_000)
        world.value.publish(PriceTable({("localhost", "qwen"): price}, {("localhost", "openai"): price}))
        world.observer.finished(request_record(tokens_in=1_000_000, tokens_out=0))
        spilled = {"provider": "openai", "deployment": None, "route_class": "external"}
        world.observer.finished(request_record(tokens_in=0, tokens_out=10_000, **spilled))
        world.observer.finished(request_record(model="gpt-4o-mini", tokens_in=0, tokens_out=4_000, **spilled))
        status, body = await world.get(VALUE, None, headers=await world.log_in(VIEWER))
        assert status == 200
        check_json_snapshot("api/model-host-value.json", body)
        assert ValueAnswer.model_validate(body).model_dump(mode="json") == body
        assert body["models"][1] == {
            "model": "qwen",
            "local_completions": 1,
            "cloud_completions": 1,
            "saved_micros": 150_000,
            "cloud_spent_micros": 6_000,
        }
        assert (body["total_saved_micros"], body["total_cloud_spent_micros"]) == (150_000, 8_400)


async def test_nobody_sees_it_without_signing_in() -> None:
    async with admin_world() as world:
        status, _ = await world.get(VALUE, None)
        assert status == 401
