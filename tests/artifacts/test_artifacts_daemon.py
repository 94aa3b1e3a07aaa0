"""Pull, collect and remove through the admin API of a real daemon, beside an engine that holds its own artifact."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support import fake_engine
from support.daemon import FAKE_ENGINE_CONFIG, Answer, Daemon, daemon, tiny_catalog
from support.hub import Hub
from support.pulls import noise

pytestmark = pytest.mark.e2e

SLOW = noise(600_000, 9)
HOST = "/admin/model-host"


def another(catalog: Path, name: str, data: bytes, source: str) -> None:
    """Append a model of one file to a catalog that ``tiny_catalog`` wrote."""
    text = catalog.read_text()
    entry = text[text.index("  tiny-model:") :].partition("\n  spare:")[0].rstrip("\n") + "\n"
    tiny = (catalog.parent / "tiny.gguf").read_bytes()
    for old, new in (
        ("tiny-model", name),
        (f"file:{catalog.parent}", source),
        ("tiny.gguf", f"{name}.gguf"),
        (hashlib.sha256(tiny).hexdigest(), hashlib.sha256(data).hexdigest()),
        (f"size_bytes: {len(tiny)}", f"size_bytes: {len(data)}"),
    ):
        assert old in entry
        entry = entry.replace(old, new)
    catalog.write_text(text + entry)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub({"Org/Repo/slow.gguf": SLOW}) as served:
        yield served


@pytest.fixture
def served(tmp_path: Path, hub: Hub) -> Iterator[Daemon]:
    """``tiny`` is a deployment, ``spare`` and ``slow`` only stand in the catalog; the budget holds one tiny model."""
    catalog = tiny_catalog(tmp_path)
    spare = b"GGUF" + bytes([7]) * 4096
    (tmp_path / "spare.gguf").write_bytes(spare)
    another(catalog, "spare", spare, f"file:{tmp_path}")
    another(catalog, "slow", SLOW, f"{hub.url}/plain/Org/Repo/")
    fake_engine.install(tmp_path)
    config = FAKE_ENGINE_CONFIG.replace('/cache"}', '/cache", budget_gib: 0.000005}')
    with daemon(tmp_path, config) as handle:
        handle.start()
        yield handle


def pull(handle: Daemon, model: str, **more: str) -> Answer:
    return handle.ask("POST", f"{HOST}/pull", {"model": model, **more}, admin=True)


def job(handle: Daemon, job_id: str) -> dict[str, Any]:
    found: dict[str, Any] = handle.ask("GET", f"{HOST}/jobs/{job_id}", admin=True).json()["job"]
    return found


def wait(handle: Daemon, job_id: str, happened: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    deadline = time.monotonic() + 20
    while not happened(record := job(handle, job_id)):
        assert time.monotonic() < deadline, f"{record}\n{handle.log}"
        time.sleep(0.02)
    return record


def pulled(handle: Daemon, model: str) -> str:
    """Pull to the end; returns the digest."""
    accepted = pull(handle, model)
    assert accepted.status == 202, accepted.body
    body = accepted.json()
    assert wait(handle, body["job_id"], lambda record: record["state"] == "ready")["kind"] == "pull"
    digest: str = body["artifact_digest"]
    return digest


def remove(handle: Daemon, digest: str) -> Answer:
    return handle.ask("DELETE", f"{HOST}/artifacts/{digest}", admin=True)


def cached(handle: Daemon) -> dict[str, bool]:
    files = handle.ask("GET", f"{HOST}/files", admin=True).json()
    return {each["artifact_digest"]: each["resident"] for each in files["artifacts"]}


def test_what_runs_stays_and_what_is_spare_goes(served: Daemon) -> None:
    assert served.chat().status == 200
    (tiny,) = cached(served)
    spare = pulled(served, "spare")
    assert cached(served) == {tiny: True, spare: False}
    report = served.ask("POST", f"{HOST}/gc", admin=True)
    assert report.status == 200
    assert report.json() == {
        "before_bytes": 8200,
        "after_bytes": 4100,
        "reclaimed_bytes": 4100,
        "deleted_artifacts": [spare],
        "skipped_artifacts": {tiny: "resident"},
        "budget_unsatisfied_bytes": 0,
    }
    assert (remove(served, tiny).status, remove(served, tiny).json()["reason"]) == (409, "resident")
    assert remove(served, spare).status == 404
    assert served.ask("POST", f"{HOST}/stop", {"deployment": "tiny"}, admin=True).status == 202
    served.wait_state("stopped")
    assert remove(served, tiny).json()["reason"] == "configured"
    assert served.chat().status == 200, "it is still there"


def test_removal_is_a_job(served: Daemon) -> None:
    spare = pulled(served, "spare")
    fleet = served.ask("GET", "/admin/cluster/artifacts", admin=True).json()
    assert fleet["models"] == [{"logical_model": "spare", "total_bytes": 4100, "node_count": 1}]
    answer = remove(served, spare)
    assert answer.status == 200, answer.body
    body = answer.json()
    assert (body["artifact_digest"], body["removed"], body["reclaimed_bytes"]) == (spare, True, 4100)
    record = job(served, body["job_id"])
    assert (record["kind"], record["state"], record["subject"]) == ("delete", "deleted", "spare:q4")
    assert cached(served) == {}
    assert served.stop() == 0
    assert "Traceback" not in served.log


def test_a_pull_is_cancelled_and_resumed(served: Daemon, hub: Hub) -> None:
    hub.fault("drip", chunk=20_000, pause=0.1)
    accepted = pull(served, "slow", variant="q4", engine="llama_cpp").json()
    begun = wait(served, accepted["job_id"], lambda record: record["progress"]["completed_bytes"] > 40_000)
    assert begun["state"] == "downloading"
    assert begun["progress"]["total_bytes"] == len(SLOW)
    cancelled = served.ask("POST", f"{HOST}/jobs/{accepted['job_id']}/cancel", admin=True)
    assert cancelled.status == 202, cancelled.body
    ended = wait(served, accepted["job_id"], lambda record: record["terminal_at_ms"] is not None)
    assert (ended["state"], ended["error_code"]) == ("failed", "cancelled")
    assert pulled(served, "slow") == accepted["artifact_digest"]
    assert hub.requests[-1].headers.get("range", "").startswith("bytes="), "the part that came was kept"
    assert cached(served) == {accepted["artifact_digest"]: False}, "what was just pulled may be above the budget"


def test_names_that_are_wrong(served: Daemon) -> None:
    unknown = pull(served, "spar")
    assert (unknown.status, unknown.json()["code"]) == (404, "unknown_catalog_model")
    assert "did you mean spare" in unknown.json()["error"]
    variant = pull(served, "spare", variant="q9")
    assert (variant.status, variant.json()["code"]) == (400, "unknown_catalog_variant")
    assert "available: q4" in variant.json()["error"]
    engine = pull(served, "spare", engine="vllm")
    assert (engine.status, engine.json()["code"]) == (422, "no_compatible_variant")
    assert served.ask("GET", f"{HOST}/jobs", admin=True).json()["jobs"] == []


def test_without_a_budget_there_is_nothing_to_collect_to(served: Daemon) -> None:
    served.config.write_text(served.config.read_text().replace(", budget_gib: 0.000005", ""))
    assert served.ask("POST", "/admin/reload", admin=True).status == 200
    answer = served.ask("POST", f"{HOST}/gc", admin=True)
    assert (answer.status, answer.json()["code"]) == (409, "cache_budget_missing")
