"""vLLM and SGLang from container, own program and PATH: availability, acquisition and the life of the process.

Docker and Podman are recording stand-ins that start a real process, so that the driver speaks the real protocol.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from sbproxy.catalog.core.model import ArtifactDigest, CatalogModel, ModelId, Requirements, ResolvedArtifact, Variant
from sbproxy.catalog.core.model import VariantId as VariantId
from sbproxy.config.core.model_host import DeploymentConfig, EngineConfig
from sbproxy.engines.container import on_link
from sbproxy.engines.core.model import EngineBinary, ExitKind, LaunchSpec
from sbproxy.engines.output import Masked
from sbproxy.engines.ownership import OwnershipLedger
from sbproxy.engines.process import LoopbackEngine
from sbproxy.engines.python_engine import PythonEngineDriver
from sbproxy.engines.registry import EngineDrivers, engine_drivers
from sbproxy.engines.runtime_tool import RuntimeTool
from sbproxy.engines.sglang import SGLANG
from sbproxy.engines.vllm import VLLM
from sbproxy.errors.engines import (
    EngineAcquisitionFailed,
    EngineBlocked,
    EngineIncompatible,
    EngineLaunchFailed,
    UnsafeArgument,
)
from support import fake_engine, fake_python_engine, recording_docker

pytestmark = pytest.mark.e2e

IMAGE = f"vllm/vllm-openai@sha256:{'a' * 64}"
DIALECTS = {"vllm": VLLM, "sglang": SGLANG}


@dataclasses.dataclass
class Bench:
    """A driver over stand-ins; launched engines are ended after the test."""

    folder: Path
    driver: PythonEngineDriver
    engine: Path
    docker: Path
    spec: LaunchSpec
    ledger: OwnershipLedger
    started: list[LoopbackEngine] = dataclasses.field(default_factory=list)

    async def acquire(self) -> EngineBinary:
        return await asyncio.to_thread(self.driver.acquire, quiet)

    async def launch(self, binary: EngineBinary, **changes: Any) -> LoopbackEngine:
        engine = await self.driver.launch(binary, dataclasses.replace(self.spec, **changes))
        self.started.append(engine)
        return engine

    def said(self, *first: str) -> list[list[str]]:
        return [call for call in recording_docker.calls(self.docker) if tuple(call[: len(first)]) == first]

    def leftovers(self) -> list[str]:
        folders = [self.folder / "cache" / "engines" / "run", self.folder / "ownership"]
        found = [path.name for folder in folders if folder.is_dir() for path in folder.iterdir()]
        return [name for name in found if name != "logs"]


def quiet(what: str, done: int, total: int | None) -> None: ...


def make_bench(
    folder: Path,
    engine: str = "vllm",
    *,
    kinds: tuple[str, ...] = ("docker",),
    config: EngineConfig | None = None,
    network: bool = True,
    fake: dict[str, Any] | None = None,
    **settings: Any,
) -> Bench:
    program = fake_python_engine.install(folder / "fake", engine, **(fake or {}))
    docker = folder / "docker"
    for kind in kinds:
        recording_docker.install(docker, kind, program.parent, **settings)
    ledger = OwnershipLedger(folder / "ownership")
    driver = PythonEngineDriver(
        DIALECTS[engine],
        config,
        engines_root=folder / "cache" / "engines",
        run_dir=folder / "cache" / "engines" / "run",
        ownership=ledger,
        environ={"PATH": f"{docker / 'bin'}:/usr/bin:/bin", "HOME": str(folder), "HF_TOKEN": "t0p-s3cret"},
        network=network,
    )
    model = fake_python_engine.snapshot(folder / "models" / "snapshot")
    spec = LaunchSpec("chat", 3, model, context_tokens=256, parallel=2, device="cuda", device_indexes=(1,), replica=2)
    return Bench(folder, driver, program.parent, docker, spec, ledger)


def container(**changes: Any) -> EngineConfig:
    return EngineConfig(launch="container", image=IMAGE, **changes)


def own(program: Path, **changes: Any) -> EngineConfig:
    return EngineConfig(launch="binary", path=str(program), **changes)


@pytest.fixture
async def benches(tmp_path: Path) -> AsyncIterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(*words: Any, **changes: Any) -> Bench:
        made.append(make_bench(tmp_path, *words, **changes))
        return made[-1]

    yield make
    for bench in made:
        for engine in bench.started:
            await engine.stop(0)


def ask(engine: LoopbackEngine, key: str) -> Any:
    url = f"http://{engine.endpoint.host}:{engine.endpoint.port}/v1/models"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
        return json.load(answer)


# -- containers


@pytest.mark.parametrize("kind", ["docker", "podman"])
async def test_an_image_is_pulled_started_asked_and_stopped(benches: Any, kind: str) -> None:
    bench: Bench = benches(kinds=(kind,), config=container(shm_size_gib=2))
    before = await asyncio.to_thread(bench.driver.availability)
    assert (before.state, before.options[0].method) == ("acquirable", "container")
    told: list[str] = []
    binary = await asyncio.to_thread(bench.driver.acquire, lambda what, done, total: told.append(what))
    assert any("Pull complete" in each for each in told)
    assert (binary.method, binary.image, binary.sha256) == ("container", IMAGE, "a" * 64)
    assert "--max-model-len" in binary.flags
    assert (await asyncio.to_thread(bench.driver.availability)).state == "available"

    engine = await bench.launch(binary)
    await engine.wait_ready(30)
    assert engine.endpoint.host == "127.0.0.1"
    assert await engine.healthy(5)
    answer = await asyncio.to_thread(ask, engine, engine.endpoint.api_key)
    assert answer["data"][0]["id"] == engine.endpoint.alias
    with pytest.raises(urllib.error.HTTPError, match="401"):
        await asyncio.to_thread(ask, engine, "guess")
    (state,) = recording_docker.containers(bench.docker)
    assert state["name"].startswith("sbproxy-chat-g3-r2-")
    assert recording_docker.networks(bench.docker) == [f"{state['name']}-net"]

    verdict = await engine.stop(5)
    assert verdict.kind is ExitKind.STOPPED
    assert not fake_engine.alive(state["pid"])
    assert recording_docker.containers(bench.docker) == recording_docker.networks(bench.docker) == []
    assert bench.said("stop", "--time", "5", state["name"])
    assert bench.leftovers() == []


async def test_the_key_is_in_no_command_line_and_no_environment_but_the_containers(benches: Any) -> None:
    bench: Bench = benches(config=container(), images=[IMAGE])
    engine = await bench.launch(await bench.acquire())
    await engine.wait_ready(30)
    key = engine.endpoint.api_key
    assert not any(key in word for call in recording_docker.calls(bench.docker) for word in call)
    for file in ("cmdline", "environ"):
        assert key not in Path(f"/proc/{engine.pid}/{file}").read_text()
    (secrets,) = (bench.folder / "cache" / "engines" / "run").glob("chat-*/secrets")
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o600
    assert stat.S_IMODE(secrets.parent.stat().st_mode) == 0o700
    (instance,) = fake_engine.instances(bench.folder / "fake")
    assert instance.environ["VLLM_API_KEY"] == key
    assert instance.environ["HF_HUB_OFFLINE"] == "1"
    assert "t0p-s3cret" not in str(instance.environ)
    assert not any(key in word for word in instance.argv)


async def test_what_was_said_to_run(benches: Any) -> None:
    bench: Bench = benches(config=container(shm_size_gib=2), images=[IMAGE])
    engine = await bench.launch(await bench.acquire())
    await engine.wait_ready(30)
    (words,) = [call for call in bench.said("run") if "--name" in call]
    assert words[words.index("--mount") + 1] == f"type=bind,src={bench.spec.model_path},dst=/models,readonly"
    assert words[words.index("--gpus") + 1] == '"device=1"'
    assert words[words.index("--shm-size") + 1] == str(2 * 1024**3)
    assert words[words.index("--publish") + 1] == f"127.0.0.1:{engine.endpoint.port}:{engine.endpoint.port}/tcp"
    assert words[words.index("--pull") + 1] == "never"
    inside = words[words.index(IMAGE) + 1 :]
    assert inside[:4] == ["serve", "/models", "--host", "0.0.0.0"]
    (create,) = bench.said("network", "create")
    assert "--internal" in create


async def test_docker_publishes_nothing_from_an_internal_network_and_the_engine_is_found_all_the_same(
    benches: Any,
) -> None:
    bench: Bench = benches(config=container(), images=[IMAGE], publishes=False)
    engine = await bench.launch(await bench.acquire())
    await engine.wait_ready(30)
    assert await engine.healthy(5)


def test_an_address_that_is_not_on_a_network_of_this_machine_is_not_asked() -> None:
    assert on_link("127.0.0.1", "127.0.0.0/8")
    # TEST-NET-3: for documentation only.
    assert not on_link("203.0.113.7", "203.0.113.0/24")
    assert not on_link("not an address", "203.0.113.0/24")


async def test_sglang_in_a_container_gets_its_key_past_the_command_line(benches: Any) -> None:
    image = f"lmsysorg/sglang@sha256:{'b' * 64}"
    config = EngineConfig(launch="container", image=image)
    bench: Bench = benches("sglang", config=config, images=[image], fake={"mode": "tells_key"})
    engine = await bench.launch(await bench.acquire())
    await engine.wait_ready(30)
    key = engine.endpoint.api_key
    (instance,) = fake_engine.instances(bench.folder / "fake")
    assert not any(key in word for word in instance.argv)
    await engine.stop(5)
    # SGLang prints its options, the key among them.
    (log,) = (bench.folder / "cache" / "engines" / "run" / "logs").glob("*.log")
    assert "api_key='[key]'" in log.read_text()
    assert key not in log.read_text()


async def test_a_container_that_ignores_term_is_killed(benches: Any) -> None:
    bench: Bench = benches(config=container(), images=[IMAGE], fake={"ignore_term": True})
    engine = await bench.launch(await bench.acquire())
    await engine.wait_ready(30)
    (state,) = recording_docker.containers(bench.docker)
    assert (await engine.stop(1)).kind is ExitKind.STOPPED
    assert not fake_engine.alive(state["pid"])
    assert recording_docker.networks(bench.docker) == []


async def test_a_late_container_is_removed(benches: Any) -> None:
    bench: Bench = benches(config=container(), images=[IMAGE], fake={"mode": "never_ready"})
    engine = await bench.launch(await bench.acquire())
    with pytest.raises(EngineLaunchFailed, match="not ready after"):
        await engine.wait_ready(1.5)
    assert recording_docker.containers(bench.docker) == recording_docker.networks(bench.docker) == []
    assert bench.leftovers() == []


@pytest.mark.parametrize(("mode", "kind"), [("oom_exit", ExitKind.OUT_OF_MEMORY), ("bad_file", ExitKind.BAD_FILE)])
async def test_why_a_container_ended(benches: Any, mode: str, kind: ExitKind) -> None:
    bench: Bench = benches(config=container(), images=[IMAGE], fake={"mode": mode})
    engine = await bench.launch(await bench.acquire())
    with pytest.raises(EngineLaunchFailed) as caught:
        await engine.wait_ready(30)
    assert caught.value.verdict == kind
    assert recording_docker.networks(bench.docker) == []


async def test_a_container_killed_from_outside_is_seen(benches: Any) -> None:
    bench: Bench = benches(config=container(), images=[IMAGE])
    engine = await bench.launch(await bench.acquire())
    await engine.wait_ready(30)
    (state,) = recording_docker.containers(bench.docker)
    os.kill(state["pid"], signal.SIGKILL)
    verdict = await asyncio.wait_for(engine.exited, 10)
    assert (verdict.kind, verdict.returncode) == (ExitKind.SIGNAL, -9)


async def test_the_next_start_ends_only_its_own_container(benches: Any) -> None:
    bench: Bench = benches(config=container(), images=[IMAGE])
    binary = await bench.acquire()
    engine = await bench.launch(binary)
    await engine.wait_ready(30)
    (state,) = recording_docker.containers(bench.docker)
    # A daemon that died by SIGKILL: its record stays, the runtime's command died with it, the container did not.
    kept = bench.folder / "dead"
    shutil.copytree(bench.folder / "ownership", kept)
    for lock in kept.glob("*.owner"):
        lock.unlink()
    (record,) = kept.glob("*.json")
    content = json.loads(record.read_text())
    assert content["container"] == {"program": str(bench.docker / "bin" / "docker"), "name": state["name"]}
    content["owner"] = {"pid": 2**22 - 1, "start": "gone"}
    stranger = dict(content, token="f" * 32, child=None)
    (kept / f"{'f' * 32}.json").write_text(json.dumps(stranger))
    record.write_text(json.dumps(content | {"child": None, "token": content["token"]}))
    os.kill(engine.pid, signal.SIGSTOP)
    try:
        record.rename(kept / "own.later")
        assert await asyncio.to_thread(OwnershipLedger(kept).reap_orphans) == []
        assert fake_engine.alive(state["pid"]), "a record with another token must not touch it"
        (kept / "own.later").rename(record)
        reaped = await asyncio.to_thread(OwnershipLedger(kept).reap_orphans)
    finally:
        bench.started.clear()
    assert all(each.ended for each in reaped)
    assert reaped[-1].deployment == "chat"
    assert not fake_engine.alive(state["pid"])
    assert recording_docker.networks(bench.docker) == []
    assert list(kept.glob("*.json")) == []
    assert (await asyncio.wait_for(engine.exited, 10)).kind in (ExitKind.SIGNAL, ExitKind.CRASH)


async def test_a_failed_pull_and_an_unreachable_daemon(benches: Any) -> None:
    bench: Bench = benches(config=container(), pull_fails="manifest unknown")
    with pytest.raises(EngineAcquisitionFailed, match="manifest unknown"):
        await bench.acquire()


async def test_offline_pulls_nothing(benches: Any) -> None:
    bench: Bench = benches(config=container(), network=False)
    found = await asyncio.to_thread(bench.driver.availability)
    assert (found.state, "--offline" in found.reason) == ("blocked", True)
    with pytest.raises(EngineBlocked, match="--offline"):
        await bench.acquire()
    assert bench.said("pull") == []


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"reachable": False}, "Cannot connect to the Docker daemon"), ({"rootless": True}, "rootless docker")],
)
async def test_a_runtime_that_cannot_serve_us(benches: Any, settings: dict[str, Any], reason: str) -> None:
    bench: Bench = benches(config=container(), **settings)
    found = await asyncio.to_thread(bench.driver.availability)
    assert (found.state, reason in found.reason) == ("blocked", True), found


async def test_unconfigured_with_a_runtime_is_the_container_alone(benches: Any) -> None:
    bench: Bench = benches()
    found = await asyncio.to_thread(bench.driver.availability)
    assert [option.method for option in found.options] == ["container"]
    assert found.state == "blocked"
    assert "engines.vllm.image: repository@sha256:<digest>" in found.reason


async def test_unconfigured_without_a_runtime_goes_on_to_path_and_uv(benches: Any) -> None:
    bench: Bench = benches(kinds=())
    found = await asyncio.to_thread(bench.driver.availability)
    assert [option.method for option in found.options] == ["container", "search_path", "uv"]


# -- an own program


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
async def test_an_own_program(tmp_path: Path, benches: Any, engine: str, caplog: pytest.LogCaptureFixture) -> None:
    program = tmp_path / "fake" / "bin" / ("vllm" if engine == "vllm" else "python")
    bench: Bench = benches(engine, kinds=(), config=own(program))
    found = await asyncio.to_thread(bench.driver.availability)
    assert (found.state, found.version, found.program) == ("available", "0.10.0", program)
    binary = await bench.acquire()
    process = await bench.launch(binary, kv_quant="int4")
    await process.wait_ready(30)
    assert "kv_quant_substituted deployment=chat" in caplog.text
    answer = await asyncio.to_thread(ask, process, process.endpoint.api_key)
    assert answer["data"][0]["id"] == process.endpoint.alias
    (instance,) = fake_engine.instances(bench.folder / "fake")
    assert not any(process.endpoint.api_key in word for word in instance.argv)
    assert instance.environ["CUDA_VISIBLE_DEVICES"] == "1"
    assert "t0p-s3cret" not in str(instance.environ)
    assert "/cache/engines/" in instance.environ["XDG_CACHE_HOME"]
    assert (await process.stop(10)).kind is ExitKind.STOPPED
    assert bench.leftovers() == []


async def test_the_options_of_a_build_are_asked_once(tmp_path: Path, benches: Any) -> None:
    program = tmp_path / "fake" / "bin" / "vllm"
    bench: Bench = benches(kinds=(), config=own(program))
    first = await bench.acquire()
    real = program.read_text()
    stamp = program.stat()
    assert list((bench.folder / "cache" / "engines" / "vllm" / "probes").glob("*.json"))
    again = await bench.acquire()
    assert (first.flags, first.sha256) == (again.flags, again.sha256)
    program.write_text(real.replace("fake_python_server.main", "raise SystemExit; fake_python_server.main"))
    os.utime(program, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1_000_000_000))
    with pytest.raises(EngineIncompatible, match="help"):
        await bench.acquire()


@pytest.mark.parametrize(
    ("changes", "state", "reason"),
    [
        ({"version": "0.9.0"}, "blocked", "it is 0.10.0, the configuration wants 0.9.0"),
        ({"sha256": "c" * 64}, "blocked", "sha256 pins no installed vllm"),
        ({"acceleration": "metal"}, "incompatible", "acceleration is metal"),
        ({"path": "/nowhere/vllm"}, "blocked", "no executable file"),
    ],
)
async def test_an_own_program_that_is_not_the_configured_one(
    tmp_path: Path, benches: Any, changes: dict[str, Any], state: str, reason: str
) -> None:
    config = EngineConfig(**({"launch": "binary", "path": str(tmp_path / "fake" / "bin" / "vllm")} | changes))
    bench: Bench = benches(kinds=(), config=config)
    found = await asyncio.to_thread(bench.driver.availability)
    assert (found.state, reason in found.reason) == (state, True), found
    with pytest.raises((EngineBlocked, EngineIncompatible), match=reason):
        await bench.acquire()


async def test_a_python_without_the_engine(benches: Any) -> None:
    bench: Bench = benches("sglang", kinds=(), config=own(Path(sys.executable)))
    found = await asyncio.to_thread(bench.driver.availability)
    assert (found.state, "has no sglang" in found.reason) == ("incompatible", True)


async def test_a_taken_port_is_tried_again_elsewhere_and_given_up(tmp_path: Path, benches: Any) -> None:
    program = tmp_path / "fake" / "bin" / "vllm"
    bench: Bench = benches(kinds=(), config=own(program), fake={"mode": "port_taken"})
    engine = await bench.launch(await bench.acquire())
    with pytest.raises(EngineLaunchFailed) as caught:
        await engine.wait_ready(30)
    assert caught.value.verdict == "port"


# -- before a launch


def artifact(form: str) -> ResolvedArtifact:
    variant = Variant(VariantId("v"), form, "bf16", ("vllm",), "hf:a/b", "r", (), Requirements(), "stable", "none")  # type: ignore[arg-type]
    model = CatalogModel(ModelId("m"), "1B", "mit", "x", 4096, (variant,))
    return ResolvedArtifact("1", model, variant, "vllm", ArtifactDigest("0" * 64))


@pytest.mark.parametrize(
    ("form", "changes", "refused", "reason"),
    [
        ("gguf", {}, EngineIncompatible, "safetensors snapshots, m:v is gguf"),
        ("safetensors", {"device": "cpu"}, EngineIncompatible, "set engines.vllm.acceleration: cpu"),
        ("safetensors", {"device": "metal"}, EngineIncompatible, "the plan uses metal"),
        ("safetensors", {"device_indexes": ()}, EngineIncompatible, "never given all of them"),
        ("safetensors", {"device_indexes": (0, 1)}, EngineIncompatible, "devices 0,1 for tensor_parallel 1"),
        ("safetensors", {"extra_args": ("--host", "0.0.0.0")}, UnsafeArgument, "--host"),
        ("safetensors", {"model_path": Path("/a,readonly=false")}, EngineIncompatible, "cannot be mounted"),
        ("safetensors", {"offload_layers": 1}, EngineIncompatible, "offload_layers"),
    ],
)
async def test_what_is_refused_before_a_launch(
    benches: Any, form: str, changes: dict[str, Any], refused: type[Exception], reason: str
) -> None:
    bench: Bench = benches(config=container(), images=[IMAGE])
    binary = await bench.acquire()
    bench.driver.check(artifact("safetensors"), bench.spec, binary)
    with pytest.raises(refused, match=reason):
        bench.driver.check(artifact(form), dataclasses.replace(bench.spec, **changes), binary)


def test_a_key_is_masked_wherever_the_stream_is_cut() -> None:
    secret = b"abcabd"
    text = b"x abcabd y abcab abcabcabd abc"
    for size in range(1, len(text) + 1):
        masked = Masked(secret)
        out = b"".join(masked.feed(text[at : at + size]) for at in range(0, len(text), size)) + masked.rest()
        assert out == b"x [key] y abcab abc[key] abc", size
    assert Masked(b"").feed(b"as it is") == b"as it is"
    masked = Masked(secret)
    assert masked.feed(b"nothing of it") == b"nothing of it"


# -- deployments with an engine of their own


def drivers(tmp_path: Path, **configs: EngineConfig) -> EngineDrivers:
    ledger = OwnershipLedger(tmp_path / "ownership")
    return engine_drivers(configs, root=tmp_path, ownership=ledger, environ={"PATH": "/nowhere"})  # type: ignore[arg-type]


def deployment(**changes: Any) -> DeploymentConfig:
    return DeploymentConfig(model="m", **changes)


def test_a_deployments_own_image_is_a_driver_of_its_own(tmp_path: Path) -> None:
    found = drivers(tmp_path, vllm=container())
    assert set(found) == {"llama_cpp", "vllm", "sglang", "mistralrs"}
    other = f"vllm/vllm-openai@sha256:{'e' * 64}"
    mine = found.for_deployment("vllm", deployment(engine_image=other))
    assert mine is not found["vllm"]
    assert mine is found.for_deployment("vllm", deployment(engine_image=other))
    assert found.for_deployment("vllm", deployment(engine_image=IMAGE)) is found["vllm"]
    assert found.for_deployment("llama_cpp", deployment()) is found["llama_cpp"]


@pytest.mark.parametrize(
    ("engine", "host", "asked", "reason"),
    [
        ("vllm", EngineConfig(launch="uv", version="0.10.0"), {"engine_version": "0.11.0"}, "contradicts .*version"),
        (
            "llama_cpp",
            EngineConfig(sha256="a" * 64),
            {"engine_sha256": "b" * 64},
            "contradicts engines.llama_cpp.sha256",
        ),
        ("llama_cpp", EngineConfig(), {"engine_image": IMAGE}, "runs in no container"),
        ("vllm", EngineConfig(launch="uv"), {"engine_image": IMAGE}, "contradicts engines.vllm.launch uv"),
        ("vllm", EngineConfig(), {"engine_image": "vllm:latest"}, "not pinned by digest"),
        ("tgi", EngineConfig(), {}, "this host runs"),
    ],
)
def test_a_contradiction_is_refused(
    tmp_path: Path, engine: str, host: EngineConfig, asked: dict[str, Any], reason: str
) -> None:
    found = drivers(tmp_path, **({engine: host} if engine != "tgi" else {}))
    with pytest.raises(EngineBlocked, match=reason):
        found.for_deployment(engine, deployment(**asked))


def test_the_tools_reach_this_machines_daemon_alone(tmp_path: Path) -> None:
    recording_docker.install(tmp_path, "podman", tmp_path)
    environ = {"PATH": str(tmp_path / "bin"), "DOCKER_HOST": "tcp://far:2375", "AWS_SECRET_ACCESS_KEY": "x"}
    (tool,) = RuntimeTool.all(environ)
    assert tool.kind == "podman"
    assert "DOCKER_HOST" not in tool.environ
    assert tool.environ["DOCKER_CONTEXT"] == "default"
    assert "AWS_SECRET_ACCESS_KEY" not in tool.environ
    local = RuntimeTool.all(environ | {"DOCKER_HOST": "unix:///run/user/1/docker.sock"})[0]
    assert local.environ["DOCKER_HOST"] == "unix:///run/user/1/docker.sock"
    assert RuntimeTool.at(Path("/bin/sh"), environ) is None


def test_the_stand_in_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    program = recording_docker.install(tmp_path, "docker", tmp_path, images=[IMAGE])
    done = subprocess.run([str(program), "run", "--privileged", IMAGE], capture_output=True, text=True, check=False)
    assert (done.returncode, "unknown flag: --privileged" in done.stderr) == (125, True)
