"""One engine process from start to end: a contract suite on the fake and on the real llama-server, and mishaps."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import resource
import signal
import stat
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import blockbuster
import pytest

from sbproxy.catalog.core.model import ArtifactDigest, CatalogModel, ModelId, Requirements, ResolvedArtifact, Variant
from sbproxy.catalog.core.model import VariantId as VariantId
from sbproxy.config.core.model_host import EngineConfig
from sbproxy.engines import process
from sbproxy.engines.binary import BinaryProbe
from sbproxy.engines.core.model import Endpoint, EngineBinary, ExitKind, LaunchSpec
from sbproxy.engines.llama_cpp import LlamaCppDriver
from sbproxy.engines.output import LOG_BYTES, TAIL_BYTES, OutputTail
from sbproxy.engines.ownership import OwnershipLedger
from sbproxy.engines.process import Launch, LoopbackEngine
from sbproxy.engines.readiness import is_ours, owns_port
from sbproxy.errors.engines import EngineIncompatible, EngineLaunchFailed, UnsafeArgument
from support import fake_engine
from support.real_parts import real_engine_driver, real_model_path

pytestmark = pytest.mark.e2e

REAL = pytest.param("real", marks=pytest.mark.real_engine)


@dataclasses.dataclass
class Bench:
    """A driver, its binary and a spec that works; launched engines are ended after the test."""

    folder: Path
    driver: LlamaCppDriver
    binary: EngineBinary
    spec: LaunchSpec
    started: list[LoopbackEngine] = dataclasses.field(default_factory=list)

    async def launch(self, **changes: Any) -> LoopbackEngine:
        engine = await self.driver.launch(self.binary, dataclasses.replace(self.spec, **changes))
        self.started.append(engine)
        return engine

    def leftovers(self) -> list[str]:
        """Run folders and ownership records that are still there."""
        folders = [self.folder / "run", self.folder / "ownership"]
        found = [path.name for folder in folders if folder.is_dir() for path in folder.iterdir()]
        return [name for name in found if name != "logs"]


def quiet(what: str, done: int, total: int | None) -> None: ...


async def make_bench(kind: str, folder: Path, **settings: Any) -> Bench:
    if kind == "real":
        driver, model = real_engine_driver(folder), await asyncio.to_thread(real_model_path)
    else:
        program = fake_engine.install(folder / "fake", **settings)
        model = fake_engine.model_file(folder / "models")
        driver = LlamaCppDriver(
            EngineConfig(path=str(program)),
            engines_root=folder / "engines",
            run_dir=folder / "run",
            ownership=OwnershipLedger(folder / "ownership"),
            environ={**os.environ, "HF_TOKEN": "t0p-s3cret", "LLAMA_ARG_PORT": "1", "LC_ALL": "C.UTF-8"},
            threads=1,
        )
    binary = await asyncio.to_thread(driver.acquire, quiet)
    return Bench(folder, driver, binary, LaunchSpec("chat", 3, model, context_tokens=256, parallel=2))


@pytest.fixture
async def benches(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    made: list[Bench] = []

    async def make(kind: str = "fake", **settings: Any) -> Bench:
        made.append(await make_bench(kind, tmp_path, **settings))
        return made[-1]

    yield make
    for bench in made:
        for engine in bench.started:
            await engine.stop(0)


def ask(engine: LoopbackEngine, path: str, body: dict[str, Any] | None = None, key: str | None = None) -> Any:
    headers = {"Authorization": f"Bearer {engine.endpoint.api_key if key is None else key}"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{engine.endpoint.port}{path}", data, headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=20) as answer:
        return json.load(answer)


# -- the contract, on both


@pytest.mark.parametrize("kind", ["fake", REAL])
async def test_health_of_a_running_a_stopped_and_a_dead_process(benches: Any, kind: str) -> None:
    bench: Bench = await benches(kind)
    engine = await bench.launch()
    await engine.wait_ready(60)
    assert await engine.healthy(5)
    os.kill(engine.pid, signal.SIGSTOP)
    assert not await engine.healthy(0.3)
    os.kill(engine.pid, signal.SIGCONT)
    assert await engine.healthy(5)
    os.kill(engine.pid, signal.SIGSTOP)
    assert (await engine.stop(0)).kind is ExitKind.STOPPED
    assert not fake_engine.alive(engine.pid)
    assert not await engine.healthy(5)


@pytest.mark.real_engine
async def test_a_real_engine_answers_for_its_health_while_it_works(benches: Any) -> None:
    bench: Bench = await benches("real")
    engine = await bench.launch(context_tokens=1024)
    await engine.wait_ready(60)
    words = {"prompt": "the sea is blue and deep " * 120, "n_predict": 200, "ignore_eos": True}
    working = asyncio.gather(*(asyncio.to_thread(ask, engine, "/completion", words) for _ in range(2)))
    answers = []
    while not working.done():
        answers.append(await engine.healthy(5))
        await asyncio.sleep(0.05)
    await working
    assert len(answers) > 5
    assert all(answers)


async def test_a_daemon_without_descriptors_blames_no_engine(benches: Any) -> None:
    bench: Bench = await benches("fake")
    engine = await bench.launch()
    await engine.wait_ready(60)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        answered = await engine.healthy(5)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert answered
    os.kill(engine.pid, signal.SIGKILL)
    await engine.exited
    assert not await engine.healthy(5)


@pytest.mark.parametrize("kind", ["fake", REAL])
async def test_start_answer_stop(benches: Any, kind: str) -> None:
    bench: Bench = await benches(kind)
    engine = await bench.launch()
    await engine.wait_ready(60)
    assert fake_engine.alive(engine.pid)
    answer = await asyncio.to_thread(
        ask, engine, "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    )
    assert answer["model"] == engine.endpoint.alias
    assert answer["usage"]["completion_tokens"] == 2
    slots = await asyncio.to_thread(ask, engine, "/slots")
    assert len(slots) == 2
    verdict = await engine.stop(10)
    assert verdict.kind is ExitKind.STOPPED
    assert verdict.returncode == 0
    assert await engine.stop(10) == verdict
    assert not fake_engine.alive(engine.pid)
    assert bench.leftovers() == []


@pytest.mark.parametrize("kind", ["fake", REAL])
async def test_the_context_of_a_request_is_what_the_plan_says(benches: Any, kind: str) -> None:
    bench: Bench = await benches(kind)
    engine = await bench.launch(context_tokens=512, parallel=2)
    await engine.wait_ready(60)
    argv = Path(f"/proc/{engine.pid}/cmdline").read_text().split("\0")
    assert argv[argv.index("--ctx-size") + 1] == "1024"
    if kind == "real":
        slots = await asyncio.to_thread(ask, engine, "/slots")
        assert {slot["n_ctx"] for slot in slots} == {512}


@pytest.mark.parametrize("kind", ["fake", REAL])
async def test_another_key_is_refused_and_the_key_is_nowhere_to_be_seen(benches: Any, kind: str) -> None:
    bench: Bench = await benches(kind)
    engine = await bench.launch()
    await engine.wait_ready(60)
    with pytest.raises(urllib.error.HTTPError, match="401"):
        await asyncio.to_thread(ask, engine, "/slots", None, "guess")
    key = engine.endpoint.api_key
    assert key not in Path(f"/proc/{engine.pid}/cmdline").read_text()
    assert key not in Path(f"/proc/{engine.pid}/environ").read_text()
    assert key not in repr(engine.endpoint)
    (folder,) = (bench.folder / "run").glob("chat-*")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder.name.startswith("chat-g3-")
    key_file = folder / "key"
    assert key_file.read_text().strip() == key
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert stat.S_IMODE((bench.folder / "run").stat().st_mode) == 0o700


@pytest.mark.parametrize("kind", ["fake", REAL])
async def test_a_broken_model_file(benches: Any, kind: str) -> None:
    bench: Bench = await benches(kind)
    broken = bench.folder / "private-folder" / "broken.gguf"
    broken.parent.mkdir()
    broken.write_bytes(bench.spec.model_path.read_bytes()[:3_000_000] if kind == "real" else b"<html>")
    engine = await bench.launch(model_path=broken)
    with pytest.raises(EngineLaunchFailed) as caught:
        await engine.wait_ready(60)
    assert caught.value.verdict == "bad_file"
    assert "private-folder" not in caught.value.detail
    assert not (await engine.exited).worth_retry
    assert bench.leftovers() == []


@pytest.mark.parametrize("kind", ["fake", REAL])
async def test_a_kill_from_outside_is_seen_at_once(benches: Any, kind: str) -> None:
    bench: Bench = await benches(kind)
    engine = await bench.launch()
    await engine.wait_ready(60)
    os.kill(engine.pid, signal.SIGKILL)
    verdict = await asyncio.wait_for(asyncio.shield(engine.exited), 2)
    assert verdict.kind is ExitKind.SIGNAL
    assert verdict.returncode == -9
    assert bench.leftovers() == []
    assert await engine.stop(1) == verdict
    log = bench.folder / "run" / "logs" / "chat.log"
    assert "listening" in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


@pytest.mark.parametrize("kind", ["fake", REAL])
async def test_quantised_kv_cache_and_extra_args_start(benches: Any, kind: str) -> None:
    bench: Bench = await benches(kind)
    engine = await bench.launch(kv_quant="int8", extra_args=("--no-mmap", "--threads=1", "-ub", "128"))
    await engine.wait_ready(60)
    assert (await engine.stop(10)).kind is ExitKind.STOPPED


# -- mishaps, on the fake


@pytest.mark.parametrize(
    ("mode", "verdict"),
    [("crash_on_start", "signal"), ("oom_exit", "out_of_memory"), ("bad_file", "bad_file"), ("port_taken", "port")],
)
async def test_an_engine_that_does_not_start(benches: Any, mode: str, verdict: str) -> None:
    bench: Bench = await benches(mode=mode)
    engine = await bench.launch()
    with pytest.raises(EngineLaunchFailed) as caught:
        await engine.wait_ready(30)
    assert caught.value.verdict == verdict
    assert bench.leftovers() == []


async def test_readiness_waits_through_loading(benches: Any) -> None:
    bench: Bench = await benches(ready_after_probes=4)
    engine = await bench.launch()
    await engine.wait_ready(30)
    assert fake_engine.control(engine.endpoint.port)["ready_probes"] == 5


async def test_an_engine_that_never_gets_ready_is_ended(benches: Any) -> None:
    bench: Bench = await benches(ready_after_probes=10**9)
    engine = await bench.launch()
    with pytest.raises(EngineLaunchFailed) as caught:
        await engine.wait_ready(0.5)
    assert caught.value.verdict == "readiness_timeout"
    assert (await engine.exited).kind is ExitKind.READINESS_TIMEOUT
    assert not fake_engine.alive(engine.pid)
    assert bench.leftovers() == []


async def test_stop_while_loading(benches: Any) -> None:
    bench: Bench = await benches(ready_after_probes=10**9)
    engine = await bench.launch()
    waiting = asyncio.create_task(engine.wait_ready(30))
    await asyncio.sleep(0.3)
    assert (await engine.stop(5)).kind is ExitKind.STOPPED
    with pytest.raises(EngineLaunchFailed, match="stopped"):
        await waiting


async def test_an_engine_that_ignores_term_is_killed(benches: Any) -> None:
    bench: Bench = await benches(ignore_term=True)
    engine = await bench.launch()
    await engine.wait_ready(30)
    before = asyncio.get_running_loop().time()
    verdict = await engine.stop(0.3)
    assert asyncio.get_running_loop().time() - before < 3
    assert (verdict.kind, verdict.returncode) == (ExitKind.STOPPED, -9)


async def test_two_stops_at_once(benches: Any) -> None:
    bench: Bench = await benches()
    engine = await bench.launch()
    await engine.wait_ready(30)
    first, second = await asyncio.gather(engine.stop(5), engine.stop(0))
    assert first == second


async def test_what_the_engine_started_itself_is_ended_too(benches: Any) -> None:
    bench: Bench = await benches()
    wrapper = bench.folder / "with-child"
    wrapper.write_text(f'#!/bin/sh\nsleep 600 & echo $! > {bench.folder}/child\nexec {bench.binary.program} "$@"\n')
    wrapper.chmod(0o755)
    bench.binary = dataclasses.replace(bench.binary, program=wrapper)
    engine = await bench.launch()
    await engine.wait_ready(30)
    child = int((bench.folder / "child").read_text())
    assert fake_engine.alive(child)
    os.kill(engine.pid, signal.SIGKILL)
    await asyncio.wait_for(asyncio.shield(engine.exited), 3)
    assert not fake_engine.alive(child)


async def test_a_cleared_environment(benches: Any) -> None:
    bench: Bench = await benches()
    engine = await bench.launch()
    await engine.wait_ready(30)
    (instance,) = fake_engine.instances(bench.folder / "fake")
    assert instance.pid == engine.pid
    assert "HF_TOKEN" not in instance.environ
    assert not [name for name in instance.environ if name.startswith("LLAMA_")]
    assert instance.environ["LC_ALL"] == "C.UTF-8"
    assert os.getsid(engine.pid) == engine.pid


async def test_cuda_devices_are_bound_by_nvmls_order(benches: Any) -> None:
    bench: Bench = await benches()
    fake = bench.binary.program
    listing = bench.folder / "listing"
    answer = 'printf "Available devices:\\n  CUDA0: H (1 MiB)\\n"'
    listing.write_text(f'#!/bin/sh\n[ "$1" = --list-devices ] && {answer} && exit\nexec {fake} "$@"\n')
    listing.chmod(0o755)
    bench.binary = dataclasses.replace(bench.binary, program=listing)
    engine = await bench.launch(device="cuda", device_indexes=(2, 0))
    await engine.wait_ready(30)
    (instance,) = fake_engine.instances(bench.folder / "fake")
    assert instance.environ["CUDA_VISIBLE_DEVICES"] == "2,0"
    assert instance.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert instance.argv[instance.argv.index("--gpu-layers") + 1] == "999"


async def test_a_gpu_plan_on_a_build_that_sees_none(benches: Any) -> None:
    bench: Bench = await benches()
    none = bench.folder / "none"
    none.write_text('#!/bin/sh\nprintf "Available devices:\\n  (none)\\n"\n')
    none.chmod(0o755)
    bench.binary = dataclasses.replace(bench.binary, program=none)
    with pytest.raises(EngineIncompatible, match="sees no GPU"):
        await bench.launch(device="cuda", device_indexes=(0,))
    assert bench.leftovers() == []


async def test_a_taken_port_is_exchanged(benches: Any) -> None:
    bench: Bench = await benches()
    taken = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    busy = taken.sockets[0].getsockname()[1]
    ports: list[int] = []

    def arguments(port: int, alias: str, key_file: Path) -> tuple[str, ...]:
        ports.append(port)
        words = ["--host", "127.0.0.1", "--port", str(busy if len(ports) == 1 else port)]
        return (*words, "--model", str(bench.spec.model_path), "--alias", alias, "--api-key-file", str(key_file))

    environ = {"PATH": os.environ["PATH"]}
    launch = Launch(bench.binary, bench.spec, arguments, environ, bench.folder / "run")
    engine = await LoopbackEngine.start(launch, OwnershipLedger(bench.folder / "ownership"))
    bench.started.append(engine)
    await engine.wait_ready(30)
    assert len(ports) == 2
    assert engine.endpoint.port == ports[1]
    taken.close()


async def test_a_stranger_on_the_port_is_not_taken_for_ours(benches: Any) -> None:
    bench: Bench = await benches()
    stranger = await bench.launch()
    await stranger.wait_ready(30)
    other = await make_bench("fake", bench.folder / "other", ready_after_probes=10**9)
    bench.started.append(engine := await other.launch())
    engine.endpoint = dataclasses.replace(engine.endpoint, port=stranger.endpoint.port)
    with pytest.raises(EngineLaunchFailed) as caught:
        await engine.wait_ready(1)
    assert caught.value.verdict == "readiness_timeout"


async def test_a_program_that_is_gone(benches: Any) -> None:
    bench: Bench = await benches()
    bench.binary = dataclasses.replace(bench.binary, program=bench.folder / "gone")
    engine = await bench.launch()
    with pytest.raises(EngineLaunchFailed, match="cannot start the engine"):
        await engine.wait_ready(10)
    assert bench.leftovers() == []


async def test_a_run_folder_that_cannot_be_made(benches: Any) -> None:
    bench: Bench = await benches()
    (bench.folder / "run").write_text("a file")
    with pytest.raises(EngineLaunchFailed, match="cannot be started"):
        await bench.launch()
    assert bench.leftovers() == []


async def test_a_cancelled_launch_leaves_nothing(benches: Any) -> None:
    bench: Bench = await benches()
    launching = asyncio.create_task(bench.launch())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    launching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await launching
    for _ in range(100):
        await asyncio.sleep(0.02)
        if not bench.leftovers():
            break
    assert bench.leftovers() == []
    assert fake_engine.instances(bench.folder / "fake") == []


async def test_nothing_blocks_the_event_loop(benches: Any) -> None:
    bench: Bench = await benches(ready_after_probes=2)
    with blockbuster.blockbuster_ctx():
        engine = await bench.launch()
        await engine.wait_ready(30)
        await engine.stop(5)


# -- check


def artifact(form: str) -> ResolvedArtifact:
    variant = Variant(VariantId("v"), form, "Q4", ("llama_cpp",), "file:/x", "1", (), Requirements(), "preview", "c")  # type: ignore[arg-type]
    return ResolvedArtifact(
        "r", CatalogModel(ModelId("m"), "1", "l", "f", 1, (variant,)), variant, "llama_cpp", ArtifactDigest("0")
    )


async def test_check_refuses_before_launch(benches: Any) -> None:
    bench: Bench = await benches()
    check = bench.driver.check
    check(artifact("gguf"), bench.spec, bench.binary)
    with pytest.raises(EngineIncompatible, match="safetensors"):
        check(artifact("safetensors"), bench.spec, bench.binary)
    with pytest.raises(UnsafeArgument):
        check(artifact("gguf"), dataclasses.replace(bench.spec, extra_args=("--props",)), bench.binary)
    with pytest.raises(EngineIncompatible, match="--cache-type-k"):
        without = dataclasses.replace(bench.binary, flags=bench.binary.flags - {"--cache-type-k"})
        check(artifact("gguf"), dataclasses.replace(bench.spec, kv_quant="int8"), without)


def test_acceleration_binds_the_plan(tmp_path: Path) -> None:
    program = fake_engine.install(tmp_path / "fake")
    driver = LlamaCppDriver(
        EngineConfig(path=str(program), acceleration="cpu"),
        engines_root=tmp_path / "engines",
        run_dir=tmp_path / "run",
        ownership=OwnershipLedger(tmp_path / "ownership"),
        environ=os.environ,
    )
    binary = driver.acquire(quiet)
    spec = LaunchSpec("chat", 1, tmp_path / "m.gguf", 256, 1, device="metal")
    with pytest.raises(EngineIncompatible, match="acceleration is cpu, the plan uses metal"):
        driver.check(artifact("gguf"), spec, binary)


# -- output


def test_the_tail_and_the_log_are_bounded(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    log = tmp_path / "engine.log"
    output = OutputTail(os.fdopen(read_end, "rb", buffering=0), log)
    line = b"x" * 99 + b"\n"
    with os.fdopen(write_end, "wb") as pipe:
        for _ in range(3 * LOG_BYTES // len(line)):
            pipe.write(line)
        pipe.write(b"the end\n")
    output.finish(10)
    assert output.text().endswith("the end\n")
    assert len(output.text()) <= TAIL_BYTES
    assert sorted(path.name for path in tmp_path.iterdir()) == ["engine.log", "engine.log.1"]
    assert all(path.stat().st_size <= LOG_BYTES + TAIL_BYTES for path in tmp_path.iterdir())
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


async def test_a_stranger_on_the_port_is_told_no_key_and_a_new_process_has_a_new_one(
    benches: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench: Bench = await benches()
    heard: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(4096))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()

    stranger = await asyncio.start_server(listen, "127.0.0.1", 0)
    busy = stranger.sockets[0].getsockname()[1]
    keys: list[str] = []

    def arguments(port: int, alias: str, key_file: Path) -> tuple[str, ...]:
        keys.append(key_file.read_text().strip())
        words = ["--host", "127.0.0.1", "--port", str(port)]
        return (*words, "--model", str(bench.spec.model_path), "--alias", alias, "--api-key-file", str(key_file))

    free_port = process._free_port
    monkeypatch.setattr(process, "_free_port", lambda: free_port() if keys else busy)
    launch = Launch(bench.binary, bench.spec, arguments, {"PATH": os.environ["PATH"]}, bench.folder / "run")
    engine = await LoopbackEngine.start(launch, OwnershipLedger(bench.folder / "ownership"))
    bench.started.append(engine)
    await engine.wait_ready(30)
    stranger.close()
    assert len(set(keys)) == len(keys) == 2
    assert engine.endpoint.api_key == keys[1]
    assert heard, "nobody asked the stranger"
    assert not any(key.encode() in words or b"Authorization" in words for key in keys for words in heard)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells whose socket it is")
async def test_whose_port_it_is(benches: Any) -> None:
    bench: Bench = await benches()
    engine = await bench.launch()
    await engine.wait_ready(30)
    other = await bench.launch()
    await other.wait_ready(30)
    port = engine.endpoint.port
    assert await asyncio.to_thread(owns_port, engine.pid, port) is True
    assert await asyncio.to_thread(owns_port, other.pid, port) is False
    await engine.stop(1)
    assert await asyncio.to_thread(owns_port, engine.pid, port) is None


async def test_a_deeply_nested_answer_of_a_stranger_is_not_ours() -> None:
    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4096)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 200_000)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    endpoint = Endpoint("127.0.0.1", server.sockets[0].getsockname()[1], "m", "key")
    assert not await is_ours(endpoint, 5)
    server.close()


@pytest.mark.parametrize(
    ("output", "told"),
    [
        ("x: error while loading shared libraries: libgomp.so.1: cannot open shared object file", "package libgomp1 "),
        ("x: error while loading shared libraries: libnew.so.9: cannot open it", "library libnew.so.9, .*install"),
        ("dyld[1]: Library not loaded: @rpath/libomp.dylib", "library @rpath/libomp.dylib"),
    ],
)
def test_a_missing_library_is_named(tmp_path: Path, output: str, told: str) -> None:
    program = tmp_path / "llama-server"
    program.write_text(f"#!/bin/sh\necho '{output}' >&2\nexit 127\n")
    program.chmod(0o755)
    with pytest.raises(EngineIncompatible, match=told):
        BinaryProbe("llama_cpp", tmp_path / "cache", {}).inspect(program, "path")
