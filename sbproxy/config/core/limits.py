"""Values that the documents define and this version cannot carry out yet: refused by name, never accepted and ignored.

Whoever builds one removes its line. Names without any place in the block types stand in ``core.unsupported``.
"""

from __future__ import annotations

from collections.abc import Iterator

from sbproxy.config.core.document import SbConfig
from sbproxy.config.core.findings import Finding
from sbproxy.config.core.key_management import KeyManagementConfig
from sbproxy.config.core.model_host import DeploymentConfig, ModelHostConfig
from sbproxy.config.core.tree import KeyPath
from sbproxy.config.core.unsupported import NOT_YET

_HOST: KeyPath = ("proxy", "model_host")


def limit_findings(config: SbConfig) -> Iterator[Finding]:
    """Everything in the document that only a later version does."""
    host = config.proxy.model_host
    yield from _host(host)
    yield from _keys(config.proxy.key_management)
    for deployment_id, deployment in host.deployments.items():
        yield from _deployment(deployment, (*_HOST, "deployments", deployment_id))


def _refuse(path: KeyPath, what: str, instead: str = "") -> Finding:
    return Finding(path, f"{what} {NOT_YET}{f'; {instead}' if instead else ''}")


def _keys(config: KeyManagementConfig) -> Iterator[Finding]:
    if config.governance.missing_rate != "zero_cost":
        path = ("proxy", "key_management", "governance", "missing_rate")
        yield _refuse(path, config.governance.missing_rate, "use zero_cost")


def _host(host: ModelHostConfig) -> Iterator[Finding]:
    if host.authority == "cluster_authority":
        yield _refuse((*_HOST, "authority"), host.authority, "use file_managed or admin_managed")


def _deployment(deployment: DeploymentConfig, path: KeyPath) -> Iterator[Finding]:
    if deployment.heterogeneous_variants:
        yield _refuse((*path, "heterogeneous_variants"), "true")
    chunks = deployment.chunked_prefill
    if chunks is not None and chunks.target_ttft_ms is not None:
        what = "choosing the step from a wished time"
        yield _refuse((*path, "chunked_prefill", "target_ttft_ms"), what, "give max_batched_tokens")
    if deployment.required_labels:
        yield _refuse((*path, "required_labels"), "placement by label")
    if deployment.spread_by:
        yield _refuse((*path, "spread_by"), "spreading replicas")
