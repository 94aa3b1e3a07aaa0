"""Which artifact a name means on a machine, and the typed reasons when it means none (contracts section 16)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sbproxy.catalog.core.identity import artifact_digest
from sbproxy.catalog.core.model import (
    Catalog,
    CatalogFile,
    CatalogModel,
    ModelId,
    Requirements,
    Stability,
    Variant,
    VariantId,
    WorkerFacts,
)
from sbproxy.catalog.core.resolve import find_model, resolve
from sbproxy.catalog.document import builtin_catalog
from sbproxy.errors.catalog import (
    IncompleteCatalogV2,
    NoCompatibleVariant,
    UnknownModel,
    UnknownVariant,
    VariantPinRequired,
)

GIB = 1 << 30
CPU = WorkerFacts(frozenset({"cpu"}), frozenset({"llama_cpp"}), memory_bytes=8 * GIB)


def variant(name: str, *engines: str, needs: Requirements | None = None, stability: Stability = "preview") -> Variant:
    return Variant(
        id=VariantId(name),
        format="gguf",
        quant="Q4",
        engines=engines or ("llama_cpp",),
        source="hf:Org/Repo",
        revision="r",
        files=(CatalogFile("m.gguf", "a" * 64, 1),),
        requirements=needs or Requirements(),
        stability=stability,
        certification="c",
    )


def catalog(*variants: Variant, context_length: int | None = 100) -> Catalog:
    model = CatalogModel(ModelId("qwen-8b"), "8B", "mit", "qwen", context_length, variants)
    return Catalog("r1", {model.id: model, ModelId("other"): replace(model, id=ModelId("other"))})


def reasons(
    *variants: Variant, worker: WorkerFacts = CPU, engine: str = "auto", pin: str | None = None
) -> tuple[str, ...]:
    with pytest.raises(NoCompatibleVariant) as caught:
        resolve(catalog(*variants), "qwen-8b", pin, worker, engine)
    assert caught.value.model == "qwen-8b"
    return caught.value.reasons


def test_the_first_compatible_variant_in_the_catalogs_order() -> None:
    big = variant("big", needs=Requirements(min_memory_bytes=16 * GIB))
    known = catalog(big, variant("b"), variant("a"))
    resolved = resolve(known, "qwen-8b", None, CPU)
    assert (resolved.subject, resolved.engine, resolved.catalog_revision) == ("qwen-8b:b", "llama_cpp", "r1")
    assert resolved.digest == artifact_digest("r1", known.models[ModelId("qwen-8b")], resolved.variant)


def test_a_pin_is_exact() -> None:
    assert resolve(catalog(variant("a"), variant("b")), "qwen-8b", "b", CPU).variant.id == "b"
    big = variant("big", needs=Requirements(min_memory_bytes=16 * GIB))
    assert reasons(variant("a"), big, pin="big") == ("big: needs 16384 MiB of memory, 8192 MiB are there",)


def test_unknown_model_names_the_near_ones() -> None:
    with pytest.raises(UnknownModel) as caught:
        resolve(catalog(variant("a")), "Qwen-7b", None, CPU)
    assert caught.value.near == ("qwen-8b",)
    assert str(caught.value) == "there is no model 'Qwen-7b' in the catalog; did you mean qwen-8b?"
    with pytest.raises(UnknownModel, match="see: sbproxy models list"):
        resolve(catalog(variant("a")), "zzz", None, CPU)


def test_a_family_name_and_a_slip_find_the_built_in_models() -> None:
    known = builtin_catalog()
    for wrong in ("smollm", "smollm2-135m-instrct"):
        with pytest.raises(UnknownModel) as caught:
            find_model(known, wrong)
        assert caught.value.near == ("smollm2-135m-instruct",)


def test_unknown_variant_lists_what_there_is() -> None:
    with pytest.raises(UnknownVariant) as caught:
        resolve(catalog(variant("b"), variant("a")), "qwen-8b", "c", CPU)
    assert caught.value.available == ("b", "a")
    assert str(caught.value) == "model qwen-8b has no variant 'c'; available: b, a"


def test_pin_required() -> None:
    several, one = catalog(variant("a"), variant("b")), catalog(variant("a"))
    with pytest.raises(VariantPinRequired) as caught:
        resolve(several, "qwen-8b", None, CPU, pin_required=True)
    assert caught.value.available == ("a", "b")
    assert resolve(several, "qwen-8b", "b", CPU, pin_required=True).variant.id == "b"
    assert resolve(one, "qwen-8b", None, CPU, pin_required=True).variant.id == "a"


def test_entries_without_exact_files() -> None:
    with pytest.raises(IncompleteCatalogV2, match="has no variants with exact files"):
        resolve(catalog(), "qwen-8b", None, CPU)
    with pytest.raises(IncompleteCatalogV2, match="has no context_length"):
        resolve(catalog(variant("a"), context_length=None), "qwen-8b", None, CPU)


def test_one_reason_for_each_variant() -> None:
    found = reasons(
        variant("a", "vllm"),
        variant("b", stability="config_only"),
        variant("c", stability="unsupported"),
        variant("d", needs=Requirements(accelerators=("cuda", "metal"))),
        variant("e", needs=Requirements(min_memory_bytes=9 * GIB)),
        variant("f", "mistralrs"),
    )
    assert found == (
        "a: no engine for it is available here (vllm)",
        "b: its stability is config_only",
        "c: its stability is unsupported",
        "d: needs cuda or metal, this machine has cpu",
        "e: needs 9216 MiB of memory, 8192 MiB are there",
        "f: its engine must be asked for by name: mistralrs",
    )


def test_a_pin_does_not_select_what_is_never_chosen() -> None:
    assert reasons(variant("a", stability="config_only"), pin="a") == ("a: its stability is config_only",)


def test_engines() -> None:
    worker = replace(CPU, engines=frozenset({"llama_cpp", "mistralrs"}))
    both = catalog(variant("a", "mistralrs", "llama_cpp"))
    assert resolve(both, "qwen-8b", None, worker).engine == "llama_cpp"
    assert resolve(both, "qwen-8b", None, worker, "mistralrs").engine == "mistralrs"
    assert reasons(variant("a"), engine="vllm") == ("a: runs with llama_cpp, not with vllm",)
    assert reasons(variant("a", "vllm"), engine="vllm") == ("a: engine vllm is not available here",)


def test_a_compute_capability_gates_the_cuda_path_only() -> None:
    needs = Requirements(accelerators=("cuda",), min_compute_capability=(8, 9))
    cuda = WorkerFacts(frozenset({"cpu", "cuda"}), frozenset({"llama_cpp"}), 8 * GIB, (8, 0))
    assert reasons(variant("a", needs=needs), worker=cuda) == ("a: needs CUDA compute capability 8.9",)
    assert resolve(catalog(variant("a", needs=needs)), "qwen-8b", None, replace(cuda, compute_capability=(9, 0)))
    on_both = replace(needs, accelerators=("cpu", "cuda"))
    assert resolve(catalog(variant("a", needs=on_both)), "qwen-8b", None, cuda)


def test_unknown_memory_refuses_nothing() -> None:
    needs = Requirements(min_memory_bytes=16 * GIB)
    assert resolve(catalog(variant("a", needs=needs)), "qwen-8b", None, replace(CPU, memory_bytes=None))
