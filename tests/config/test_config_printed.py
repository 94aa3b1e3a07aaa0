"""The effective document: complete, masked, and readable again as the same configuration; the schema beside it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sbproxy.config.load import Loaded, load_text
from sbproxy.config.printed import as_json, as_yaml
from sbproxy.config.schema import schema, schema_text
from sbproxy.daemon.checks import load_checked

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*/sb.yml"))
SCHEMA_LINE = "# yaml-language-server: $schema=../../docs/sb-config.schema.json"


def load(text: str) -> Loaded:
    return load_text(text, path=Path("/etc/sbproxy/sb.yml"), environ={"PW": "s3"})


def test_every_default_is_filled_in() -> None:
    printed = json.loads(as_json(load("proxy: {}")))
    assert printed["proxy"]["http_bind_port"] == 8080
    assert printed["proxy"]["bind_address"] == "0.0.0.0"
    assert printed["proxy"]["admin"]["port"] == 9090
    assert printed["proxy"]["admin"]["rate_limit_per_minute"] == 240
    assert printed["proxy"]["admin"]["password"] == "***MASKED***"
    host = printed["proxy"]["model_host"]
    assert host["authority"] == "file_managed"
    assert host["max_parallel_prepares"] == 2
    assert host["safety_margin"] == 0.1
    assert host["shutdown_deadline_ms"] == 30000
    assert host["handoff_timeout_ms"] == 60000


def test_relative_paths_start_at_the_directory_of_the_file() -> None:
    text = """
proxy:
  admin: {tls: {cert: tls/a.pem, key: /k.pem}}
  model_host: {catalog_file: ../c.yml, engines: {llama_cpp: {path: bin/llama-server}}}
"""
    config = load(text).config
    assert config.proxy.admin.tls is not None
    assert config.proxy.admin.tls.cert == "/etc/sbproxy/tls/a.pem"
    assert config.proxy.admin.tls.key == "/k.pem"
    assert config.proxy.model_host.catalog_file == "/etc/sbproxy/../c.yml"
    assert config.proxy.model_host.engines["llama_cpp"].path == "/etc/sbproxy/bin/llama-server"


def test_revision_and_content_hash() -> None:
    first, spaced, other = load("proxy: {}"), load("proxy:  {}"), load("proxy: {http_bind_port: 8081}")
    assert first.revision == spaced.revision != other.revision
    assert first.content_hash != spaced.content_hash
    assert first.content_hash == hashlib.sha256(b"proxy: {}").hexdigest()[:12]


line = st.text(st.characters(blacklist_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1, max_size=20).filter(
    lambda text: "${" not in text and not any("\ufdd0" <= char <= "\ufdd2" for char in text)
)
opaque = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | line,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(line, inner, max_size=3),
    max_leaves=8,
)
deployments = st.dictionaries(
    st.from_regex(r"[A-Za-z0-9._-]{1,12}", fullmatch=True),
    st.fixed_dictionaries({"model": st.just("m"), "extra_args": st.lists(st.text("-x= 1e0~!", max_size=6))}),
    max_size=3,
)
proxies = st.fixed_dictionaries(
    {
        "http_bind_port": st.integers(1, 65535),
        "admin": st.fixed_dictionaries({"username": line, "password": st.just("${PW}")}),
        "extensions": st.dictionaries(line, opaque, max_size=3),
        "model_host": st.fixed_dictionaries(
            {"safety_margin": st.floats(0, 1, exclude_max=True), "deployments": deployments}
        ),
    }
)


def origin(models: list[str], mapped: dict[str, str]) -> dict[str, Any]:
    provider = {"name": "openai", "models": models, "model_map": mapped}
    return {"action": {"type": "ai_proxy", "providers": [provider]}}


hosts = st.from_regex(r"[a-z0-9]{1,8}(\.[a-z0-9]{1,4})?", fullmatch=True)
origins = st.builds(origin, st.lists(line, max_size=3), st.dictionaries(line, line, max_size=2))
documents = st.fixed_dictionaries({"proxy": proxies, "origins": st.dictionaries(hosts, origins, max_size=2)})


@settings(deadline=None, max_examples=30)
@given(documents)
def test_what_is_printed_loads_as_the_same_configuration(document: dict[str, Any]) -> None:
    first = load(json.dumps(document))
    # Opaque secrets are masked by name, so such a document is allowed to differ.
    again = load(as_yaml(first))
    assert again.config == first.config or "***MASKED***" in as_yaml(first)
    assert again.revision == first.revision
    assert load(as_json(first)).config == again.config


def test_text_that_looks_like_something_else_is_quoted() -> None:
    looks = [
        "1e3",
        "0o17",
        "true",
        "yes",
        "null",
        "~",
        "",
        "1:30",
        "<<",
        "=",
        "0x1f",
        "1_000",
        "2024-01-01",
        "a: b",
        "# c",
        "-",
    ]
    text = json.dumps(
        {"proxy": {"admin": {"password": "${PW}"}, "extensions": {"v": looks, **dict.fromkeys(looks, 1)}}}
    )
    first = load(text)
    assert load(as_yaml(first)).config == first.config


def test_the_schema_in_docs_is_that_of_the_types() -> None:
    stored = (ROOT / "docs" / "sb-config.schema.json").read_text(encoding="utf-8")
    assert stored == schema_text(), "write it anew: sbproxy config schema > docs/sb-config.schema.json"


def test_the_schema_describes_every_key_and_hides_every_secret() -> None:
    document = schema()
    assert document["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    blocks = [document, *document["$defs"].values()]
    for block in blocks:
        assert block["description"], block["title"]
        for name, field in block["properties"].items():
            assert field.get("description"), f"{block['title']}.{name}"
    assert all(block["additionalProperties"] is False for block in document["$defs"].values())
    assert "additionalProperties" not in document
    assert "changeme" not in schema_text()
    port = document["$defs"]["AdminConfig"]["properties"]["port"]
    assert {"maximum": 65535, "minimum": 1, "type": "integer"} in port["anyOf"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_example_validates(path: Path) -> None:
    assert path.read_text(encoding="utf-8").splitlines()[0] == SCHEMA_LINE
    loaded = load_checked(path, {}, resolve_secrets=False).loaded
    assert all("is not set" in warning.reason for warning in loaded.warnings)
    # A plain YAML 1.1 reader sees the same document.
    assert yaml.safe_load(path.read_text(encoding="utf-8")).keys() <= {"proxy", "origins"}


def test_there_are_examples() -> None:
    assert {path.parent.name for path in EXAMPLES} >= {"model-host-managed", "openai-provider"}
