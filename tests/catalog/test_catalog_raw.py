"""Raw references of `serve:` blocks as stand-ins in the catalog: found by a resolution, never taken for verified."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sbproxy.catalog.core.model import ResolvedArtifact, WorkerFacts
from sbproxy.catalog.core.raw_reference import UNVERIFIED
from sbproxy.catalog.core.resolve import resolve
from sbproxy.catalog.document import builtin_catalog
from sbproxy.catalog.raw_files import with_raw_references
from sbproxy.config.load import load_text
from sbproxy.modelhost.core.memory_fit import weight_bytes

ALL = WorkerFacts(frozenset({"cpu", "cuda", "metal"}), frozenset({"llama_cpp", "vllm", "sglang", "mistralrs"}))


def resolved(entry: str, worker: WorkerFacts = ALL) -> ResolvedArtifact:
    """The artifact of the one deployment that ``entry`` is lowered to."""
    text = (
        "origins: {localhost: {action: {type: ai_proxy, providers: [{name: l, serve: {models: [{name: n, "
        f"{entry}}}]}}}}]}}}}}}"
    )
    loaded = load_text(text, path=Path("/etc/sb.yml"), environ={})
    catalog = with_raw_references(builtin_catalog(), loaded.served.values())
    assert catalog.catalog_revision == builtin_catalog().catalog_revision
    assert builtin_catalog().models.items() <= catalog.models.items()
    (deployment,) = loaded.config.proxy.model_host.deployments.values()
    return resolve(catalog, deployment.model, deployment.variant, worker, deployment.engine)


REPOSITORIES = [
    ("model: 'hf:Org/Small-1B-GGUF'", "llama_cpp", "Org/Small-1B-GGUF", None, "Q4_K_M"),
    ("model: 'hf:Org/Small-1B-GGUF:Q8_0'", "llama_cpp", "Org/Small-1B-GGUF:Q8_0", None, "Q8_0"),
    ("model: 'hf:Org/Small-1B', gguf_file: a.q5_k_m.gguf", "llama_cpp", "Org/Small-1B", "a.q5_k_m.gguf", "Q5_K_M"),
    ("model: 'hf:Org/Small-1B', engine: llama_cpp", "llama_cpp", "Org/Small-1B", None, "Q4_K_M"),
    ("model: 'hf:Org/Small-1B'", "vllm", "Org/Small-1B", None, "unknown"),
    ("model: 'hf:Org/Small-1B', engine: sglang", "sglang", "Org/Small-1B", None, "unknown"),
]


@pytest.mark.parametrize(("entry", "engine", "repository", "file", "quant"), REPOSITORIES)
def test_a_repository_is_for_its_engine_to_fetch(
    entry: str, engine: str, repository: str, file: str | None, quant: str
) -> None:
    artifact = resolved(entry)
    variant = artifact.variant
    assert (artifact.engine, variant.repository, variant.repository_file, variant.quant) == (
        engine, repository, file, quant,
    )  # fmt: skip
    assert variant.format == ("gguf" if engine == "llama_cpp" else "safetensors")
    assert variant.unverified
    assert variant.certification == UNVERIFIED
    assert artifact.model.context_length == 4096


@pytest.mark.parametrize(
    ("name", "params"),
    [("Qwen2.5-0.5B-Instruct", "0.5B"), ("SmolLM2-135m", "135M"), ("Mixtral-8x7B-v0.1", "8x7B"), ("X-30B-A3B", "30B")],
)
def test_the_memory_of_a_repository_comes_from_its_name(name: str, params: str) -> None:
    artifact = resolved(f"model: 'hf:Org/{name}'")
    assert artifact.model.params == params
    assert weight_bytes(artifact.variant, params) > 100 << 20


def test_what_the_entry_says_of_the_task_and_the_context_counts() -> None:
    model = resolved("model: 'hf:Org/Embed-1B', modality: embedding, max_context: 512").model
    assert (model.modality, model.context_length) == ("embedding", 512)


def test_a_file_is_used_in_place_and_a_changed_one_is_another_artifact(tmp_path: Path) -> None:
    path = tmp_path / "tiny-model.q4_1.gguf"
    path.write_bytes(b"GGUF" + bytes(5_600_000))
    first = resolved(f"model: 'file:{path}'")
    variant = first.variant
    assert (first.engine, variant.quant, variant.in_place, variant.repository) == ("llama_cpp", "Q4_1", True, None)
    assert variant.source == f"file:{path}"
    assert [file.path for file in variant.files] == [path.name]
    assert variant.total_size_bytes == weight_bytes(variant, first.model.params) == path.stat().st_size
    assert first.model.params == "10M", "guessed from the size, as the name tells none"
    assert resolved(f"model: 'file:{path}'").digest == first.digest
    os.utime(path, ns=(1, 1))
    assert resolved(f"model: 'file:{path}'").digest != first.digest


def test_a_file_that_is_not_there_yet_still_resolves(tmp_path: Path) -> None:
    artifact = resolved(f"model: 'file:{tmp_path}/none.gguf'")
    assert artifact.variant.revision == "missing"


def test_without_raw_references_the_catalog_is_the_same_object() -> None:
    loaded = load_text(
        "origins: {a: {action: {type: ai_proxy, providers: [{name: l, serve: {models: [{model: m}]}}]}}}",
        path=Path("/etc/sb.yml"),
        environ={},
    )
    assert with_raw_references(builtin_catalog(), loaded.served.values()) is builtin_catalog()
