"""An admin application over small in-memory owners of everything it shows, served on a real socket."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import aiohttp
from aiohttp.test_utils import TestServer
from pydantic import SecretStr

from sbproxy.admin.app import build_app
from sbproxy.admin.passwords import PasswordHash
from sbproxy.admin.ports import (
    AdminDeps,
    ComponentHealth,
    ConfigText,
    DesiredMap,
    DriftReport,
    Inventory,
    NewConfig,
    PullBegun,
    ReloadOutcome,
    RemovedArtifact,
    Replaced,
    ResetDone,
)
from sbproxy.artifacts.core.model import ArtifactRecord, GcReport
from sbproxy.catalog.core.model import (
    ArtifactDigest,
    Catalog,
    CatalogFile,
    CatalogModel,
    ModelId,
    Requirements,
    Variant,
    VariantId,
)
from sbproxy.config.core.document import AdminConfig, OperatorConfig
from sbproxy.devices.core.model import Device
from sbproxy.errors import SbproxyError
from sbproxy.errors.admin import ReloadInFlight
from sbproxy.errors.modelhost import JobNotCancellable, UnknownDeployment, UnknownJob
from sbproxy.keys.ports import KeyAdministration
from sbproxy.modelhost.core.desired_document import Replacement
from sbproxy.modelhost.core.jobs import JobId, JobKind, JobProgress, JobRecord, JobState, StopKind
from sbproxy.modelhost.core.status import MemoryEstimate, StatusRow
from sbproxy.modelhost.job_feed import Gap, JobEvent, JobFeed
from sbproxy.observe.core.record import RequestRecord
from sbproxy.observe.core.value import Lane
from sbproxy.observe.metrics import Metrics
from sbproxy.observe.request_log import RequestLog
from sbproxy.observe.sink import RequestObserver
from sbproxy.observe.value_ledger import ValueLedger

ADMIN = ("admin", "correct horse battery")
VIEWER = ("viewer", "only looking around")
CHIEF = ("chief", "hashed at rest, always")
# As cheap as is accepted: what a real hash costs, one test looks at.
_CHIEF_HASH = str(
    PasswordHash(
        1024, 8, 1, b"8 bytes!", hashlib.scrypt(CHIEF[1].encode(), salt=b"8 bytes!", n=1024, r=8, p=1, dklen=32)
    )
)
START = 1_800_000_000.0
AS_JSON = {"Content-Type": "application/json"}
DIGEST = "9f2c" * 16


def ulid(number: int) -> JobId:
    return JobId(f"01J{number:023d}")


def row(deployment: str = "local-qwen", **changes: Any) -> StatusRow:
    """A ready replica."""
    ready = StatusRow(
        deployment=deployment,
        replica=0,
        generation=3,
        state="ready",
        active_requests=1,
        queued_requests=2,
        max_concurrency=4,
        max_queue_depth=32,
        engine="llama_cpp",
        engine_version="b10434",
        driver_availability="available",
        model="qwen2.5-0.5b-instruct",
        variant="q4_k_m",
        artifact_digest=DIGEST,
        selected_devices=(-1,),
        memory=MemoryEstimate((-1,), 491_400_032, 50_331_648, 268_435_456, 81_016_714),
        resident_bytes=612_000_000,
        port=41234,
        pid=4321,
        reason_code=None,
        job_id=ulid(1),
        last_error=None,
        keep_alive_secs=1800,
        expires_at_ms=1_800_000_900_000,
        stop_cause=None,
    )
    return replace(ready, **changes)


def request_record(number: int = 1, **changes: Any) -> RequestRecord:
    record = RequestRecord(
        request_id=f"req-{number}",
        origin="localhost",
        method="POST",
        path="/v1/chat/completions",
        client_ip="127.0.0.1",
        status=200,
        latency_ms=42.7,
        finished_at=START + number,
        provider="local",
        deployment="local-qwen",
        model="qwen",
        route_class="local",
        surface="chat_completions",
        tokens_in=315,
        tokens_out=82,
        ttft_ms=11.5,
        bytes_in=120,
        bytes_out=900,
        config_revision="abc123abc123",
    )
    return replace(record, **changes)


def job(number: int, state: JobState = "running", kind: JobKind = "load", **changes: Any) -> JobRecord:
    ended = int(START * 1000) + 5 if state in ("ready", "failed", "deleted") else None
    record = JobRecord(
        ulid(number), kind, "local-qwen", state, JobProgress(), 1_800_000_000_000, 1_800_000_000_005, ended
    )
    return replace(record, **changes)


def small_catalog() -> Catalog:
    file = CatalogFile("model.gguf", "ab" * 32, 491_400_032)
    variant = Variant(
        id=VariantId("q4_k_m"),
        format="gguf",
        quant="Q4_K_M",
        engines=("llama_cpp",),
        source="hf:Org/Repo",
        revision="0" * 40,
        files=(file,),
        requirements=Requirements(min_memory_bytes=1_073_741_824),
        stability="preview",
        certification="bootstrap-metadata-2026-07-10",
    )
    model = CatalogModel(
        ModelId("qwen2.5-0.5b-instruct"), "0.5B", "apache-2.0", "qwen", 32768, (variant,), hf_token="hf_x"
    )
    return Catalog("builtin-2026-07-10", {model.id: model})


class MemoryHost:
    """A model host that only remembers what it was asked for. ``failure`` is raised by the next action."""

    def __init__(self) -> None:
        self.rows: list[StatusRow] = [row()]
        self.calls: list[tuple[str, str]] = []
        self.failure: Exception | None = None
        self.replacements: list[Replacement] = []
        self.state = DesiredMap("file_managed", {"local-qwen": {"model": "qwen2.5-0.5b-instruct", "warm": True}})
        self.files = Inventory(
            "/var/lib/sbproxy/models",
            [
                ArtifactRecord(
                    ArtifactDigest(DIGEST), "qwen2.5-0.5b-instruct", "q4_k_m", "gguf", "Q4_K_M", 491_400_032,
                    "apache-2.0", 1_784_200_000_000, 1_784_300_000_000, (("0" * 64, 491_400_032),),
                )
            ],
        )  # fmt: skip
        self.document = small_catalog()

    def status(self) -> Sequence[StatusRow]:
        return self.rows

    def runtime_revision(self) -> int:
        return 7

    def authority(self) -> str:
        return self.state.authority

    async def desired_map(self) -> DesiredMap:
        if self.failure is not None:
            raise self.failure
        return self.state

    async def replace_deployments(self, replacement: Replacement) -> Replaced:
        if self.failure is not None:
            raise self.failure
        self.replacements.append(replacement)
        return Replaced(2, DIGEST, added=("new",), preserved=("local-qwen",))

    def catalog(self) -> Catalog:
        return self.document

    async def load(self, deployment: str) -> JobId:
        return self._act("load", deployment)

    async def stop(self, deployment: str, kind: StopKind = "stop") -> JobId:
        return self._act(kind, deployment)

    async def reset(self, deployment: str) -> ResetDone:
        return ResetDone("configured", self._act("reset", deployment))

    async def inventory(self) -> Inventory:
        return self.files

    def _act(self, name: str, deployment: str) -> JobId:
        if self.failure is not None:
            raise self.failure
        if deployment not in self.state.deployments:
            raise UnknownDeployment(deployment, near=("local-qwen",))
        self.calls.append((name, deployment))
        return ulid(42)


class MemoryArtifacts:
    """A cache that only remembers what it was asked for. ``failure`` is raised by the next call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.failure: Exception | None = None
        self.report = GcReport(3000, 1000, 2000, (DIGEST,), {"ab" * 32: "configured"}, 500)

    async def pull(self, model: str, variant: str | None, engine: str) -> PullBegun:
        self._called("pull", model, str(variant), engine)
        return PullBegun(model, variant or "q4_k_m", "llama_cpp", DIGEST, ulid(43))

    async def remove(self, digest: str) -> RemovedArtifact:
        self._called("remove", digest)
        return RemovedArtifact(digest, True, 491_400_032, ulid(44))

    async def collect(self) -> GcReport:
        self._called("collect")
        return self.report

    def _called(self, *call: str) -> None:
        if self.failure is not None:
            raise self.failure
        self.calls.append(call)


class MemoryJobs:
    """Durable jobs that end with the test. ``feed`` and ``records`` are told separately, as after a restart."""

    def __init__(self) -> None:
        self.records: dict[str, JobRecord] = {}
        self.cancelled: list[JobId] = []
        self.failure: Exception | None = None
        self.feed = JobFeed()

    def put(self, *records: JobRecord) -> None:
        self.records.update({record.id: record for record in records})

    def moved(self, record: JobRecord) -> int:
        self.put(record)
        return self.feed.publish(record)

    async def get(self, job_id: JobId) -> JobRecord:
        if self.failure is not None:
            raise self.failure
        if job_id not in self.records:
            raise UnknownJob(job_id)
        return self.records[job_id]

    async def list(self) -> Sequence[JobRecord]:
        if self.failure is not None:
            raise self.failure
        return sorted(self.records.values(), key=lambda record: (record.created_at_ms, record.id))

    def follow(self, job_id: JobId | None, after: int | None) -> AsyncIterator[JobEvent | Gap]:
        return self.feed.subscribe(job_id, after)

    async def cancel(self, job_id: JobId) -> JobRecord:
        record = await self.get(job_id)
        if record.state in ("ready", "failed", "deleted"):
            raise JobNotCancellable(job_id, record.kind, f"it has ended ({record.state})")
        self.cancelled.append(job_id)
        return record


class MemoryLanes:
    """A store of the value ledger that ends with the test."""

    def __init__(self) -> None:
        self.lanes: dict[str, Lane] = {}

    def merge(self, added: dict[str, Lane]) -> dict[str, Lane]:
        for model, lane in added.items():
            self.lanes.setdefault(model, Lane()).add(lane)
        return dict(self.lanes)


class MemoryReloader:
    """One reload at a time, like the real one. ``hold`` keeps it in flight."""

    config_path: str | None = "/etc/secret-folder/sb.yml"

    def __init__(self) -> None:
        self.failure: SbproxyError | None = None
        self.degraded: tuple[str, ...] = ()
        self.on_disk = "0123456789ab"
        self.yaml = "proxy:\n  http_bind_port: 8080\n"
        self.written: list[NewConfig] = []
        self.hold = asyncio.Event()
        self.hold.set()
        self._running = False

    async def reload(self) -> ReloadOutcome:
        if self._running:
            raise ReloadInFlight("watcher")
        self._running = True
        try:
            await self.hold.wait()
            if self.failure is not None:
                raise self.failure
            return ReloadOutcome("abc123abc123", START + 0.456, self.degraded)
        finally:
            self._running = False

    async def config_text(self) -> ConfigText:
        if self.failure is not None:
            raise self.failure
        return ConfigText(self.yaml, "abc123abc123")

    async def replace_config(self, new: NewConfig) -> ReloadOutcome:
        outcome = await self.reload()
        self.written.append(new)
        return outcome

    async def drift(self) -> DriftReport:
        if self.failure is not None:
            raise self.failure
        return DriftReport("/etc/secret-folder/sb.yml", "abc123abc123", "0123456789ab", self.on_disk, 8421)


@dataclass
class Clock:
    """Both clocks of the application, moved by hand."""

    value: float = START

    def __call__(self) -> float:
        return self.value


@dataclass
class AdminWorld:
    """The owners, and a client that is nobody until it says otherwise."""

    host: MemoryHost
    artifacts: MemoryArtifacts
    devices: list[Device]
    jobs: MemoryJobs
    log: RequestLog
    observer: RequestObserver
    metrics: Metrics
    value: ValueLedger
    reloader: MemoryReloader
    clock: Clock
    health: list[ComponentHealth]
    server: TestServer
    client: aiohttp.ClientSession

    def call(self, method: str, path: str, who: tuple[str, str] | None = None, **options: Any) -> Any:
        """``async with world.call("GET", "/x", ADMIN) as answer``."""
        headers = dict(options.pop("headers", {}))
        if who is not None:
            headers["Authorization"] = f"Basic {base64.b64encode(':'.join(who).encode()).decode()}"
        return self.client.request(method, self.server.make_url(path), headers=headers, **options)

    async def get(self, path: str, who: tuple[str, str] | None = ADMIN, **options: Any) -> tuple[int, Any]:
        async with self.call("GET", path, who, **options) as answer:
            return answer.status, await answer.json()

    async def post(
        self, path: str, body: Any = None, who: tuple[str, str] | None = ADMIN, **options: Any
    ) -> tuple[int, Any]:
        async with self.call("POST", path, who, json=body, **options) as answer:
            return answer.status, await answer.json()

    async def log_in(self, who: tuple[str, str]) -> dict[str, str]:
        """Headers of a browser that holds the session and its CSRF token."""
        async with self.call("POST", "/admin/login", json={"username": who[0], "password": who[1]}) as answer:
            assert answer.status == 200, await answer.text()
            token = answer.cookies["sb_admin_session"].value
            return {"Cookie": f"sb_admin_session={token}", "X-CSRF-Token": (await answer.json())["csrf_token"]}


def admin_config(**changes: Any) -> AdminConfig:
    operators = [
        OperatorConfig(username=VIEWER[0], password=SecretStr(VIEWER[1]), role="read_only"),
        OperatorConfig(username=CHIEF[0], password_hash=_CHIEF_HASH, role="admin"),
    ]
    fields: dict[str, Any] = {
        "enabled": True,
        "username": ADMIN[0],
        "password": SecretStr(ADMIN[1]),
        "operators": operators,
        "rate_limit_per_minute": 10_000,
    }
    return AdminConfig(**{**fields, **changes})


@asynccontextmanager
async def admin_world(
    config: AdminConfig | None = None,
    *,
    heartbeat_s: float = 15.0,
    max_streams: int = 32,
    max_own_streams: int = 8,
    max_entries: int = 1000,
    keys: KeyAdministration | None = None,
) -> AsyncIterator[AdminWorld]:
    host, jobs, reloader, clock = MemoryHost(), MemoryJobs(), MemoryReloader(), Clock()
    artifacts, devices = MemoryArtifacts(), [Device(-1, "cpu", "CPU", 64 << 30, 32 << 30)]
    metrics, log, value = Metrics(), RequestLog(max_entries), ValueLedger(MemoryLanes())
    metrics.watch(host_rows=host.status)
    health = [ComponentHealth("model_host", "healthy"), ComponentHealth("cluster", "not_configured")]
    deps = AdminDeps(
        config=config or admin_config(),
        host=host,
        artifacts=artifacts,
        jobs=jobs,
        requests=log,
        reloader=reloader,
        health=lambda: health,
        metrics_text=metrics.text,
        value=value.report,
        devices=lambda: devices,
        started_at=START - 86_400,
        now=clock,
        monotonic=clock,
        heartbeat_s=heartbeat_s,
        max_streams=max_streams,
        max_own_streams=max_own_streams,
        keys=keys,
    )
    server = TestServer(build_app(deps))
    await server.start_server()
    try:
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as client:
            observer = RequestObserver(log, metrics, value)
            yield AdminWorld(
                host, artifacts, devices, jobs, log, observer, metrics, value, reloader, clock, health, server, client
            )
    finally:
        await server.close()


@dataclass
class Message:
    """One server-sent event, or a comment."""

    comment: str | None = None
    id: str | None = None
    event: str | None = None
    data: str | None = None


class SseReader:
    """Reads one stream: ``async with SseReader(world.call(...)) as stream``."""

    def __init__(self, request: Any) -> None:
        self._request = request

    async def __aenter__(self) -> Self:
        self.answer: aiohttp.ClientResponse = await self._request.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.answer.close()

    async def next(self, timeout: float = 5.0) -> Message | None:
        """None at the end of the stream."""
        message, seen = Message(), False
        while True:
            line = (await asyncio.wait_for(self.answer.content.readline(), timeout)).decode()
            if not line:
                return None
            if line == "\n":
                if seen:
                    return message
                continue
            seen = True
            name, _, value = line.rstrip("\n").partition(":")
            setattr(message, name or "comment", value.strip())

    async def all(self, timeout: float = 5.0) -> list[Message]:
        messages = []
        while (message := await self.next(timeout)) is not None:
            messages.append(message)
        return messages
