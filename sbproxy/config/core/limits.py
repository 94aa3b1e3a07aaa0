"""Values that the documents define and this version cannot carry out yet: refused by name, never accepted and ignored.

Whoever builds one removes its line. Names without any place in the block types stand in ``core.unsupported``.
"""

from __future__ import annotations

from collections.abc import Iterator

from sbproxy.config.core.document import SbConfig
from sbproxy.config.core.findings import Finding
from sbproxy.config.core.model_host import DeploymentConfig, EngineConfig, ModelHostConfig
from sbproxy.config.core.tree import KeyPath
from sbproxy.config.core.unsupported import NOT_YET

_HOST: KeyPath = ("proxy", "model_host")


def limit_findings(config: SbConfig) -> Iterator[Finding]:
    """Everything in the document that only a later version does."""
    host = config.proxy.model_host
    yield from _host(host)
    for name, engine in host.engines.items():
        yield from _engine(name, engine, (*_HOST, "engines", name))
    for deployment_id, deployment in host.deployments.items():
        yield from _deployment(deployment, (*_HOST, "deployments", deployment_id))


def _refuse(path: KeyPath, what: str, instead: str = "") -> Finding:
    return Finding(path, f"{what} {NOT_YET}{f'; {instead}' if instead else ''}")


def _host(host: ModelHostConfig) -> Iterator[Finding]:
    if host.authority != "file_managed":
        yield _refuse((*_HOST, "authority"), host.authority, "use file_managed")
    if host.store_path is not None:
        yield _refuse((*_HOST, "store_path"), "a deployment store")
    if host.handoff_timeout_ms != ModelHostConfig.model_fields["handoff_timeout_ms"].default:
        yield _refuse((*_HOST, "handoff_timeout_ms"), "a handoff time-out")
    if host.cache.budget_gib is not None:
        yield _refuse((*_HOST, "cache", "budget_gib"), "a cache budget", "use: sbproxy models prune")
    if host.cache.max_resident_models is not None:
        yield _refuse((*_HOST, "cache", "max_resident_models"), "eviction by count", "use keep_alive_secs")


def _engine(name: str, engine: EngineConfig, path: KeyPath) -> Iterator[Finding]:
    if name != "llama_cpp":
        yield _refuse(path, f"the engine {name}", "use llama_cpp")
    if engine.launch != "binary":
        yield _refuse((*path, "launch"), f"launch {engine.launch}", "use binary")


def _deployment(deployment: DeploymentConfig, path: KeyPath) -> Iterator[Finding]:
    if deployment.engine not in ("auto", "llama_cpp"):
        yield _refuse((*path, "engine"), f"the engine {deployment.engine}", "use auto or llama_cpp")
    if deployment.replicas > 1:
        yield _refuse((*path, "replicas"), "more than one replica")
    if deployment.tensor_parallel is not None and deployment.tensor_parallel > 1:
        yield _refuse((*path, "tensor_parallel"), "tensor parallelism")
    if deployment.heterogeneous_variants:
        yield _refuse((*path, "heterogeneous_variants"), "true")
    if deployment.required_labels:
        yield _refuse((*path, "required_labels"), "placement by label")
    if deployment.spread_by:
        yield _refuse((*path, "spread_by"), "spreading replicas")
    if deployment.cold_start == "fallback":
        yield _refuse((*path, "cold_start"), "fallback", "use wait or reject")
