"""Which deployments name a model or variant that the catalog does not have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sbproxy.config.core.document import SbConfig
from sbproxy.config.core.findings import Finding
from sbproxy.config.core.model_errors import nearest
from sbproxy.config.core.tree import KeyPath, quoted

CATALOG_FILE: KeyPath = ("proxy", "model_host", "catalog_file")


def reference_findings(config: SbConfig, models: Mapping[str, tuple[str, ...]]) -> Iterator[Finding]:
    """``models`` maps each model id of the catalog to its variant ids."""
    read: tuple[KeyPath, ...] = (CATALOG_FILE,)
    for deployment_id, deployment in config.proxy.model_host.deployments.items():
        path: KeyPath = ("proxy", "model_host", "deployments", deployment_id)
        variants = models.get(deployment.model)
        if variants is None:
            reason = f"there is no model {quoted(deployment.model)} in the catalog"
            yield Finding((*path, "model"), reason, nearest(deployment.model, tuple(models)), depends_on=read)
        elif not variants:
            yield Finding((*path, "model"), "the catalog has no exact variants of this model", depends_on=read)
        elif deployment.variant is not None and deployment.variant not in variants:
            reason = f"model {deployment.model} has no variant {quoted(deployment.variant)}"
            near = nearest(deployment.variant, variants)
            yield Finding((*path, "variant"), reason, near, variants, depends_on=(*read, (*path, "model")))
