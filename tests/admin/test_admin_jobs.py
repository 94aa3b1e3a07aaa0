"""Jobs: list, detail, and their streams with resume, gap, heartbeat and end (contracts section 18)."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

import pytest

from sbproxy.admin.event_stream import StreamGap
from sbproxy.api.model_host import JobAnswer, JobsAnswer
from sbproxy.errors.modelhost import JobStoreUnusable
from sbproxy.modelhost.core.jobs import JobProgress
from sbproxy.modelhost.job_feed import EVENTS_PER_JOB
from support.admin_world import ADMIN, VIEWER, AdminWorld, SseReader, admin_world, job, ulid
from support.snapshot import check_json_snapshot

JOBS = "/admin/model-host/jobs"


def stream(world: AdminWorld, path: str, after: object = None) -> SseReader:
    headers = {} if after is None else {"Last-Event-ID": str(after)}
    return SseReader(world.call("GET", path, ADMIN, headers=headers))


async def settle(world: AdminWorld, followers: int = 1) -> None:
    for _ in range(1000):
        if world.jobs.feed.followers == followers:
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"{world.jobs.feed.followers} followers, not {followers}")


async def test_list_is_oldest_first() -> None:
    async with admin_world() as world:
        failed = job(2, "failed", error="load failed (queue_full); inspect server logs", error_code="queue_full")
        world.jobs.put(failed, job(1, "downloading", "pull", progress=JobProgress(5, 10, "model.gguf")))
        status, body = await world.get(JOBS)
        assert status == 200
        assert [entry["id"] for entry in body["jobs"]] == [ulid(1), ulid(2)]
        check_json_snapshot("api/model-host-jobs.json", body)
        assert JobsAnswer.model_validate(body).model_dump(mode="json") == body


@pytest.mark.parametrize(("limit", "shown"), [("0", []), ("1", [3]), ("2", [2, 3]), ("3", [1, 2, 3]), ("9", [1, 2, 3])])
async def test_a_limit_keeps_the_newest_and_the_order(limit: str, shown: list[int]) -> None:
    async with admin_world() as world:
        world.jobs.put(*(job(number) for number in (3, 1, 2)))
        _, body = await world.get(f"{JOBS}?limit={limit}")
        assert [entry["id"] for entry in body["jobs"]] == [ulid(number) for number in shown]


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("limit=", "invalid_parameter"),
        ("limit=-1", "invalid_parameter"),
        ("limit=1.5", "invalid_parameter"),
        ("limit=x", "invalid_parameter"),
        ("limit=%C2%B2", "invalid_parameter"),
        ("limit=" + "9" * 17, "invalid_parameter"),
        ("limit=1&limit=2", "invalid_parameter"),
        ("state=ready", "unknown_parameter"),
        ("limit=1&state=ready", "unknown_parameter"),
    ],
)
async def test_other_parameters_of_the_list_are_refused(query: str, code: str) -> None:
    async with admin_world() as world:
        status, body = await world.get(f"{JOBS}?{query}")
        assert (status, body["code"]) == (400, code)
        status, body = await world.get(f"{JOBS}/{ulid(1)}?{query}")
        assert (status, body["code"]) == (400, "unknown_parameter")


async def test_detail() -> None:
    async with admin_world() as world:
        world.jobs.put(job(1, error="refused: Bearer abc.def.ghi", state="failed"))
        status, body = await world.get(f"{JOBS}/{ulid(1)}")
        assert (status, body["schema_version"]) == (200, 1)
        assert body["job"]["error"] == "refused: Bearer [REDACTED]"
        check_json_snapshot("api/model-host-job.json", body)


@pytest.mark.parametrize("suffix", ["", "/stream"])
@pytest.mark.parametrize("bad", ["x", "01j" + "0" * 23, "8" + "0" * 25, "0" * 27, "01JILOU" + "0" * 19])
async def test_bad_ids(bad: str, suffix: str) -> None:
    async with admin_world() as world:
        status, body = await world.get(f"{JOBS}/{bad}{suffix}")
        assert (status, body["error"]) == (400, "operation job ID must be a ULID")


@pytest.mark.parametrize("suffix", ["", "/stream"])
async def test_unknown_ids(suffix: str) -> None:
    async with admin_world() as world:
        status, body = await world.get(f"{JOBS}/{ulid(9)}{suffix}")
        assert (status, body["job_id"], body["code"]) == (404, ulid(9), "unknown_job")


async def test_cancel_asks_and_shows_the_job_as_it_stands() -> None:
    async with admin_world() as world:
        world.jobs.put(job(1, "downloading", "pull"))
        for _ in range(2):
            status, body = await world.post(f"{JOBS}/{ulid(1)}/cancel")
            assert (status, body["job"]["state"]) == (202, "downloading")
            assert JobAnswer.model_validate(body).model_dump(mode="json") == body
        assert set(world.jobs.cancelled) == {ulid(1)}


async def test_what_cannot_be_cancelled() -> None:
    async with admin_world() as world:
        world.jobs.put(job(1, "ready"))
        status, body = await world.post(f"{JOBS}/{ulid(1)}/cancel")
        assert (status, body["code"], body["job_id"]) == (409, "job_not_cancellable", ulid(1))
        assert body["error"] == f"load job {ulid(1)} cannot be cancelled: it has ended (ready)"
        status, body = await world.post(f"{JOBS}/{ulid(9)}/cancel")
        assert (status, body["code"], body["job_id"]) == (404, "unknown_job", ulid(9))
        status, body = await world.post(f"{JOBS}/x/cancel")
        assert (status, body["error"]) == (400, "operation job ID must be a ULID")
        status, body = await world.post(f"{JOBS}/{ulid(1)}/cancel", {"force": True})
        assert (status, body["code"]) == (400, "invalid_body")


async def test_who_may_only_read_cancels_nothing() -> None:
    async with admin_world() as world:
        world.jobs.put(job(1, "downloading", "pull"))
        headers = await world.log_in(VIEWER)
        status, _ = await world.post(f"{JOBS}/{ulid(1)}/cancel", who=None, headers=headers)
        assert status == 403
        status, _ = await world.post(f"{JOBS}/{ulid(1)}/cancel", who=None)
        assert status == 401
        assert world.jobs.cancelled == []


@pytest.mark.parametrize("path", [JOBS, f"{JOBS}/{ulid(1)}", f"{JOBS}/{ulid(1)}/stream"])
async def test_a_store_that_cannot_be_read_names_no_path(path: str) -> None:
    async with admin_world() as world:
        world.jobs.failure = JobStoreUnusable("/secret-folder/jobs.db", "database is locked")
        status, body = await world.get(path)
        assert (status, body["code"]) == (502, "job_store_unusable")
        assert "secret-folder" not in body["error"]


def test_a_gap_over_a_restart_says_where_to_resume_and_no_count() -> None:
    gap = StreamGap(4, 1_000_006, resume=3).encode()
    assert gap == b'event: gap\nid: 3\ndata: {"from":4,"to":1000006}\n\n'
    assert StreamGap(4, 6).encode() == b'event: gap\nid: 6\ndata: {"from":4,"to":6,"missed":3}\n\n'


async def test_a_stream_replays_follows_and_ends_with_the_job() -> None:
    async with admin_world() as world:
        world.jobs.moved(job(1, "queued"))
        async with stream(world, f"{JOBS}/{ulid(1)}/stream") as events:
            headers = events.answer.headers
            assert events.answer.status == 200
            assert headers["Content-Type"] == "text/event-stream"
            assert (headers["Cache-Control"], headers["X-Accel-Buffering"]) == ("no-cache", "no")
            first, second = await events.next(), await events.next()
            assert first is not None
            assert second is not None
            assert first.comment == "connected"
            assert (second.id, json.loads(second.data or "")["state"]) == ("0", "queued")
            world.jobs.moved(job(1, "running"))
            world.jobs.moved(job(2, "running"))
            world.jobs.moved(job(1, "ready"))
            rest = await events.all()
            assert [(event.id, json.loads(event.data or "")["state"]) for event in rest] == [
                ("1", "running"),
                ("3", "ready"),
            ]
        await settle(world, followers=0)


async def test_resume_replays_strictly_later_events() -> None:
    async with admin_world() as world:
        for state in ("queued", "running", "ready"):
            world.jobs.moved(job(1, state))  # type: ignore[arg-type]
        async with stream(world, f"{JOBS}/{ulid(1)}/stream", after=1) as events:
            assert [event.id for event in await events.all()] == [None, "2"]


async def test_a_reader_that_has_seen_the_end_still_gets_one() -> None:
    async with admin_world() as world:
        world.jobs.moved(job(1, "ready"))
        async with stream(world, f"{JOBS}/{ulid(1)}/stream", after=0) as events:
            _, last = await events.all()
            assert (last.id, json.loads(last.data or "")["state"]) == (None, "ready")


async def test_a_job_of_an_earlier_process_is_shown_from_the_store_and_the_stream_ends() -> None:
    async with admin_world() as world:
        world.jobs.put(job(1, "failed", error="interrupted", error_code="interrupted"))
        for after in (None, 17):
            async with stream(world, f"{JOBS}/{ulid(1)}/stream", after=after) as events:
                last = (await events.all())[-1]
                assert json.loads(last.data or "")["error_code"] == "interrupted"


@pytest.mark.parametrize("bad", ["x", "-1", "1.5", "", "9" * 17, str(2**53)])
async def test_bad_last_event_ids(bad: str) -> None:
    async with admin_world() as world:
        world.jobs.put(job(1))
        for path in (f"{JOBS}/{ulid(1)}/stream", f"{JOBS}/stream", "/api/requests/stream"):
            status, body = await world.get(path, headers={"Last-Event-ID": bad})
            assert (status, body["code"]) == (400, "invalid_last_event_id")


async def test_lost_events_are_told_as_a_gap() -> None:
    async with admin_world() as world:
        total = EVENTS_PER_JOB + 10
        for done in range(total):
            world.jobs.moved(job(1, "downloading", "pull", progress=JobProgress(done, 100)))
        async with stream(world, f"{JOBS}/{ulid(1)}/stream", after=2) as events:
            _, gap, first = [await events.next() for _ in range(3)]
            assert gap is not None
            assert first is not None
            assert gap.event == "gap"
            assert json.loads(gap.data or "") == {"from": 3, "to": 9, "missed": 7}
            assert (gap.id, first.id) == ("9", "10")


async def test_one_stream_for_all_jobs() -> None:
    async with admin_world() as world, stream(world, f"{JOBS}/stream") as events:
        await settle(world)
        world.jobs.moved(job(1, "ready"))
        world.jobs.moved(job(2, "running"))
        _, first, second = [await events.next() for _ in range(3)]
        assert first is not None
        assert second is not None
        assert json.loads(first.data or "")["id"] == ulid(1)
        assert json.loads(second.data or "")["id"] == ulid(2)


async def test_quiet_streams_beat() -> None:
    async with admin_world(heartbeat_s=0.02) as world:
        world.jobs.put(job(1))
        for path in (f"{JOBS}/stream", f"{JOBS}/{ulid(1)}/stream", "/api/requests/stream"):
            async with stream(world, path) as events:
                said = [await events.next() for _ in range(3)]
                assert [event.comment for event in said if event] == ["connected", "heartbeat", "heartbeat"]


async def test_places_for_streams_are_bounded_and_given_back() -> None:
    async with admin_world(max_streams=2, heartbeat_s=0.02) as world:
        async with stream(world, f"{JOBS}/stream") as one, stream(world, "/api/requests/stream") as two:
            await one.next()
            await two.next()
            status, body = await world.get(f"{JOBS}/stream")
            assert (status, body["code"]) == (503, "too_many_streams")
        for _ in range(200):
            async with world.call("GET", f"{JOBS}/stream", ADMIN) as answer:
                if answer.status == 200:
                    break
            await asyncio.sleep(0.01)
        else:
            raise AssertionError("the places of readers that left were not given back")
        await settle(world, followers=0)


async def test_one_identity_cannot_take_the_streams_of_the_others() -> None:
    async with admin_world(max_own_streams=2) as world, AsyncExitStack() as opened:
        viewers = [await world.log_in(VIEWER) for _ in range(2)]  # two sessions are one identity
        for browser in viewers:
            reader = SseReader(world.call("GET", f"{JOBS}/stream", headers=browser))
            await (await opened.enter_async_context(reader)).next()
        for path in (f"{JOBS}/stream", "/api/requests/stream"):
            status, body = await world.get(path, None, headers=viewers[0])
            assert (status, body["code"]) == (429, "too_many_own_streams")
            assert VIEWER[0] in body["error"]
        async with stream(world, f"{JOBS}/stream") as events:
            assert events.answer.status == 200


async def test_a_stopping_listener_ends_every_stream_at_once() -> None:
    async with admin_world() as world:
        async with stream(world, f"{JOBS}/stream") as one, stream(world, "/api/requests/stream") as two:
            await one.next()
            await two.next()
            closing = asyncio.create_task(world.server.close())
            assert await one.next(timeout=1) is None
            assert await two.next(timeout=1) is None
            await asyncio.wait_for(closing, 2)
        assert world.jobs.feed.followers == 0


async def test_a_head_request_does_not_open_a_stream() -> None:
    async with admin_world() as world, world.call("HEAD", "/api/requests/stream", ADMIN) as answer:
        assert answer.status == 405
