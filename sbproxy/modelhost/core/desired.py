"""What a new desired state means against the running one: the plan, and what this host refuses to take on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sbproxy.catalog.core.model import ArtifactDigest, Catalog
from sbproxy.config.core.model_host import DeploymentConfig, ModelHostConfig
from sbproxy.errors.modelhost import InvalidDesired


@dataclass(frozen=True, slots=True)
class Desired:
    """One deployment with the exact artifact and engine it resolved to. Equal values need no new generation."""

    config: DeploymentConfig
    digest: ArtifactDigest
    engine: str


@dataclass(frozen=True, slots=True)
class DesiredPlan:
    """Deployment ids by what happens to them, each sorted (contracts section 14)."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    preserved: tuple[str, ...]


def plan(old: Mapping[str, Desired], new: Mapping[str, Desired]) -> DesiredPlan:
    """Compare two whole maps."""
    both = sorted(old.keys() & new.keys())
    return DesiredPlan(
        added=tuple(sorted(new.keys() - old.keys())),
        changed=tuple(name for name in both if old[name] != new[name]),
        removed=tuple(sorted(old.keys() - new.keys())),
        preserved=tuple(name for name in both if old[name] == new[name]),
    )


def unsupported(config: ModelHostConfig) -> Iterator[InvalidDesired]:
    """Settings that mean something only among several nodes, each by name."""
    if config.authority == "cluster_authority":
        yield InvalidDesired(
            "", "authority", "cluster_authority is not supported by this version; use file_managed or admin_managed"
        )
    for name, deployment in config.deployments.items():
        for field, refused in (
            ("heterogeneous_variants", deployment.heterogeneous_variants),
            ("required_labels", bool(deployment.required_labels)),
            ("spread_by", bool(deployment.spread_by)),
        ):
            if refused:
                yield InvalidDesired(name, field, "it places replicas on several nodes, and this host is one")


def foundation_change(old: tuple[Catalog, ModelHostConfig], new: tuple[Catalog, ModelHostConfig]) -> str | None:
    """The first foundation field that differs, by its name in sb.yml; it may not change under resident engines."""
    (old_catalog, old_config), (new_catalog, new_config) = old, new
    if old_config.cache.directory != new_config.cache.directory:
        return "cache.directory"
    if old_catalog.catalog_revision != new_catalog.catalog_revision:
        return "catalog_revision"
    return "engines" if old_config.engines != new_config.engines else None
