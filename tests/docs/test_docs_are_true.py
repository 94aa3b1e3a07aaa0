"""Documentation that code can check: key tables equal the models, YAML loads, commands exist, links resolve."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from sbproxy.config.core.document import AdminConfig, AdminTlsConfig, OperatorConfig, ProxyConfig
from sbproxy.config.core.key_management import (
    CredentialSeed,
    GovernanceBackend,
    GovernanceConfig,
    InboundConfig,
    InboundHeader,
    KeyCacheConfig,
    KeyCryptoConfig,
    KeyManagementConfig,
    KeySeed,
    KeyStoreConfig,
    SeedConfig,
    StaticCredential,
)
from sbproxy.config.core.model_host import CacheConfig, DeploymentConfig, EngineConfig, ModelHostConfig
from sbproxy.config.core.origins import AiProxyAction, OriginConfig, ProviderConfig
from sbproxy.config.core.serve import ServeConfig, ServeModelConfig
from sbproxy.config.load import load_text
from sbproxy.config.schema import schema
from sbproxy.engines.core.extra_args import ALLOWED
from support.config_uses import remark

ROOT = Path(__file__).resolve().parents[2]
DEFINITIONS = schema()["$defs"]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS: dict[str, type[BaseModel]] = {
    "proxy": ProxyConfig,
    "proxy.admin": AdminConfig,
    "proxy.admin.operators[]": OperatorConfig,
    "proxy.admin.tls": AdminTlsConfig,
    "proxy.model_host": ModelHostConfig,
    "proxy.model_host.cache": CacheConfig,
    "proxy.model_host.engines.NAME": EngineConfig,
    "proxy.model_host.deployments.ID": DeploymentConfig,
    "proxy.key_management": KeyManagementConfig,
    "proxy.key_management.store": KeyStoreConfig,
    "proxy.key_management.cache": KeyCacheConfig,
    "proxy.key_management.crypto": KeyCryptoConfig,
    "proxy.key_management.inbound": InboundConfig,
    "proxy.key_management.inbound.headers[]": InboundHeader,
    "proxy.key_management.governance": GovernanceConfig,
    "proxy.key_management.governance.backend": GovernanceBackend,
    "proxy.key_management.seed": SeedConfig,
    "proxy.key_management.seed.keys[]": KeySeed,
    "proxy.key_management.seed.credentials[]": CredentialSeed,
    "origins.HOST": OriginConfig,
    "origins.HOST.credentials[]": StaticCredential,
    "origins.HOST.action": AiProxyAction,
    "origins.HOST.action.providers[]": ProviderConfig,
    "origins.HOST.action.providers[].serve": ServeConfig,
    "origins.HOST.action.providers[].serve.models[]": ServeModelConfig,
}


def default_of(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value is None:
        return "unset"
    if isinstance(value, SecretStr):
        return f"`{value.get_secret_value()}`"
    if isinstance(value, BaseModel):
        return "see below"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def key_table(path: str, model: type[BaseModel]) -> str:
    rows = [f"### `{path}`", "", "| key | default | meaning |", "|---|---|---|"]
    for name, field in model.model_fields.items():
        meaning = f"{meaning_of(model, name)} {remark(path, model, name)}".strip()
        shown = meaning.replace("|", "\\|").replace("\n", " ")
        rows.append(f"| `{name}` | {default_of(field)} | {shown} |")
    return "\n".join(rows)


def meaning_of(model: type[BaseModel], name: str) -> str:
    """What the JSON Schema tells an editor; for a block, the first line about it."""
    written = DEFINITIONS[model.__name__]["properties"][name].get("description")
    if written:
        return str(written)
    field = model.model_fields[name]
    for kind in (field.annotation, *typing.get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return (kind.__doc__ or "").split("\n")[0]
    return ""


def generated() -> str:
    tables = "\n\n".join(key_table(path, model) for path, model in BLOCKS.items())
    flags = ", ".join(f"`{flag}`" for flag in sorted(ALLOWED))
    return f"{tables}\n\n### `extra_args` of llama.cpp\n\nThese, and nothing else: {flags}.\n"


def test_the_key_tables_of_configuration_md_are_those_of_the_models() -> None:
    page = ROOT / "docs" / "configuration.md"
    before, rest = page.read_text().split("<!-- keys: generated, see tests/docs -->\n")
    _, after = rest.split("<!-- end of keys -->")
    wanted = f"{before}<!-- keys: generated, see tests/docs -->\n{generated()}<!-- end of keys -->{after}"
    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        page.write_text(wanted)
    assert page.read_text() == wanted, "run this test with UPDATE_SNAPSHOTS=1"


@pytest.mark.parametrize(
    ("path", "name", "expected"),
    [
        ("proxy.model_host", "store_path", ""),
        ("proxy.model_host", "authority", "(not in this version: `cluster_authority`)"),
        ("proxy.model_host", "safety_margin", ""),
        ("proxy.model_host.cache", "directory", ""),
        ("proxy.model_host.engines.NAME", "launch", ""),
        ("proxy.model_host.engines.NAME", "image", ""),
        ("proxy.model_host.engines.NAME", "sha256", ""),
        ("proxy.model_host.deployments.ID", "heterogeneous_variants", "(only `false` in this version)"),
        ("proxy.model_host.deployments.ID", "required_labels", "(not in this version)"),
        ("proxy.model_host.deployments.ID", "spread_by", "(not in this version)"),
        ("proxy.model_host.deployments.ID", "replicas", ""),
        ("proxy.model_host.deployments.ID", "warm", ""),
        ("proxy.model_host.deployments.ID", "model", ""),
        ("origins.HOST.action.providers[].serve", "queue_timeout_ms", ""),
        ("origins.HOST.action.providers[].serve.models[]", "keep_alive", ""),
        ("origins.HOST.action.providers[]", "timeout_ms", ""),
    ],
)
def test_what_this_version_lacks_is_found_by_asking_the_loader(path: str, name: str, expected: str) -> None:
    assert remark(path, BLOCKS[path], name) == expected


def test_every_key_has_a_meaning() -> None:
    silent = [
        f"{path}.{name}" for path, model in BLOCKS.items() for name in model.model_fields if not meaning_of(model, name)
    ]
    assert silent == []


def fenced(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


CONFIGS = [
    (page.name, block) for page in PAGES for block in fenced(page, "yaml") if "proxy" in (yaml.safe_load(block) or {})
]


def test_there_are_configurations_in_the_docs() -> None:
    assert len(CONFIGS) >= 2


@pytest.mark.parametrize(("name", "block"), CONFIGS)
def test_configurations_in_the_docs_load(name: str, block: str, tmp_path: Path) -> None:
    loaded = load_text(block, path=tmp_path / "sb.yml", environ={}, resolve_secrets=False)
    assert loaded.warnings == () or all("not set" in str(warning) for warning in loaded.warnings)


def test_links_resolve() -> None:
    broken = [
        f"{page.name}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []


COMMAND = re.compile(r"(?:^|\s)(?:\.venv/bin/)?sbproxy ((?:[a-z-]+ ?){1,3})", re.MULTILINE)


def commands() -> set[tuple[str, ...]]:
    """`sbproxy NOUN VERB` as shell blocks of the docs write it."""
    groups = {"models", "config", "admin"}
    found = set()
    for page in PAGES:
        for block in fenced(page, "sh"):
            for words in COMMAND.findall(block):
                parts = words.split()
                found.add(tuple(parts[:2] if parts[0] in groups else parts[:1]))
    return found


@pytest.mark.parametrize("words", sorted(commands()), ids=" ".join)
def test_commands_in_the_docs_exist(words: tuple[str, ...]) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "sbproxy_cli", *words, "--help"], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    assert "Usage" in run.stdout
