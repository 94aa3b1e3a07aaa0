"""The mistral.rs driver (document 1, "mistral.rs"): where it comes from, what it is told, and its process's life."""

from __future__ import annotations

import asyncio
import hashlib
import http.server
import io
import json
import tarfile
import threading
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbproxy.catalog.core.model import (
    ArtifactDigest,
    CatalogModel,
    Format,
    ModelId,
    Requirements,
    ResolvedArtifact,
    Variant,
    VariantId,
)
from sbproxy.config.core.model_host import EngineConfig
from sbproxy.devices.core.model import Device, Machine
from sbproxy.engines.core.flags import Flags
from sbproxy.engines.core.mistralrs_argv import parse_serve_help, release_of, serve_arguments
from sbproxy.engines.core.mistralrs_release import archive_name
from sbproxy.engines.core.model import Availability, ExitKind, LaunchSpec
from sbproxy.engines.core.pins import HostPlatform
from sbproxy.engines.core.verdict import Redaction, decide_verdict
from sbproxy.engines.mistralrs import MistralRsDriver
from sbproxy.engines.ownership import OwnershipLedger
from sbproxy.engines.process import LoopbackEngine
from sbproxy.engines.registry import engine_drivers
from sbproxy.errors.engines import (
    EngineAcquisitionFailed,
    EngineBlocked,
    EngineIncompatible,
    EngineLaunchFailed,
    UnsafeArgument,
)
from support import fake_mistralrs
from support.tiny_llama import write_tiny_llama

LINUX = HostPlatform("Linux", "x86_64", (2, 36))
MAC = HostPlatform("Darwin", "arm64")
CPU = Device(-1, "cpu", "cpu", 2**34, 2**33)
SPEC = LaunchSpec("chat", 1, Path("/snapshot"), context_tokens=2048, parallel=4)


def quiet(what: str, done: int, total: int | None) -> None: ...


def machine(*capabilities: tuple[int, int] | None, cuda: str | None = "12.8") -> Machine:
    cards = [Device(index, "cuda", "card", 2**36, 2**35, each) for index, each in enumerate(capabilities)]
    return Machine("linux", "x86_64", 4, (CPU, *cards), cuda_version=cuda if cards else None)


# -- which release archive


@pytest.mark.parametrize(
    ("host", "acceleration", "found", "name"),
    [
        (LINUX, "auto", machine(), "mistralrs-cpu-x86_64-unknown-linux-gnu.tar.gz"),
        (LINUX, "cpu", machine((9, 0)), "mistralrs-cpu-x86_64-unknown-linux-gnu.tar.gz"),
        (LINUX, "auto", machine((9, 0)), "mistralrs-cuda-sm90-x86_64-unknown-linux-gnu.tar.gz"),
        (LINUX, "cuda", machine((8, 6), (8, 6), cuda="13.0"), "mistralrs-cuda-sm86-x86_64-unknown-linux-gnu.tar.gz"),
        (LINUX, "cuda", machine((12, 0)), "mistralrs-cuda-sm120-x86_64-unknown-linux-gnu.tar.gz"),
        (MAC, "auto", machine(), "mistralrs-metal-aarch64-apple-darwin.tar.gz"),
        (MAC, "metal", machine(), "mistralrs-metal-aarch64-apple-darwin.tar.gz"),
    ],
)
def test_the_archive_of_a_machine(host: HostPlatform, acceleration: str, found: Machine, name: str) -> None:
    assert archive_name(host, acceleration, found) == name


@pytest.mark.parametrize(
    ("host", "acceleration", "found", "reason"),
    [
        (LINUX, "vulkan", machine(), "no release is built for Vulkan"),
        (LINUX, "metal", machine(), "no Metal on Linux"),
        (LINUX, "cuda", machine(), "no NVIDIA device"),
        (LINUX, "auto", machine((9, 0), cuda="12.7"), "CUDA 12.8 or newer, this one is for 12.7"),
        (LINUX, "auto", machine((9, 0), cuda=None), "CUDA 12.8 or newer, this one is for None"),
        (LINUX, "auto", machine((8, 6), (9, 0)), "one compute capability, the devices here have 8.6, 9.0"),
        (LINUX, "auto", machine(None), "the devices here have unknown"),
        (HostPlatform("Linux", "aarch64"), "auto", machine(), "this is Linux aarch64"),
        (HostPlatform("Darwin", "x86_64"), "auto", machine(), "this is Darwin x86_64"),
        (MAC, "cuda", machine(), "no CUDA on macOS"),
    ],
)
def test_machines_without_an_archive(host: HostPlatform, acceleration: str, found: Machine, reason: str) -> None:
    with pytest.raises(EngineIncompatible, match=reason):
        archive_name(host, acceleration, found)


# -- the command line

FLAGS = parse_serve_help(fake_mistralrs.serve_help())


def test_the_help_of_clap_is_read() -> None:
    assert {"-m", "--model-id", "--cpu", "-p", "--port", "--max-seq-len", "--no-kv-cache"} <= FLAGS.names
    assert {"-m", "--port", "--max-seqs", "--prefix-cache-n"} <= FLAGS.valued
    assert not {"--cpu", "--no-kv-cache", "--help"} & FLAGS.valued
    short = "Options:\n  -p, --port <PORT>  HTTP server port, see --host\n      --cpu          Force\n"
    assert parse_serve_help(short) == Flags(frozenset({"-p", "--port", "--cpu"}), frozenset({"-p", "--port"}))


@pytest.mark.parametrize(
    ("output", "release"),
    [("mistralrs 0.9.0\n", "v0.9.0"), ("mistralrs 0.9.0-rc.1", "v0.9.0-rc.1"), ("mistralrs\n", None), ("", None)],
)
def test_the_release_that_a_program_names(output: str, release: str | None) -> None:
    assert release_of(output) == release


def test_the_arguments_of_a_cpu_launch() -> None:
    assert serve_arguments(FLAGS, SPEC, port=4321, model="m-1") == (
        *("serve", "-m", "m-1", "--host", "127.0.0.1", "--port", "4321", "--max-seq-len", "2048", "--max-seqs", "4"),
        *("--cpu", "--no-ui", "--token-source", "none"),
    )


def test_on_cuda_the_paged_cache_holds_what_was_planned() -> None:
    words = serve_arguments(FLAGS, replace(SPEC, device="cuda", device_indexes=(1,)), port=1, model="m")
    assert "--cpu" not in words
    assert words[words.index("--pa-context-len") + 1] == "8192"


def test_what_a_build_does_not_know_is_not_said() -> None:
    plain = Flags(FLAGS.names - {"--no-ui", "--token-source", "--pa-context-len"}, FLAGS.valued)
    words = serve_arguments(plain, replace(SPEC, device="cuda"), port=1, model="m")
    assert words[-2:] == ("--max-seqs", "4")
    with pytest.raises(EngineIncompatible, match="--max-seqs"):
        serve_arguments(Flags(FLAGS.names - {"--max-seqs"}, FLAGS.valued), SPEC, port=1, model="m")


@pytest.mark.parametrize("kv_quant", ["auto", "f16", "fp8", "int8", "int4"])
def test_kv_quant_is_never_passed_through(kv_quant: str) -> None:
    assert serve_arguments(FLAGS, replace(SPEC, kv_quant=kv_quant), port=1, model="m") == serve_arguments(
        FLAGS, SPEC, port=1, model="m"
    )


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (("--no-kv-cache",), ("--no-kv-cache",)),
        (("--prefix-cache-n", "0"), ("--prefix-cache-n", "0")),
        (("--prefix-cache-n=32", "--no-kv-cache"), ("--prefix-cache-n", "32", "--no-kv-cache")),
    ],
)
def test_the_allowed_extra_arguments(extra: tuple[str, ...], said: tuple[str, ...]) -> None:
    words = serve_arguments(FLAGS, replace(SPEC, extra_args=extra), port=1, model="m")
    assert words[-len(said) :] == said


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        *((name, "belongs to the model host") for name in ("-m", "--model-id", "--host", "--port", "-p", "--cpu")),
        *((name, "belongs to the model host") for name in ("--max-seq-len", "--max-seqs")),
        ("--pa-context-len 1", "the memory plan belongs to the model host"),
        ("--enable-shell", "foreign code belongs to the model host"),
        ("--isq 4", "not on the list of allowed arguments"),
        ("serve", "not on the list of allowed arguments"),
        ("--no-kv-cache=1", "takes no value"),
        ("--prefix-cache-n", "its value is missing"),
        ("--prefix-cache-n ../x", "its value may only hold"),
        ("--no-kv-cache --no-kv-cache", "given twice"),
    ],
)
def test_refused_extra_arguments(extra: str, reason: str) -> None:
    with pytest.raises(UnsafeArgument, match=reason):
        serve_arguments(FLAGS, replace(SPEC, extra_args=tuple(extra.split())), port=1, model="m")


def test_a_refused_argument_does_not_repeat_its_value() -> None:
    with pytest.raises(UnsafeArgument) as caught:
        serve_arguments(FLAGS, replace(SPEC, extra_args=("--token-source=literal:t0p-s3cret",)), port=1, model="m")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"modality": "embedding"}, "chat models here, not embedding"),
        ({"tool_call_parser": "hermes"}, "it has no tool_call_parser"),
        ({"swap_space_gib": 1.0}, "swap_space_gib"),
        ({"cpu_offload_gib": 1.0}, "cpu_offload_gib"),
        ({"chunked_prefill": True}, "chunked_prefill"),
        ({"offload_layers": 1}, "offload_layers"),
        ({"repository": "Org/Repo", "network": True}, "no raw model reference"),
    ],
)
def test_settings_it_cannot_carry_out_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(EngineIncompatible, match=reason):
        serve_arguments(FLAGS, replace(SPEC, **changes), port=1, model="m")


# -- acquisition


@pytest.fixture
def drive(tmp_path: Path) -> Callable[..., MistralRsDriver]:
    """A driver under tmp_path with nothing on PATH, on a Linux machine without a GPU."""

    def make(*, path_folder: str = "/nonexistent", **arguments: Any) -> MistralRsDriver:
        options = {key: arguments.pop(key) for key in ("releases", "host", "network", "machine") if key in arguments}
        return MistralRsDriver(
            EngineConfig(**arguments),
            engines_root=tmp_path / "engines",
            run_dir=tmp_path / "run",
            ownership=OwnershipLedger(tmp_path / "ownership"),
            environ={"PATH": path_folder, "LANG": "C", "HF_TOKEN": "t0p-s3cret"},
            **{"host": LINUX, "machine": machine, **options},
        )

    return make


def states(found: Availability) -> list[tuple[str, bool]]:
    return [(option.method, option.available) for option in found.options]


def test_a_configured_path_comes_first_and_is_never_replaced(drive: Any, tmp_path: Path) -> None:
    program = fake_mistralrs.install(tmp_path / "fake")
    found = drive(path=str(program)).availability()
    assert (found.state, found.program, found.version) == ("available", program, "v0.9.0")
    assert states(found) == [("path", True)]
    binary = drive(path=str(program)).acquire(quiet)
    assert binary.sha256 == hashlib.sha256(program.read_bytes()).hexdigest()
    gone = drive(path=str(tmp_path / "gone"), path_folder=str(program.parent))
    assert gone.availability().state == "blocked"
    with pytest.raises(EngineBlocked, match=r"engines.mistralrs.path .*gone is no executable file"):
        gone.acquire(quiet)


def test_an_installed_program_on_path_wins(drive: Any, tmp_path: Path) -> None:
    program = fake_mistralrs.install(tmp_path / "fake")
    driver = drive(path_folder=str(program.parent))
    assert states(driver.availability()) == [("search_path", True), ("archive", False)]
    assert driver.acquire(quiet).program == program
    other = drive(path_folder=str(program.parent), version="v0.8.1")
    assert other.availability().state == "blocked"
    assert "it is v0.9.0, the configuration wants v0.8.1" in other.availability().reason


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("#!/bin/sh\necho another program\n", "lists no options; it is not mistralrs"),
        ("#!/bin/sh\nexit 3\n", "exit status 3"),
    ],
)
def test_a_program_that_is_no_engine(drive: Any, tmp_path: Path, script: str, reason: str) -> None:
    program = tmp_path / "mistralrs"
    program.write_text(script)
    program.chmod(0o755)
    with pytest.raises(EngineIncompatible, match=reason):
        drive(path=str(program)).acquire(quiet)


def test_a_build_without_a_needed_option_is_incompatible(drive: Any, tmp_path: Path) -> None:
    program = fake_mistralrs.install(tmp_path / "fake", without=("--max-seq-len",))
    assert drive(path=str(program)).availability().state == "incompatible"
    with pytest.raises(EngineIncompatible, match="--max-seq-len; it is too old"):
        drive(path=str(program)).acquire(quiet)


@pytest.mark.parametrize(
    ("config", "needs"),
    [
        ({}, "set engines.mistralrs.version (v0.9.0) and engines.mistralrs.sha256 of its archive"),
        ({"version": "v0.9.0"}, "set engines.mistralrs.sha256 of the archive of v0.9.0"),
        ({"version": "0.9", "sha256": "0" * 64}, "0.9 is no release of mistral.rs"),
        ({"launch": "uv"}, "launch uv does not exist for it"),
        ({"launch": "container"}, "launch container does not exist for it"),
    ],
)
def test_what_cannot_be_fetched_says_what_to_write(drive: Any, config: dict[str, str], needs: str) -> None:
    found = drive(**config).availability()
    assert found.state == "blocked"
    assert needs in found.reason
    with pytest.raises(EngineBlocked):
        drive(**config).acquire(quiet)


def test_a_machine_without_an_asset_is_incompatible(drive: Any) -> None:
    found = drive(acceleration="vulkan", version="v0.9.0", sha256="0" * 64).availability()
    assert found.state == "incompatible"
    assert "Vulkan" in found.reason


def archive_of(script: str) -> bytes:
    """As the project packs it: the program at the top, libraries of a CUDA build in ``lib``."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in (
            ("./mistralrs", script.encode()),
            ("./lib/libcudart.so.12", b"library"),
            ("./doc/x", b""),
        ):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


@pytest.fixture
def releases(tmp_path: Path) -> Iterator[tuple[str, dict[str, bytes]]]:
    """A release server: (address, files by path)."""
    files: dict[str, bytes] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = files.get(self.path)
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, format: str, *arguments: Any) -> None: ...  # noqa: A002

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", files
        server.shutdown()


def test_a_pinned_archive_is_fetched_once_with_its_libraries(drive: Any, releases: Any) -> None:
    address, files = releases
    content = archive_of(fake_mistralrs.script())
    files["/v0.9.0/mistralrs-cuda-sm90-x86_64-unknown-linux-gnu.tar.gz"] = content
    pin = {"version": "v0.9.0", "sha256": hashlib.sha256(content).hexdigest()}
    driver = drive(releases=address, machine=lambda: machine((9, 0)), **pin)
    assert driver.availability().state == "acquirable"
    binary = driver.acquire(quiet)
    assert (binary.version, binary.method) == ("v0.9.0", "archive")
    assert (binary.program.parent / "lib" / "libcudart.so.12").read_bytes() == b"library"
    assert sorted(path.name for path in binary.program.parent.iterdir()) == ["lib", "mistralrs"]
    files.clear()
    assert driver.acquire(quiet) == binary
    assert drive(network=False, **pin).acquire(quiet).program == binary.program


def test_an_archive_that_is_not_the_pinned_one_is_discarded(drive: Any, releases: Any, tmp_path: Path) -> None:
    address, files = releases
    files["/v0.9.0/mistralrs-cpu-x86_64-unknown-linux-gnu.tar.gz"] = archive_of(fake_mistralrs.script())
    driver = drive(releases=address, version="v0.9.0", sha256="0" * 64)
    with pytest.raises(EngineAcquisitionFailed, match="is not the pinned 000000000000…; it was discarded"):
        driver.acquire(quiet)
    files.clear()
    with pytest.raises(EngineAcquisitionFailed, match="answered HTTP 404"):
        driver.acquire(quiet)
    assert not list((tmp_path / "engines" / "mistralrs").glob("*/bin"))
    offline = drive(network=False, version="v0.9.0", sha256="0" * 64)
    assert "--offline forbids" in offline.availability().reason


def test_the_registry_has_it(tmp_path: Path) -> None:
    drivers = engine_drivers({}, root=tmp_path, ownership=OwnershipLedger(tmp_path / "own"), environ={"PATH": ""})
    assert isinstance(drivers["mistralrs"], MistralRsDriver)


# -- what it is asked to run


def artifact(form: Format) -> ResolvedArtifact:
    variant = Variant(
        id=VariantId("v"), format=form, quant="F16", engines=("mistralrs",), source="file:/models", revision="1",
        files=(), requirements=Requirements(), stability="preview", certification="test",
    )  # fmt: skip
    model = CatalogModel(ModelId("tiny"), "1M", "mit", "tiny", 512, (variant,))
    return ResolvedArtifact("r", model, variant, "mistralrs", ArtifactDigest("0" * 64))


def test_it_serves_safetensors_and_leaves_gguf_to_llama_cpp(drive: Any, tmp_path: Path) -> None:
    driver = drive(path=str(fake_mistralrs.install(tmp_path / "fake")), acceleration="cpu")
    binary = driver.acquire(quiet)
    driver.check(artifact("safetensors"), SPEC, binary)
    with pytest.raises(EngineIncompatible, match="tiny:v is gguf; use llama_cpp"):
        driver.check(artifact("gguf"), SPEC, binary)
    with pytest.raises(EngineIncompatible, match="acceleration is cpu, the plan uses cuda"):
        driver.check(artifact("safetensors"), replace(SPEC, device="cuda"), binary)
    vulkan = drive(path=str(binary.program), acceleration="vulkan")
    with pytest.raises(EngineIncompatible, match="acceleration is vulkan, the plan uses cpu"):
        vulkan.check(artifact("safetensors"), SPEC, binary)
    with pytest.raises(UnsafeArgument):
        driver.check(artifact("safetensors"), replace(SPEC, extra_args=("--port", "1")), binary)


# -- why it ended


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("error: unexpected argument '--bogus' found", ExitKind.BAD_FLAG),
        ("error: invalid value 'x' for '--max-seqs <MAX_SEQS>': invalid digit found in string", ExitKind.BAD_FLAG),
        ("Error: Address already in use (os error 98)", ExitKind.PORT),
        ("Error: DriverError(CUDA_ERROR_OUT_OF_MEMORY)", ExitKind.OUT_OF_MEMORY),
        ("Error: cannot find tensor model.layers.0.self_attn.q_proj.weight", ExitKind.BAD_FILE),
        ("Error: InvalidHeaderDeserialization", ExitKind.BAD_FILE),
        ("thread 'main' panicked at src/main.rs", ExitKind.CRASH),
    ],
)
def test_its_last_words(line: str, kind: ExitKind) -> None:
    redaction = Redaction(Path("/snapshot"), Path("/run"), "")
    assert decide_verdict(1, line, asked_to_stop=False, was_ready=False, redaction=redaction).kind is kind


# -- its process


@pytest.fixture
async def launch(drive: Any, tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Start the stand-in on a real snapshot; ended after the test."""
    driver = drive(path=str(fake_mistralrs.install(tmp_path / "fake")))
    binary = await asyncio.to_thread(driver.acquire, quiet)
    folder = await asyncio.to_thread(write_tiny_llama, tmp_path / "snapshot")
    started: list[LoopbackEngine] = []

    async def start(**changes: Any) -> LoopbackEngine:
        engine = await driver.launch(binary, replace(SPEC, model_path=folder, **changes))
        started.append(engine)
        return engine

    yield start
    for engine in started:
        await engine.stop(0)


def ask(engine: LoopbackEngine, path: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{engine.endpoint.port}{path}", data)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=20) as answer:
        return json.load(answer)


@pytest.mark.e2e
async def test_it_gets_ready_answers_by_its_alias_and_leaves_nothing(
    launch: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine: LoopbackEngine = await launch(extra_args=("--prefix-cache-n", "4"), kv_quant="int8")
    await engine.wait_ready(30)
    assert "kv_quant_substituted deployment=chat engine=mistralrs requested=int8 runs=f16" in caplog.text
    alias = engine.endpoint.alias
    assert await engine.healthy(5)
    argv = (await asyncio.to_thread(ask, engine, "/__argv"))["argv"]
    assert argv[:3] == ["serve", "-m", alias]
    assert argv[-2:] == ["--prefix-cache-n", "4"]
    body = {"model": alias, "messages": [{"role": "user", "content": "The capital of France?"}]}
    answer = await asyncio.to_thread(ask, engine, "/v1/chat/completions", body)
    assert (answer["model"], answer["choices"][0]["message"]["content"]) == (alias, "Paris")
    environ = Path(f"/proc/{engine.pid}/environ").read_bytes()
    assert b"s3cret" not in environ
    assert (await engine.stop(5)).kind is ExitKind.STOPPED
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["logs"]
    assert (tmp_path / "snapshot" / "model.safetensors").is_file()


@pytest.mark.e2e
async def test_cut_off_weights_are_a_bad_file_that_is_not_retried(launch: Any, tmp_path: Path) -> None:
    weights = tmp_path / "snapshot" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    engine: LoopbackEngine = await launch()
    with pytest.raises(EngineLaunchFailed, match=r"bad_file.*MetadataIncompleteBuffer"):
        await engine.wait_ready(30)
    assert not (await engine.exited).worth_retry


@pytest.mark.e2e
async def test_a_flag_that_the_build_refuses_is_a_bad_flag(drive: Any, tmp_path: Path) -> None:
    """Its help says one thing and its parser another, as after an upgrade in place."""
    driver = drive(path=str(fake_mistralrs.install(tmp_path / "fake")))
    binary = await asyncio.to_thread(driver.acquire, quiet)
    fake_mistralrs.install(tmp_path / "fake", without=("--no-ui",))
    engine = await driver.launch(binary, replace(SPEC, model_path=write_tiny_llama(tmp_path / "snapshot")))
    with pytest.raises(EngineLaunchFailed, match=r"bad_flag.*--no-ui"):
        await engine.wait_ready(30)
