"""Pulling over HTTP: what a good hub gives, and what every way of misbehaving ends in."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sbproxy.artifacts import conversation
from sbproxy.artifacts.core.model import Missing, Partial, PullProgress, Ready, Snapshot
from sbproxy.artifacts.http_fetcher import Retry
from sbproxy.artifacts.store import FileArtifactStore
from sbproxy.artifacts.transport import Timeouts
from sbproxy.catalog.core.model import ResolvedArtifact
from sbproxy.errors.artifacts import (
    ArtifactError,
    DigestMismatch,
    PullCancelled,
    SizeMismatch,
    SourceCredentialInvalid,
    SourceDenied,
    SourceNotFound,
    TransportFailed,
    UnexpectedResponse,
)
from support.hub import Hub
from support.pulls import noise, resolved, sha256

REPO = "Org/Repo"
NAME = "sub dir/weights-00001-of-00001.gguf"
DATA = noise(600_000)
EAGER = Retry(attempts=3, first_pause_s=0.01, max_pause_s=0.02)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub({f"{REPO}/{NAME}": DATA}) as hub:
        yield hub


def store_at(root: Path, hub: Hub, **environ: str) -> FileArtifactStore:
    return FileArtifactStore(root, hub_url=hub.url, environ=environ, retry=EAGER, timeouts=Timeouts(2.0, 2.0))


def pull(store: FileArtifactStore, artifact: ResolvedArtifact, **options: Any) -> Snapshot:
    return store.ensure(artifact, intent="explicit", policy="on_demand", **options)


def assert_ready(store: FileArtifactStore, artifact: ResolvedArtifact, data: bytes = DATA) -> None:
    assert isinstance(store.state(artifact), Ready)
    for file in artifact.variant.files:
        assert (store.paths.snapshot(artifact.digest) / file.path).read_bytes() == data
    assert not store.paths.partial_folder(artifact.digest).exists()
    assert store.verify(artifact).verified_bytes == artifact.variant.total_size_bytes


ARTIFACT = resolved(f"hf:{REPO}", {NAME: DATA})


def test_a_pull_lays_the_store_out_as_the_contract_says(tmp_path: Path, hub: Hub) -> None:
    store = store_at(tmp_path, hub)
    assert store.state(ARTIFACT) == Missing()
    seen: list[PullProgress] = []
    snapshot = pull(store, ARTIFACT, progress=seen.append)
    assert snapshot == Snapshot(ARTIFACT.digest, tmp_path / "snapshots" / ARTIFACT.digest, len(DATA), len(DATA))
    assert snapshot.file(NAME).read_bytes() == DATA
    assert (tmp_path / "blobs" / "sha256" / sha256(DATA)).read_bytes() == DATA
    manifest = json.loads((snapshot.path / "artifact.json").read_bytes())
    assert manifest["files"] == [{"path": NAME, "sha256": sha256(DATA), "size_bytes": len(DATA)}]
    record = json.loads((tmp_path / "metadata" / f"{ARTIFACT.digest}.json").read_bytes())
    created = record.pop("created_at_ms")
    assert abs(created - time.time() * 1000) < 60_000
    assert record.pop("last_accessed_ms") == created
    assert record == {
        "schema_version": 1, "artifact_digest": ARTIFACT.digest, "catalog_revision": "test-1", "logical_model": "tiny",
        "variant_id": "q4", "format": "gguf", "quant": "Q4", "source": f"hf:{REPO}",
        "revision": ARTIFACT.variant.revision, "files": manifest["files"], "total_size_bytes": len(DATA),
        "context_length": 128, "license": "apache-2.0", "stability": "preview", "pickle_allowed": False,
        "trust": "verified",
    }  # fmt: skip
    phases = [step.phase for step in seen]
    assert phases == sorted(phases, key=["queued", "downloading", "verifying", "ready"].index)
    assert phases[-1] == "ready"
    assert [step.completed_bytes for step in seen] == sorted(step.completed_bytes for step in seen)
    assert {step.total_bytes for step in seen} == {len(DATA)}
    assert {path.name for path in tmp_path.iterdir()} == {"blobs", "snapshots", "metadata", "partials", "locks"}
    assert_ready(store, ARTIFACT)


def test_the_second_pull_is_a_hit_without_a_request(tmp_path: Path, hub: Hub) -> None:
    store = store_at(tmp_path, hub)
    pull(store, ARTIFACT)
    asked = len(hub.requests)
    before = store.inventory()[0].last_accessed_ms
    time.sleep(0.005)
    again = store.ensure(ARTIFACT, intent="runtime", policy="manual", network=False)
    assert (again.fetched_bytes, again.verified_bytes) == (0, len(DATA))
    assert len(hub.requests) == asked
    assert store.inventory()[0].last_accessed_ms > before


def test_a_shared_blob_is_fetched_once(tmp_path: Path) -> None:
    own = noise(1000, 7)
    with Hub({f"{REPO}/{NAME}": DATA, f"{REPO}/own.gguf": own}) as hub:
        store = store_at(tmp_path, hub)
        pull(store, ARTIFACT)
        sent = hub.body_bytes
        other = resolved(f"hf:{REPO}", {"renamed.gguf": DATA, "twice.gguf": DATA, "own.gguf": own}, variant="q8")
        assert pull(store, other).fetched_bytes == len(own)
        assert hub.body_bytes - sent == len(own)
    assert len(list(store.paths.blobs.iterdir())) == 2


def test_the_address_names_the_revision_and_quotes_the_path(tmp_path: Path, hub: Hub) -> None:
    pull(store_at(tmp_path, hub), resolved(f"hf:{REPO}", {NAME: DATA}, revision="refs/pr/1"))
    assert hub.requests[0].path == "/Org/Repo/resolve/refs%2Fpr%2F1/sub%20dir/weights-00001-of-00001.gguf"


def test_the_hub_comes_from_the_environment(tmp_path: Path, hub: Hub) -> None:
    pull(FileArtifactStore(tmp_path, environ={"HF_ENDPOINT": f"{hub.url}/"}), ARTIFACT)
    assert len(hub.asked("cdn")) == 1


@pytest.mark.parametrize("url", ["ftp://hub.example", "https://user:secret@hub.example", "nonsense"])
def test_an_unusable_hub_address_is_refused_without_its_password(tmp_path: Path, url: str) -> None:
    with pytest.raises(SourceCredentialInvalid) as caught:
        pull(FileArtifactStore(tmp_path, environ={"HF_ENDPOINT": url}), ARTIFACT)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "truncate", "at": 123_456},
        {"kind": "truncate", "at": 0, "times": 2},
        {"kind": "drop", "times": 2},
        {"kind": "status", "status": 500, "times": 2},
        {"kind": "status", "status": 503, "retry_after": "0"},
        {"kind": "status", "status": 429, "retry_after": "tomorrow"},
        {"kind": "status", "status": 503, "server": "hub"},
        {"kind": "status", "status": 403, "server": "cdn"},
        {"kind": "short", "at": 5},
        {"kind": "wrong_length", "chunk": 0},
        {"kind": "unvalidated", "etag": "none"},
        {"kind": "unvalidated", "etag": "weak"},
        {"kind": "drip", "chunk": 200_000, "pause": 0.01},
        {"kind": "excess", "chunk": 0},
    ],
    ids=lambda fault: f"{fault['kind']}-{fault.get('status', fault.get('at', ''))}",
)
def test_a_passing_failure_is_survived_within_one_pull(tmp_path: Path, hub: Hub, fault: dict[str, Any]) -> None:
    hub.fault(**fault)
    store = store_at(tmp_path, hub)
    pull(store, ARTIFACT)
    assert_ready(store, ARTIFACT)


def test_a_broken_transfer_continues_by_range_with_the_final_etag(tmp_path: Path, hub: Hub) -> None:
    hub.fault("truncate", at=400_000)
    pull(store_at(tmp_path, hub), ARTIFACT)
    first, second = hub.asked("cdn")
    assert "range" not in first.headers
    assert second.headers["range"] == "bytes=400000-"
    assert second.headers["if-range"].startswith('"')
    assert hub.body_bytes == len(DATA)


@pytest.mark.parametrize("etag", ["weak", "none"])
def test_without_a_strong_etag_nothing_is_resumed(tmp_path: Path, hub: Hub, etag: str) -> None:
    hub.fault("truncate", at=400_000, etag=etag)
    store = store_at(tmp_path, hub)
    pull(store, ARTIFACT)
    assert [request.headers.get("range") for request in hub.asked("cdn")] == [None, None]
    assert_ready(store, ARTIFACT)


REFUSALS: list[tuple[dict[str, Any], type[ArtifactError], str]] = [
    ({"kind": "truncate", "at": 10, "times": 9}, TransportFailed, "resume"),
    ({"kind": "drop", "times": 9}, TransportFailed, "run it again"),
    ({"kind": "stall", "at": 10, "times": 9}, TransportFailed, "no bytes for 0.3 s"),
    ({"kind": "status", "status": 500, "times": 9}, TransportFailed, "HTTP 500"),
    ({"kind": "status", "status": 400}, UnexpectedResponse, "HTTP 400"),
    ({"kind": "status", "status": 404}, SourceNotFound, "does not exist"),
    ({"kind": "html"}, UnexpectedResponse, "HTML page"),
    ({"kind": "html", "chunk": 1}, UnexpectedResponse, "HTML page"),
    ({"kind": "excess", "chunk": 1}, SizeMismatch, "the catalog says 600000"),
    ({"kind": "wrong_length", "chunk": 7}, SizeMismatch, "600007 bytes"),
    ({"kind": "encoded"}, UnexpectedResponse, "encoded (gzip)"),
    ({"kind": "redirect_loop", "times": 99}, UnexpectedResponse, "more than 8 redirects"),
    ({"kind": "redirect_nowhere"}, UnexpectedResponse, "without a usable web address"),
    ({"kind": "range_unsatisfiable", "times": 9}, UnexpectedResponse, "HTTP 416"),
]


@pytest.mark.parametrize(
    ("fault", "leaf", "words"), REFUSALS, ids=lambda value: str(value.get("kind")) if isinstance(value, dict) else ""
)
def test_a_lasting_failure_is_typed_and_the_next_pull_finishes(
    tmp_path: Path, hub: Hub, fault: dict[str, Any], leaf: type[ArtifactError], words: str
) -> None:
    hub.fault(**fault)
    store = FileArtifactStore(tmp_path, hub_url=hub.url, environ={}, retry=EAGER, timeouts=Timeouts(2.0, 0.3))
    with pytest.raises(leaf) as caught:
        pull(store, ARTIFACT)
    assert words in str(caught.value)
    assert "canary-signature" not in str(caught.value)
    assert isinstance(store.state(ARTIFACT), Missing | Partial)
    assert store.inventory() == []
    assert list(store.paths.blobs.iterdir()) == []
    assert list(store.paths.snapshots.iterdir()) == []
    hub.behave()
    pull(store, ARTIFACT)
    assert_ready(store, ARTIFACT)


def test_certificates_that_cannot_be_loaded_are_no_fault_of_the_cache(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "gone.pem"))
    conversation._trust.cache_clear()
    try:
        with pytest.raises(TransportFailed, match="SSL_CERT_FILE or SSL_CERT_DIR cannot be loaded: No such file"):
            pull(store_at(tmp_path / "cache", hub), ARTIFACT)
    finally:
        conversation._trust.cache_clear()
    assert hub.requests == []


def test_a_remote_that_changed_is_seen_before_a_byte_is_kept(tmp_path: Path, hub: Hub) -> None:
    store = store_at(tmp_path, hub)
    seen: list[PullProgress] = []
    for other, leaf in ((noise(len(DATA), 9), DigestMismatch), (DATA + b"!", SizeMismatch)):
        hub.replace(f"{REPO}/{NAME}", other)
        with pytest.raises(leaf):
            pull(store, ARTIFACT, progress=seen.append)
        assert store.state(ARTIFACT) == Missing()
    assert {step.completed_bytes for step in seen} <= {0}
    hub.replace(f"{REPO}/{NAME}", DATA)
    pull(store, ARTIFACT)
    assert_ready(store, ARTIFACT)


@pytest.mark.parametrize(
    "changed", [noise(len(DATA), 9), noise(1000, 9), noise(900_000, 9)], ids=["same size", "shorter", "longer"]
)
def test_a_remote_that_changes_midway_is_never_mixed(tmp_path: Path, changed: bytes) -> None:
    with Hub({f"{REPO}/{NAME}": DATA}, linked=False) as hub:
        hub.fault("change", at=300_000, data=changed)
        store = store_at(tmp_path, hub)
        with pytest.raises(DigestMismatch if len(changed) == len(DATA) else SizeMismatch):
            pull(store, ARTIFACT)
        assert store.state(ARTIFACT) == Missing()
        assert [request.headers.get("range") for request in hub.asked("cdn")][1] == "bytes=300000-"
        hub.replace(f"{REPO}/{NAME}", DATA)
        pull(store, ARTIFACT)
        assert_ready(store, ARTIFACT)


@pytest.mark.parametrize("kind", ["ignore_range", "wrong_range", "no_content_range", "range_unsatisfiable"])
def test_a_wrong_answer_to_a_range_starts_at_zero(tmp_path: Path, hub: Hub, kind: Any) -> None:
    hub.fault("truncate", at=100_000)
    hub.fault(kind)
    store = store_at(tmp_path, hub)
    pull(store, ARTIFACT)
    assert hub.asked("cdn")[1].headers["range"] == "bytes=100000-"
    assert_ready(store, ARTIFACT)


def test_a_server_that_always_answers_wrong_ranges_is_given_up(tmp_path: Path, hub: Hub) -> None:
    for _ in range(4):
        hub.fault("truncate", at=100_000)
        hub.fault("wrong_range")
    store = FileArtifactStore(tmp_path, hub_url=hub.url, environ={}, retry=Retry(9, 0.01, 0.01))
    with pytest.raises(UnexpectedResponse, match="bytes 100001-599999 came"):
        pull(store, ARTIFACT)
    assert store.state(ARTIFACT) == Missing()


def cancel_after(seconds: float) -> tuple[threading.Event, threading.Timer]:
    stop = threading.Event()
    timer = threading.Timer(seconds, stop.set)
    timer.start()
    return stop, timer


def test_cancelling_ends_a_silent_transfer_within_a_second_and_keeps_the_part(tmp_path: Path, hub: Hub) -> None:
    hub.fault("stall", at=250_000)
    store = FileArtifactStore(tmp_path, hub_url=hub.url, environ={})
    stop, timer = cancel_after(0.3)
    started = time.monotonic()
    with pytest.raises(PullCancelled):
        pull(store, ARTIFACT, cancelled=stop)
    assert time.monotonic() - started < 1.3
    timer.join()
    assert store.state(ARTIFACT) == Partial(250_000)
    pull(store, ARTIFACT)
    assert hub.asked("cdn")[-1].headers["range"] == "bytes=250000-"
    assert_ready(store, ARTIFACT)


def test_cancelling_ends_a_pull_that_waits_for_an_answer(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = FileArtifactStore(tmp_path, hub_url=f"http://127.0.0.1:{silent.getsockname()[1]}", environ={})
        stop, timer = cancel_after(0.2)
        started = time.monotonic()
        with pytest.raises(PullCancelled):
            pull(store, ARTIFACT, cancelled=stop)
        assert time.monotonic() - started < 1.2
        timer.join()


def test_a_pull_that_is_cancelled_already_asks_for_nothing(tmp_path: Path, hub: Hub) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(PullCancelled):
        pull(store_at(tmp_path, hub), ARTIFACT, cancelled=stop)
    assert hub.requests == []


def test_https_sources_name_a_file_or_a_folder(tmp_path: Path, hub: Hub) -> None:
    store = store_at(tmp_path, hub)
    single = resolved(hub.file_url(f"{REPO}/{NAME}"), {"other name.gguf": DATA})
    assert pull(store, single).file("other name.gguf").read_bytes() == DATA
    store.remove(single.digest)
    folder = resolved(hub.file_url(f"{REPO}/"), {NAME: DATA})
    assert pull(store, folder).file(NAME).read_bytes() == DATA
    assert hub.requests[-1].path == "/plain/Org/Repo/sub%20dir/weights-00001-of-00001.gguf"


# -- credentials ------------------------------------------------------------------------------------------------

CANARY = "hf_canaryCANARYcanary0123456789"


@pytest.fixture
def gated() -> Iterator[Hub]:
    with Hub({f"{REPO}/{NAME}": DATA}, token=CANARY, gated={REPO}) as hub:
        yield hub


def test_a_gated_repository_without_a_token(tmp_path: Path, gated: Hub) -> None:
    with pytest.raises(SourceDenied) as caught:
        pull(store_at(tmp_path, gated), ARTIFACT)
    assert (caught.value.status, caught.value.had_token) == (401, False)
    assert "HF_TOKEN" in str(caught.value)


def test_a_wrong_token(tmp_path: Path, gated: Hub) -> None:
    with pytest.raises(SourceDenied) as caught:
        pull(store_at(tmp_path, gated, HF_TOKEN="hf_wrongWRONGwrong"), ARTIFACT)
    assert caught.value.had_token
    assert "hf_wrong" not in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "reference"),
    [
        ({"HF_TOKEN": CANARY}, None),
        ({"HUGGING_FACE_HUB_TOKEN": CANARY}, None),
        ({"MY_TOKEN": CANARY, "HF_TOKEN": "hf_otherOTHERother"}, "${MY_TOKEN}"),
    ],
    ids=["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "catalog"],
)
def test_a_token_opens_it_and_stays_with_the_hub(
    tmp_path: Path, gated: Hub, environ: dict[str, str], reference: str | None
) -> None:
    artifact = resolved(f"hf:{REPO}", {NAME: DATA}, hf_token=reference)
    gated.fault("truncate", at=1000)
    pull(store_at(tmp_path, gated, **environ), artifact)
    assert {request.headers["authorization"] for request in gated.asked("hub")} == {f"Bearer {CANARY}"}
    assert len(gated.asked("cdn")) == 2
    assert all("authorization" not in request.headers for request in gated.asked("cdn"))


@pytest.mark.parametrize(
    ("reference", "words"),
    [("${UNSET}", "UNSET is not set"), (CANARY, "never the token itself")],
    ids=["unset", "literal"],
)
def test_a_catalog_token_must_be_a_set_variable(tmp_path: Path, gated: Hub, reference: str, words: str) -> None:
    artifact = resolved(f"hf:{REPO}", {NAME: DATA}, hf_token=reference)
    with pytest.raises(SourceCredentialInvalid) as caught:
        pull(store_at(tmp_path, gated, HF_TOKEN=CANARY), artifact)
    assert words in str(caught.value)
    assert CANARY not in str(caught.value)
    assert gated.requests == []


def test_a_token_never_travels_unencrypted(tmp_path: Path) -> None:
    store = FileArtifactStore(tmp_path, hub_url="http://hub.example", environ={"HF_TOKEN": CANARY})
    with pytest.raises(SourceCredentialInvalid, match="unencrypted"):
        pull(store, ARTIFACT)


def test_no_secret_in_errors_records_reprs_or_logs(
    tmp_path: Path, gated: Hub, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("DEBUG")
    store = store_at(tmp_path, gated, HF_TOKEN=CANARY)
    texts = [repr(store), repr(store._sources), repr(store.__dict__)]
    for fault in [{"kind": "drop", "times": 9}, {"kind": "html"}, {"kind": "truncate", "at": 9, "times": 9}]:
        gated.fault(**fault)  # type: ignore[arg-type]
        with pytest.raises(ArtifactError) as caught:
            pull(store, ARTIFACT)
        texts += [str(caught.value), repr(caught.value), repr(caught.value.__dict__)]
        gated.behave()
    with_password = resolved(
        gated.file_url(f"{REPO}/{NAME}").replace("//", f"//me:{CANARY}@"), {NAME: DATA}, variant="web"
    )
    for _ in range(2):
        with pytest.raises(SourceDenied) as denied:
            pull(store, with_password)
        texts += [str(denied.value), repr(denied.value)]
    gated.fault("stall", at=1000)
    stop, timer = cancel_after(0.2)
    with pytest.raises(PullCancelled):
        pull(store, ARTIFACT, cancelled=stop)
    timer.join()
    on_disk = [path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    assert any("expected_sha256" in text for text in on_disk)
    pull(store, ARTIFACT)
    on_disk += [path.read_text(errors="replace") for path in tmp_path.rglob("*.json") if path.is_file()]
    captured = capfd.readouterr()
    for text in [*texts, *on_disk, caplog.text, captured.out, captured.err]:
        assert CANARY not in text
        assert "canary-signature" not in text
