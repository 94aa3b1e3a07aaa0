"""Rules between the values of an engine's block, and of a deployment that asks for an engine build of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbproxy.config.load import load_text
from sbproxy.errors.config import ConfigInvalid

DIGEST = "a" * 64
E = "proxy.model_host.engines"
D = "proxy.model_host.deployments.d"


def document(engines: str = "{}", deployment: str = "{model: m}") -> str:
    return f"proxy:\n  model_host:\n    engines: {engines}\n    deployments: {{d: {deployment}}}\n"


def refused(text: str) -> dict[str, str]:
    with pytest.raises(ConfigInvalid) as caught:
        load_text(text, path=Path("sb.yml"), environ={})
    return {problem.path: problem.reason for problem in caught.value.problems}


@pytest.mark.parametrize(
    ("engines", "path", "reason"),
    [
        (f"{{vllm: {{launch: container, image: 'vllm:v1@sha256:{DIGEST}'}}}}", "vllm.image", "has a tag beside"),
        ("{vllm: {launch: container, image: 'vllm:latest'}}", "vllm.image", "must be pinned by digest"),
        (
            f"{{llama_cpp: {{launch: container, image: 'x@sha256:{DIGEST}'}}}}",
            "llama_cpp.launch",
            "container is only for",
        ),
        (
            f"{{mistralrs: {{launch: container, image: 'x@sha256:{DIGEST}'}}}}",
            "mistralrs.launch",
            "container is only for",
        ),
        ("{mistralrs: {launch: uv}}", "mistralrs.launch", "uv is only for vllm and sglang"),
        ("{vllm: {launch: uv, path: /opt/vllm}}", "vllm.path", "only used with launch: binary"),
        (f"{{vllm: {{launch: uv, sha256: {DIGEST}}}}}", "vllm.sha256", "pinned by its version alone"),
    ],
)
def test_an_engines_block(engines: str, path: str, reason: str) -> None:
    assert reason in refused(document(engines))[f"{E}.{path}"]


@pytest.mark.parametrize(
    ("deployment", "path", "reason"),
    [
        ("{model: m, engine_version: latest}", "engine_version", "never 'latest'"),
        ("{model: m, engine: vllm, engine_image: 'vllm:v1'}", "engine_image", "must be pinned by digest"),
        (f"{{model: m, engine: llama_cpp, engine_image: 'x@sha256:{DIGEST}'}}", "engine_image", "runs in no container"),
        ("{model: m, engine_sha256: zz}", "engine_sha256", "64 lower-case hex"),
    ],
)
def test_a_deployments_own_engine(deployment: str, path: str, reason: str) -> None:
    assert reason in refused(document(deployment=deployment))[f"{D}.{path}"]


@pytest.mark.parametrize(
    "engines",
    [
        f"{{vllm: {{launch: container, image: 'vllm/vllm-openai@sha256:{DIGEST}', shm_size_gib: 8}}}}",
        f"{{vllm: {{launch: container, image: 'registry.example:5000/vllm@sha256:{DIGEST}'}}}}",
        "{vllm: {launch: uv, version: 0.10.0, acceleration: cuda}}",
        "{sglang: {launch: uv, version: 0.4.6.post1, acceleration: cuda}}",
        "{vllm: {launch: binary, path: /opt/vllm/bin/vllm, acceleration: cpu}}",
    ],
)
def test_what_document_1_shows_is_accepted(engines: str) -> None:
    text = document(engines, f"{{model: m, engine: vllm, engine_image: 'vllm@sha256:{DIGEST}'}}")
    assert load_text(text, path=Path("sb.yml"), environ={}).config.proxy.model_host.engines


def test_a_build_that_the_host_pins_otherwise() -> None:
    engines = f"{{vllm: {{launch: uv, version: 0.10.0}}, llama_cpp: {{sha256: {DIGEST}}}}}"
    found = refused(document(engines, "{model: m, engine: vllm, engine_version: 0.11.0}"))
    assert found == {f"{D}.engine_version": f"contradicts {E}.vllm.version, which is 0.10.0"}
    found = refused(document(engines, f"{{model: m, engine: llama_cpp, engine_sha256: {'b' * 64}}}"))
    assert list(found) == [f"{D}.engine_sha256"]
    same = document(engines, "{model: m, engine: vllm, engine_version: 0.10.0}")
    assert load_text(same, path=Path("sb.yml"), environ={})
