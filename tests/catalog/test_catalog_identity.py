"""The artifact digest: one encoding (RFC 8785), made of the identity and nothing else."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbproxy.catalog.core.canonical import canonical_json
from sbproxy.catalog.core.identity import artifact_digest
from sbproxy.catalog.core.model import CatalogFile, ModelId, VariantId, WheelPin
from sbproxy.catalog.document import builtin_catalog

MODEL = builtin_catalog().models[ModelId("qwen2.5-0.5b-instruct")]
VARIANT = MODEL.variants[0]


def test_string_of_the_rfc() -> None:
    # RFC 8785, section 3.2.2: the string of the example, as its canonical form spells it.
    text = '€$\u000f\nA\'B"\\\\"/'
    assert canonical_json(text) == b'"\xe2\x82\xac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"'


def test_order_of_names_of_the_rfc() -> None:
    # RFC 8785, section 3.2.3: names are ordered by UTF-16 code units, so the emoji stands before U+FB33.
    names = {"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\u0080": 6, "\u00f6": 7}
    assert list(json.loads(canonical_json(dict(names))).values()) == [2, 4, 6, 7, 1, 5, 3]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, b"0"),
        (-1, b"-1"),
        (9007199254740991, b"9007199254740991"),
        (-9007199254740991, b"-9007199254740991"),
        (True, b"true"),
        (None, b"null"),
        ([], b"[]"),
        ({}, b"{}"),
        ({"b": [1, "x"], "a": {}}, b'{"a":{},"b":[1,"x"]}'),
        ('\b\t\n\f\r"\\\x00\x1f\x7f/', b'"\\b\\t\\n\\f\\r\\"\\\\\\u0000\\u001f\x7f/"'),
    ],
)  # fmt: skip
def test_values(value: object, text: bytes) -> None:
    assert canonical_json(value) == text  # type: ignore[arg-type]


def test_values_without_an_encoding() -> None:
    with pytest.raises(ValueError, match="beyond"):
        canonical_json(9007199254740992)
    with pytest.raises(ValueError, match="surrogates not allowed"):
        canonical_json("\ud800")


plain_text = st.text(st.characters(blacklist_categories=("Cs",)))
values = st.recursive(
    st.none() | st.booleans() | st.integers(1 - 2**53, 2**53 - 1) | plain_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(plain_text, inner, max_size=4),
    max_leaves=10,
)


@given(values)
def test_a_reader_gets_the_value_back_and_the_encoding_is_stable(value: object) -> None:
    encoded = canonical_json(value)  # type: ignore[arg-type]
    assert json.loads(encoded) == value
    assert canonical_json(json.loads(encoded)) == encoded


def test_digest_of_the_identity_written_out() -> None:
    identity = (
        '{"catalog_revision":"r1",'
        '"files":[{"path":"qwen2.5-0.5b-instruct-q4_k_m.gguf",'
        '"sha256":"74a4da8c9fdbcd15bd1f6d01d621410d31c6fc00986f5eb687824e7b93d7a9db","size_bytes":491400032}],'
        '"format":"gguf","logical_model":"qwen2.5-0.5b-instruct","quant":"Q4_K_M",'
        '"revision":"9217f5db79a29953eb74d5343926648285ec7e67",'
        '"source":"hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF","variant_id":"q4_k_m"}'
    )
    assert artifact_digest("r1", MODEL, VARIANT) == hashlib.sha256(identity.encode()).hexdigest()


def test_what_changes_the_digest_and_what_does_not() -> None:
    digest = artifact_digest("r1", MODEL, VARIANT)
    file = VARIANT.files[0]
    for other in (
        replace(VARIANT, id=VariantId("x")),
        replace(VARIANT, quant="Q5"),
        replace(VARIANT, source="hf:A/B"),
        replace(VARIANT, revision="x"),
        replace(VARIANT, format="pickle"),
        replace(VARIANT, files=(replace(file, size_bytes=1),)),
        replace(VARIANT, files=(file, CatalogFile("x", "0" * 64, 1))),
    ):
        assert artifact_digest("r1", MODEL, other) != digest
    assert artifact_digest("r2", MODEL, VARIANT) != digest
    assert artifact_digest("r1", replace(MODEL, id=ModelId("x")), VARIANT) != digest
    for same in (
        replace(VARIANT, engines=("vllm",)),
        replace(VARIANT, certification="x", stability="stable"),
        replace(VARIANT, wheels=(WheelPin("d", "1", "0" * 64),)),
        replace(VARIANT, files=(replace(file, member="x"),)),
    ):
        assert artifact_digest("r1", replace(MODEL, modality="embedding"), same) == digest
