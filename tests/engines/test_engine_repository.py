"""llama.cpp in repository mode: a raw `hf:` reference that the engine fetches itself, with the real engine too."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
from pathlib import Path

import pytest

from sbproxy.config.core.model_host import EngineConfig
from sbproxy.engines.core.argv import Seat, llama_arguments
from sbproxy.engines.core.flags import Flags
from sbproxy.engines.core.model import LaunchSpec
from sbproxy.engines.environment import engine_environment, repository_environment
from sbproxy.engines.llama_cpp import LlamaCppDriver
from sbproxy.engines.ownership import OwnershipLedger
from sbproxy.errors.engines import EngineIncompatible
from support import real_parts
from support.fake_llama_server import known_flags
from support.repository_hub import RepositoryHub

SEAT = Seat(port=4711, alias="m-1", key_file=Path("/run/x/key"), threads=3)
SPEC = LaunchSpec(
    "raw",
    1,
    Path("/cache/hf-home"),
    context_tokens=512,
    parallel=1,
    network=True,
    repository="Org/Small-135M-GGUF:Q4_1",
)


def flags(*more: str) -> Flags:
    rows = known_flags("b10434", [])
    names = frozenset(alias for aliases, _ in rows for alias in aliases)
    valued = frozenset(alias for aliases, takes in rows if takes for alias in aliases)
    return Flags(names=names | set(more), valued=valued | set(more))


def test_the_engine_is_told_a_repository_and_may_use_the_network() -> None:
    words = llama_arguments(flags("--hf-repo", "--hf-file"), SPEC, SEAT)
    assert words[:2] == ("--hf-repo", "Org/Small-135M-GGUF:Q4_1")
    assert not {"--model", "--offline", "--hf-file"} & set(words)
    file = dataclasses.replace(SPEC, repository_file="sub/a.gguf")
    words = llama_arguments(flags("--hf-repo", "--hf-file"), file, SEAT)
    assert words[2:4] == ("--hf-file", "sub/a.gguf")


def test_a_verified_model_stays_offline() -> None:
    words = llama_arguments(flags("--hf-repo"), dataclasses.replace(SPEC, repository=None, network=False), SEAT)
    assert "--offline" in words
    assert "--hf-repo" not in words


def test_a_build_without_repositories_and_a_launch_without_network_are_refused() -> None:
    with pytest.raises(EngineIncompatible, match="--hf-repo"):
        llama_arguments(flags(), SPEC, SEAT)
    with pytest.raises(EngineIncompatible, match="needs the network"):
        llama_arguments(flags("--hf-repo"), dataclasses.replace(SPEC, network=False), SEAT)


def test_the_environment_names_the_folder_and_carries_no_secret() -> None:
    environ = {
        "PATH": "/bin",
        "HF_TOKEN": "canary",
        "HUGGING_FACE_HUB_TOKEN": "canary",
        "HF_ENDPOINT": "http://127.0.0.1:1",
        "HF_HOME": "/root/of/others",
        "https_proxy": "http://127.0.0.1:2",
        "NO_PROXY": "localhost",
        "SB_ADMIN_PASSWORD": "canary",
    }
    assert repository_environment(environ, Path("/c/hf-home")) == {
        "HF_ENDPOINT": "http://127.0.0.1:1",
        "https_proxy": "http://127.0.0.1:2",
        "NO_PROXY": "localhost",
        "HF_HOME": "/c/hf-home",
        "HF_HUB_CACHE": "/c/hf-home/hub",
    }
    assert engine_environment(environ) == {"PATH": "/bin"}


@pytest.mark.e2e
@pytest.mark.real_engine
async def test_the_real_engine_fetches_a_repository_into_its_folder(tmp_path: Path) -> None:
    model = real_parts.real_model_path().read_bytes()
    files = {"small.Q4_1.gguf": model, "README.md": b"# small"}
    with RepositoryHub({"Org/Small-135M-GGUF": files}) as hub:
        program = await asyncio.to_thread(lambda: real_parts.real_binary(tmp_path).program)
        driver = LlamaCppDriver(
            EngineConfig(path=str(program)),
            engines_root=tmp_path / "engines",
            run_dir=tmp_path / "run",
            ownership=OwnershipLedger(tmp_path / "ownership"),
            environ={"PATH": "/usr/bin:/bin", "HF_ENDPOINT": hub.url, "HF_TOKEN": "canary-token"},
        )
        binary = await asyncio.to_thread(driver.acquire, lambda what, done, total: None)
        process = await driver.launch(binary, dataclasses.replace(SPEC, model_path=tmp_path / "hf-home"))
        try:
            await process.wait_ready(60)
        finally:
            await process.stop(5)
    assert set(hub.files_asked()) == {"small.Q4_1.gguf"}
    assert not any("canary-token" in str(headers) for _, headers in hub.asked)
    (stored,) = (tmp_path / "hf-home").rglob("*.gguf")
    assert hashlib.sha256(stored.read_bytes()).hexdigest() == hashlib.sha256(model).hexdigest()
