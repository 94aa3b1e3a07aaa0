"""``GET /api/requests`` and its stream (document 2)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from sbproxy.api.control import RequestEntry
from sbproxy.observe.request_log import MAX_LAG
from support.admin_world import ADMIN, AdminWorld, SseReader, admin_world, request_record
from support.snapshot import check_json_snapshot

PATH = "/api/requests"


async def ids(world: AdminWorld, query: str) -> list[str]:
    status, body = await world.get(f"{PATH}?{query}")
    assert status == 200, body
    return [entry["request_id"] for entry in body]


async def test_entries_are_newest_first_and_omit_what_is_absent() -> None:
    async with admin_world() as world:
        world.observer.finished(request_record(1))
        refused: dict[str, Any] = dict.fromkeys(
            ("provider", "deployment", "model", "route_class", "surface", "tokens_in", "tokens_out", "ttft_ms")
        )
        world.observer.finished(
            request_record(2, method="GET", path="/v1/models/x?y=1", status=404, error_class="not_found", **refused)
        )
        status, body = await world.get(PATH)
        assert status == 200
        assert [entry["request_id"] for entry in body] == ["req-2", "req-1"]
        assert not {"provider", "tokens_in", "error_code"} & set(body[0])
        check_json_snapshot("api/requests.json", body)
        for entry in body:
            assert RequestEntry.model_validate(entry).model_dump(exclude_none=True) == entry


async def test_filters_and_paging() -> None:
    async with admin_world(max_entries=50) as world:
        for number in range(60):
            world.observer.finished(
                request_record(
                    number,
                    status=500 if number % 10 == 0 else 200,
                    method="GET" if number % 2 else "POST",
                    path=f"/v1/models/{number}",
                    retry_count=number % 3,
                )
            )
        assert len(await ids(world, "")) == 50
        assert await ids(world, "limit=2") == ["req-59", "req-58"]
        assert await ids(world, "limit=2&offset=3") == ["req-56", "req-55"]
        assert len(await ids(world, "limit=100000")) == 50
        assert await ids(world, "limit=0") == []
        assert await ids(world, "offset=50") == []
        assert await ids(world, "status=500") == ["req-50", "req-40", "req-30", "req-20", "req-10"]
        assert await ids(world, "method=get&status=500") == []
        assert await ids(world, "path=models/5&method=POST") == ["req-58", "req-56", "req-54", "req-52", "req-50"]
        assert set(await ids(world, "retried=true")) | set(await ids(world, "retried=false")) == set(
            await ids(world, "")
        )
        assert len(await ids(world, "cache_status=disabled&key_mode=none")) == 50
        assert await ids(world, "cache_status=hit") == []


@pytest.mark.parametrize(
    ("query", "code", "name"),
    [
        ("colour=red", "unknown_parameter", "colour"),
        ("status=abc", "invalid_parameter", "status"),
        ("status=-1", "invalid_parameter", "status"),
        ("limit=1e3", "invalid_parameter", "limit"),
        ("limit=99999999999999999", "invalid_parameter", "limit"),
        ("offset=%D9%A1", "invalid_parameter", "offset"),
        ("retried=yes", "invalid_parameter", "retried"),
        ("cache_status=warm", "invalid_parameter", "cache_status"),
        ("key_mode=x", "invalid_parameter", "key_mode"),
        ("method=", "invalid_parameter", "method"),
        ("status=200&status=500", "invalid_parameter", "status"),
        ("session_id=x", "unsupported_parameter", "session_id"),
        ("property_key=x", "unsupported_parameter", "property_key"),
        ("guardrail_action=block", "unsupported_parameter", "guardrail_action"),
    ],
)
async def test_refused_parameters_are_named(query: str, code: str, name: str) -> None:
    async with admin_world() as world:
        status, body = await world.get(f"{PATH}?{query}")
        assert (status, body["code"]) == (400, code)
        assert repr(name) in body["error"]


async def test_the_stream_takes_no_filters() -> None:
    async with admin_world() as world:
        status, body = await world.get(f"{PATH}/stream?status=200")
        assert (status, body["code"]) == (400, "unknown_parameter")


async def test_the_stream_sends_new_entries_in_the_shape_of_the_list() -> None:
    async with admin_world() as world:
        world.observer.finished(request_record(1))
        async with SseReader(world.call("GET", f"{PATH}/stream", ADMIN)) as events:
            connected = await events.next()
            assert connected is not None
            assert connected.comment == "connected"
            await asyncio.sleep(0.05)
            world.observer.finished(request_record(2))
            event = await events.next()
            assert event is not None
            _, listed = await world.get(f"{PATH}?limit=1")
            assert (event.id, [json.loads(event.data or "")]) == ("2", listed)


async def test_the_stream_resumes_and_tells_what_is_gone() -> None:
    async with admin_world(max_entries=10) as world:
        for number in range(30):
            world.observer.finished(request_record(number))
        headers = {"Last-Event-ID": "5"}
        async with SseReader(world.call("GET", f"{PATH}/stream", ADMIN, headers=headers)) as events:
            _, gap, first = [await events.next() for _ in range(3)]
            assert gap is not None
            assert first is not None
            assert (gap.event, json.loads(gap.data or "")) == ("gap", {"from": 6, "to": 20, "missed": 15})
            assert first.id == "21"


async def test_a_reader_that_does_not_read_is_told_about_its_gap() -> None:
    async with admin_world(max_entries=10_000) as world:
        reader = SseReader(world.call("GET", f"{PATH}/stream", ADMIN))
        async with reader as events:
            await events.next()
            await asyncio.sleep(0.05)
            total = 3 * MAX_LAG
            for number in range(total):
                world.observer.finished(request_record(number))
            seen: list[int] = []
            while not seen or seen[-1] < total:
                event = await events.next()
                assert event is not None
                if event.event == "gap":
                    said = json.loads(event.data or "")
                    seen.extend(range(said["from"], said["to"] + 1))
                else:
                    seen.append(int(event.id or ""))
            assert seen == list(range(1, total + 1))
