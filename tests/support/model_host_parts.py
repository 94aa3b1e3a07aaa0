"""In-memory adapters of the model host's ports, a tiny GGUF writer and a catalog of made-up models, for its tests.

They keep the ports' promises (an exited process resolves its future, a cancelled pull raises) and count what was asked.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sbproxy.artifacts.core.model import (
    ArtifactRecord,
    ArtifactState,
    Missing,
    ProgressSink,
    PullIntent,
    PullProgress,
    Ready,
    Snapshot,
)
from sbproxy.catalog.core.model import (
    ArtifactDigest,
    Catalog,
    CatalogFile,
    CatalogModel,
    ModelId,
    PullPolicy,
    Requirements,
    ResolvedArtifact,
    Variant,
    VariantId,
)
from sbproxy.config.core.model_host import DeploymentConfig, ModelHostConfig
from sbproxy.devices.core.model import Device, Machine
from sbproxy.engines.core.model import Availability, Endpoint, EngineBinary, ExitKind, ExitVerdict, LaunchSpec
from sbproxy.engines.driver import AcquireProgress, EngineDriver
from sbproxy.errors.artifacts import ArtifactError, ManualArtifactMissing, PullCancelled
from sbproxy.errors.engines import EngineBlocked, EngineLaunchFailed, EngineStopFailed
from sbproxy.errors.tree import SbproxyError
from sbproxy.modelhost.core.health import HealthPolicy
from sbproxy.modelhost.core.jobs import JobId, JobRecord
from sbproxy.modelhost.core.lifecycle import RestartPolicy
from sbproxy.modelhost.host import ModelHost
from sbproxy.modelhost.services import Timings

MIB = 1 << 20
WEIGHTS = 100 * MIB


def gguf(**pairs: int | str | tuple[int, ...]) -> bytes:
    """A header with these keys (``__`` stands for a dot), a vocabulary after them, and no tensors."""
    body = b""
    for key, value in pairs.items():
        name = key.replace("__", ".").encode()
        body += struct.pack("<Q", len(name)) + name
        if isinstance(value, str):
            body += struct.pack("<IQ", 8, len(value)) + value.encode()
        elif isinstance(value, tuple):
            body += struct.pack("<IIQ", 9, 4, len(value)) + struct.pack(f"<{len(value)}I", *value)
        else:
            body += struct.pack("<II", 4, value)
    name = b"tokenizer.ggml.tokens"
    body += struct.pack("<Q", len(name)) + name + struct.pack("<IIQ", 9, 8, 3)
    body += b"".join(struct.pack("<Q", len(token)) + token for token in (b"a", b"bb", b"ccc"))
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs) + 1) + body


LLAMA = gguf(
    general__architecture="llama",
    llama__block_count=10,
    llama__attention__head_count=8,
    llama__attention__head_count_kv=2,
    llama__embedding_length=512,
    llama__context_length=4096,
)
"""10 layers, 2 KV heads of 64: 5120 bytes of f16 KV a token."""


def model(name: str, size: int = WEIGHTS, *, minimum: int | None = None) -> CatalogModel:
    variant = Variant(
        id=VariantId("q4"),
        format="gguf",
        quant="Q4_1",
        engines=("llama_cpp",),
        source="file:/models",
        revision="1",
        files=(CatalogFile("model.gguf", "0" * 64, size),),
        requirements=Requirements(min_memory_bytes=minimum),
        stability="preview",
        certification="test",
    )
    return CatalogModel(ModelId(name), "135M", "apache-2.0", "test", 1024, (variant,))


def catalog(*models: CatalogModel, revision: str = "r1") -> Catalog:
    return Catalog(revision, {each.id: each for each in models or (model("one"), model("two"))})


def host_config(**deployments: dict[str, object]) -> ModelHostConfig:
    return ModelHostConfig.model_validate(
        {"shutdown_deadline_ms": 300, "deployments": {name: {"model": "one"} | d for name, d in deployments.items()}}
    )


class MemoryStore:
    """An ArtifactStore whose artifacts are all the same small GGUF file."""

    def __init__(self, folder: Path, header: bytes = LLAMA) -> None:
        self.folder = folder
        (folder / "model.gguf").write_bytes(header)
        self.here: set[ArtifactDigest] = set()
        self.leases: Counter[ArtifactDigest] = Counter()
        self.fetches: list[tuple[str, PullIntent]] = []
        self.failures: deque[ArtifactError] = deque()
        self.gate = threading.Event()
        self.gate.set()

    def state(self, artifact: ResolvedArtifact) -> ArtifactState:
        return Ready(self.folder) if artifact.digest in self.here else Missing()

    def ensure(
        self,
        artifact: ResolvedArtifact,
        *,
        intent: PullIntent,
        policy: PullPolicy,
        network: bool = True,
        progress: ProgressSink | None = None,
        cancelled: threading.Event | None = None,
    ) -> Snapshot:
        total = artifact.variant.total_size_bytes
        if artifact.digest in self.here:
            return Snapshot(artifact.digest, self.folder, total, 0)
        if policy == "manual" and intent != "explicit":
            raise ManualArtifactMissing(artifact.subject)
        self.fetches.append((artifact.subject, intent))
        if progress is not None:
            progress(PullProgress("downloading", total // 2, total, "model.gguf"))
        while not self.gate.wait(0.005):
            if cancelled is not None and cancelled.is_set():
                raise PullCancelled(artifact.subject)
        if self.failures:
            raise self.failures.popleft()
        self.here.add(artifact.digest)
        return Snapshot(artifact.digest, self.folder, total, total)

    @contextmanager
    def lease(self, digest: ArtifactDigest) -> Iterator[None]:
        self.leases[digest] += 1
        try:
            yield
        finally:
            self.leases[digest] -= 1

    def inventory(self) -> list[ArtifactRecord]:
        return []


class ScriptedProcess:
    """An EngineProcess that lives in this process. ``die`` is what the outside world does to it."""

    _pids = itertools.count(1000)

    def __init__(self, spec: LaunchSpec) -> None:
        self.spec = spec
        self.pid = next(self._pids)
        self.endpoint = Endpoint("127.0.0.1", 10_000 + self.pid, spec.deployment, "key")
        self.exited: asyncio.Future[ExitVerdict] = asyncio.get_running_loop().create_future()
        self.started = asyncio.Event()
        self.answers = True
        self.probes = 0
        self.stops = 0
        self.stop_failure: EngineStopFailed | None = None

    def die(self, kind: ExitKind = ExitKind.CRASH) -> None:
        if not self.exited.done():
            self.exited.set_result(ExitVerdict(kind, 1, "scripted"))

    async def wait_ready(self, timeout_s: float) -> None:
        healthy = asyncio.ensure_future(self.started.wait())
        try:
            await asyncio.wait((healthy, self.exited), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            healthy.cancel()
        if self.exited.done():
            verdict = self.exited.result()
            raise EngineLaunchFailed("llama_cpp", verdict.kind, verdict.detail)
        if not self.started.is_set():
            raise EngineLaunchFailed("llama_cpp", ExitKind.READINESS_TIMEOUT, f"not ready in {timeout_s:g} s")

    async def healthy(self, timeout_s: float) -> bool:
        answers = self.answers
        self.probes += 1
        await asyncio.sleep(0)
        return answers

    async def stop(self, grace_s: float) -> ExitVerdict:
        self.stops += 1
        await asyncio.sleep(0)
        if self.stop_failure is not None:
            raise self.stop_failure
        if not self.exited.done():
            self.exited.set_result(ExitVerdict(ExitKind.STOPPED, 0, "asked to end"))
        return self.exited.result()


class ScriptedDriver:
    """An EngineDriver. Each launch takes the next word of ``script``: ready (default), slow, or an exit kind."""

    name = "llama_cpp"

    def __init__(self) -> None:
        self.script: deque[str] = deque()
        self.refusals: deque[SbproxyError] = deque()
        self.processes: list[ScriptedProcess] = []
        self.state = "available"

    @property
    def alive(self) -> list[ScriptedProcess]:
        return [process for process in self.processes if not process.exited.done()]

    def availability(self) -> Availability:
        return Availability(self.name, self.state, "scripted")  # type: ignore[arg-type]

    def acquire(self, progress: AcquireProgress) -> EngineBinary:
        progress("llama-server", 10, 10)
        return EngineBinary(self.name, Path("/bin/llama-server"), "0" * 64, "b1", "path", frozenset())

    def check(self, artifact: ResolvedArtifact, spec: LaunchSpec, binary: EngineBinary) -> None:
        if self.refusals:
            raise self.refusals.popleft()

    async def launch(self, binary: EngineBinary, spec: LaunchSpec) -> ScriptedProcess:
        process = ScriptedProcess(spec)
        self.processes.append(process)
        word = self.script.popleft() if self.script else "ready"
        if word == "ready":
            process.started.set()
        elif word != "slow":
            process.die(ExitKind(word))
        return process


class Drivers(dict[str, EngineDriver]):
    """EngineDrivers without overrides of a deployment's own."""

    def for_deployment(self, engine: str, deployment: DeploymentConfig) -> EngineDriver:
        if engine not in self:
            raise EngineBlocked(engine, "this host does not run it")
        return self[engine]


class FixedDevices:
    """A DeviceInventory with one memory pool of a given size, and what the test adds."""

    def __init__(self, total: int = 8192 * MIB, *cards: Device) -> None:
        self.cpu = Device(-1, "cpu", "system memory", total, total)
        self.cards = cards

    def probe(self) -> Machine:
        return Machine("linux", "x86_64", 2, (self.cpu, *self.cards))


class Counts:
    """HostMetrics that remembers."""

    def __init__(self) -> None:
        self.seen: Counter[tuple[str, ...]] = Counter()

    def admission_rejected(self, deployment: str, priority: str, reason: str) -> None:
        self.seen["rejected", deployment, priority, reason] += 1

    def launched(self, engine: str, model: str, outcome: str, seconds_to_ready: float | None) -> None:
        assert (seconds_to_ready is not None) == (outcome == "ready")
        self.seen["launched", engine, model, outcome] += 1

    def ensure_failed(self, reason: str) -> None:
        self.seen["ensure_failed", reason] += 1

    def artifact_error(self, kind: str) -> None:
        self.seen["artifact_error", kind] += 1

    def placement_rejected(self, deployment: str, reason: str) -> None:
        self.seen["placement_rejected", deployment, reason] += 1

    def evicted(self, reason: str) -> None:
        self.seen["evicted", reason] += 1

    def downloaded(self, fetched_bytes: int, seconds: float, *, failed: bool) -> None:
        self.seen["downloaded", "failed" if failed else "ok"] += 1


class MemoryJobs:
    """A JobStore in a dictionary."""

    first_sequence = 0

    def __init__(self) -> None:
        self.saved: dict[JobId, JobRecord] = {}

    def save(self, job: JobRecord) -> None:
        self.saved[job.id] = job

    def get(self, job_id: JobId) -> JobRecord | None:
        return self.saved.get(job_id)

    def jobs(self) -> list[JobRecord]:
        return sorted(self.saved.values(), key=lambda job: (job.created_at_ms, job.id))


QUICK = Timings(
    readiness_s=2.0,
    stop_grace_s=0.2,
    restarts=RestartPolicy(first_ms=5, longest_ms=20, limit=4, stable_after_ms=50),
    health=HealthPolicy(period_s=0.05, retry_s=0.01, timeout_s=0.1, misses=3),
)


async def eventually(true: Callable[[], bool]) -> None:
    """Return when ``true()`` holds; TimeoutError after two seconds."""
    async with asyncio.timeout(2):
        while not true():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.002)


class World:
    """A model host over scripted parts. ``leaks`` is what a finished scenario must not leave behind."""

    def __init__(self, folder: Path, *, memory: int = 8192 * MIB, timings: Timings = QUICK) -> None:
        self.store = MemoryStore(folder)
        self.driver = ScriptedDriver()
        self.devices = FixedDevices(memory)
        self.metrics = Counts()
        self.jobs = MemoryJobs()
        self.catalog = catalog()
        self.host = ModelHost(
            catalog=self.catalog,
            config=ModelHostConfig(),
            store=self.store,
            drivers=Drivers(llama_cpp=self.driver),
            devices=self.devices,
            jobs=self.jobs,
            metrics=self.metrics,
            timings=timings,
        )

    async def apply(self, **deployments: dict[str, object]) -> None:
        prepared = await self.host.prepare(self.catalog, host_config(**deployments))
        await prepared.commit()

    def row(self, deployment: str) -> dict[str, object]:
        """The newest generation's row, as a dictionary."""
        rows = [row for row in self.host.status() if row.deployment == deployment]
        newest = max(rows, key=lambda row: row.generation)
        return {name: getattr(newest, name) for name in newest.__slots__}

    async def until(self, deployment: str, state: str) -> None:
        await eventually(lambda: self.row(deployment)["state"] == state)

    async def close(self) -> None:
        await self.host.close()
        await asyncio.sleep(0)
        roster = self.host._roster
        assert self.driver.alive == []
        assert len(roster.services.ledger) == 0
        assert len(roster.services.background) == 0
        assert +self.store.leases == Counter()
        assert self.host.jobs.unfinished == 0
        assert {(row.active_requests, row.queued_requests) for row in self.host.status()} <= {(0, 0)}
        assert asyncio.all_tasks() == {asyncio.current_task()}
