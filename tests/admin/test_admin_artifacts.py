"""Pull, removal, collection and the local fleet views: bodies and statuses of contracts sections 17, 22 and 49."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sbproxy.admin.ports import Inventory
from sbproxy.api.artifacts import ClusterArtifacts, ClusterVram, GcAnswer, PullAccepted
from sbproxy.devices.core.model import Device
from sbproxy.errors import SbproxyError
from sbproxy.errors.artifacts import (
    ArtifactAbsent,
    NoCacheBudget,
    RemovalBlocked,
    StoreUnusable,
    UnsafeArtifactPath,
)
from sbproxy.errors.catalog import NoCompatibleVariant, UnknownModel, UnknownVariant
from support.admin_world import ADMIN, DIGEST, VIEWER, admin_world, ulid

PREFIX = "/admin/model-host"


async def test_pull_is_accepted_as_a_job() -> None:
    async with admin_world() as world:
        status, body = await world.post(f"{PREFIX}/pull", {"model": "qwen", "variant": "q4", "engine": "llama_cpp"})
        assert status == 202
        assert body == {
            "schema_version": 1,
            "model": "qwen",
            "variant": "q4",
            "engine": "llama_cpp",
            "artifact_digest": DIGEST,
            "state": "queued",
            "job_id": ulid(43),
            "poll_url": f"{PREFIX}/jobs/{ulid(43)}",
        }
        assert PullAccepted.model_validate(body).job_id == ulid(43)
        assert (await world.post(f"{PREFIX}/pull", {"model": "qwen"}))[0] == 202
        assert world.artifacts.calls == [("pull", "qwen", "q4", "llama_cpp"), ("pull", "qwen", "None", "auto")]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "model"),
        ([], "invalid JSON body"),
        ({"model": ""}, "1 to 128 characters"),
        ({"model": "x" * 129}, "1 to 128 characters"),
        ({"model": "a", "variant": ""}, "variant"),
        ({"model": "a", "engine": "ollama"}, "engine"),
        ({"model": 3}, "model"),
        ({"model": "a", "force": True}, "force"),
    ],
)
async def test_a_pull_that_says_something_wrong(body: object, words: str) -> None:
    async with admin_world() as world:
        status, answer = await world.post(f"{PREFIX}/pull", body)
        assert status == 400
        assert words in answer["error"]
        assert world.artifacts.calls == []


@pytest.mark.parametrize(
    ("failure", "status", "code", "words"),
    [
        (UnknownModel("qwn", ("qwen",)), 404, "unknown_catalog_model", "did you mean qwen"),
        (UnknownVariant("qwen", "q9", ("q4", "q8")), 400, "unknown_catalog_variant", "available: q4, q8"),
        (NoCompatibleVariant("qwen", ("q4: needs cuda",)), 422, "no_compatible_variant", "needs cuda"),
        (UnsafeArtifactPath("raw", "a raw reference"), 422, "invalid_artifact", "raw"),
        (StoreUnusable("/var/secret", "Permission denied"), 502, "store_unusable", "inspect server logs"),
    ],
)
async def test_a_pull_that_cannot_be(failure: SbproxyError, status: int, code: str, words: str) -> None:
    async with admin_world() as world:
        world.artifacts.failure = failure
        answered, body = await world.post(f"{PREFIX}/pull", {"model": "qwn"})
        assert (answered, body["code"], body["reason_code"]) == (status, code, code)
        assert words in body["error"]
        assert "/var/secret" not in str(body)


async def test_removal() -> None:
    async with admin_world() as world, world.call("DELETE", f"{PREFIX}/artifacts/{DIGEST}", ADMIN) as answer:
        assert answer.status == 200
        assert await answer.json() == {
            "artifact_digest": DIGEST,
            "removed": True,
            "reclaimed_bytes": 491_400_032,
            "job_id": ulid(44),
        }


@pytest.mark.parametrize("digest", ["ab", DIGEST.upper(), DIGEST + "0", "g" * 64, "..%2f..%2fetc"])
async def test_a_digest_that_is_none(digest: str) -> None:
    async with admin_world() as world:
        async with world.call("DELETE", f"{PREFIX}/artifacts/{digest}", ADMIN) as answer:
            assert answer.status in (400, 404)
            if answer.status == 400:
                assert (await answer.json())["code"] == "invalid_digest"
        assert world.artifacts.calls == []


@pytest.mark.parametrize(
    ("failure", "status", "extra"),
    [
        (ArtifactAbsent(DIGEST), 404, {"artifact_digest": DIGEST}),
        (RemovalBlocked(DIGEST, "resident"), 409, {"reason": "resident"}),
        (RemovalBlocked(DIGEST, "leased"), 409, {"reason": "leased"}),
        (StoreUnusable("/var/secret", "Input/output error"), 502, {}),
    ],
)
async def test_a_removal_that_cannot_be(failure: SbproxyError, status: int, extra: dict[str, str]) -> None:
    async with admin_world() as world:
        world.artifacts.failure = failure
        async with world.call("DELETE", f"{PREFIX}/artifacts/{DIGEST}", ADMIN) as answer:
            body = await answer.json()
        assert answer.status == status
        assert body.items() >= extra.items()
        assert body["error"]
        assert "/var/secret" not in str(body)


async def test_collection_answers_with_the_report_and_nothing_else() -> None:
    async with admin_world() as world:
        for sent in (None, {}):
            status, body = await world.post(f"{PREFIX}/gc", sent)
            assert status == 200
            assert body == {
                "before_bytes": 3000,
                "after_bytes": 1000,
                "reclaimed_bytes": 2000,
                "deleted_artifacts": [DIGEST],
                "skipped_artifacts": {"ab" * 32: "configured"},
                "budget_unsatisfied_bytes": 500,
            }
        assert GcAnswer.model_validate(body).budget_unsatisfied_bytes == 500
        assert (await world.post(f"{PREFIX}/gc", {"budget_gib": 1}))[0] == 400
        world.artifacts.failure = NoCacheBudget("/cache")
        status, body = await world.post(f"{PREFIX}/gc")
        assert (status, body["code"]) == (409, "cache_budget_missing")
        assert "budget_gib" in body["error"]


async def test_who_only_looks_changes_nothing() -> None:
    async with admin_world() as world:
        viewer = await world.log_in(VIEWER)
        assert (await world.post(f"{PREFIX}/pull", {"model": "qwen"}, None, headers=viewer))[0] == 403
        assert (await world.post(f"{PREFIX}/gc", None, None, headers=viewer))[0] == 403
        async with world.call("DELETE", f"{PREFIX}/artifacts/{DIGEST}", headers=viewer) as answer:
            assert answer.status == 403
        assert world.artifacts.calls == []
        assert (await world.get("/admin/cluster/artifacts", None, headers=viewer))[0] == 200


async def test_the_cache_as_the_only_node_of_a_fleet() -> None:
    async with admin_world() as world:
        status, body = await world.get("/admin/cluster/artifacts")
        assert status == 200
        assert body == {
            "schema_version": 1,
            "nodes": [{"node_id": "local", "total_bytes": 491_400_032, "artifact_count": 1, "snapshot_age_ms": 0}],
            "models": [{"logical_model": "qwen2.5-0.5b-instruct", "total_bytes": 491_400_032, "node_count": 1}],
            "partial": False,
        }
        assert ClusterArtifacts.model_validate(body).model_dump(mode="json") == body
        assert (await world.post("/admin/cluster/artifacts"))[0] == 405


async def test_a_file_that_artifacts_share_counts_once() -> None:
    async with admin_world() as world:
        (record,) = world.host.files.artifacts
        own = ("1" * 64, 8_000)
        other = replace(
            record, digest="b" * 64, variant_id="q8", total_size_bytes=491_408_032, blobs=(*record.blobs, own)
        )
        named = replace(record, digest="c" * 64, logical_model="copy")
        world.host.files = Inventory("/var/lib/sbproxy/models", [record, other, named])
        _, body = await world.get("/admin/cluster/artifacts")
        assert body["nodes"][0]["total_bytes"] == 491_408_032
        assert {each["logical_model"]: each["total_bytes"] for each in body["models"]} == {
            "copy": 491_400_032,
            "qwen2.5-0.5b-instruct": 491_408_032,
        }
        _, files = await world.get("/admin/model-host/files")
        assert files["total_bytes"] == 491_408_032
        assert [each["total_size_bytes"] for each in files["artifacts"]] == [491_400_032, 491_408_032, 491_400_032]


async def test_memory_of_cards_and_none_of_the_cpu() -> None:
    async with admin_world() as world:
        status, body = await world.get("/admin/cluster/vram")
        assert (status, body["nodes"], body["cluster"]["device_count"], body["cluster"]["node_count"]) == (
            200,
            [],
            0,
            0,
        )
        world.devices += [
            Device(0, "cuda", "L4", 24 << 30, 6 << 30, (8, 9), compute_utilization=0.5),
            Device(1, "cuda", "L4", 24 << 30, 24 << 30, (8, 9)),
        ]
        _, body = await world.get("/admin/cluster/vram")
        assert list(body) == [
            "schema_version", "generated_at_unix_ms", "directory_collected_at_unix_ms", "cluster", "nodes",
        ]  # fmt: skip
        assert body["cluster"] == {
            "total_bytes": 48 << 30,
            "used_bytes": 18 << 30,
            "free_bytes": 30 << 30,
            "device_count": 2,
            "node_count": 1,
        }
        (node,) = body["nodes"]
        assert node["node_id"] == "local"
        assert node["vram"]["budget_bytes"] == 48 << 30
        busy, idle = node["vram"]["devices"]
        assert (busy["index"], busy["compute_utilization"], busy["memory_occupancy"]) == (0, 0.5, 0.75)
        assert "compute_utilization" not in idle, "what is not known stays absent"
        assert ClusterVram.model_validate(body).nodes[0].vram.devices[1].compute_utilization is None
        assert (await world.post("/admin/cluster/vram"))[0] == 405
