"""The lockfile of a configuration: made, read, and held against what this machine would run and has in its cache."""

from __future__ import annotations

import time
from pathlib import Path

from sbproxy.artifacts.core.lockfile import (
    MAX_BYTES,
    NAME,
    Checked,
    LockedEngine,
    LockedFile,
    LockedModel,
    Lockfile,
    compare,
    decode,
    encode,
)
from sbproxy.artifacts.core.model import ArtifactState
from sbproxy.artifacts.disk import content, write_atomically
from sbproxy.catalog.core.model import CatalogFile, ResolvedArtifact
from sbproxy.config.core.model_host import DeploymentConfig, EngineConfig
from sbproxy.daemon.desired_state import stored_deployments
from sbproxy.errors.cli import LockDrift, LockfileUnusable
from sbproxy_cli.local import Local, open_local


def beside(config: Path) -> Path:
    """Where the lockfile of a configuration is."""
    return config.parent / NAME


def lock_of(local: Local, place: Path) -> Lockfile:
    """What the configured deployments mean on this machine now. Raises LockfileUnusable for a raw reference, leaves of
    CatalogError, DesiredStoreFailed."""
    models = []
    for name, deployment in sorted(stored_deployments(local.host).items()):
        artifact = local.resolve(deployment.model, deployment.variant, deployment.engine)
        if artifact.variant.unverified:
            reason = f"{name} is a raw reference, whose bytes nothing can hold to; use a model of the catalog"
            raise LockfileUnusable(str(place), reason)
        models.append(_locked(local, name, deployment, artifact))
    return Lockfile(time.time_ns() // 1_000_000, local.foundation.catalog.catalog_revision, tuple(models))


def write_lock(lockfile: Lockfile, place: Path) -> None:
    write_atomically(place, encode(lockfile))


def read_lock(place: Path) -> Lockfile:
    """Raises LockfileUnusable."""
    data = content(place, MAX_BYTES)
    if data is None:
        raise LockfileUnusable(str(place), "there is no such file")
    try:
        return decode(data)
    except ValueError as error:
        raise LockfileUnusable(str(place), str(error)) from None


def verify(local: Local, place: Path) -> list[Checked]:
    """Hold a lockfile against the cache, every byte of it, and against the configuration if there is one. Blocking."""
    locked = read_lock(place)
    wanted = lock_of(local, place) if local.loaded is not None else None
    proofs: dict[str, ArtifactState] = {}
    for model in locked.models:
        files = [CatalogFile(file.path, file.sha256, file.size_bytes) for file in model.files]
        proofs[model.artifact_digest] = local.foundation.store.proof(model.artifact_digest, files)
    return compare(locked, wanted, proofs)


def require_locked(config: Path) -> None:
    """For ``serve --locked``: raises LockDrift or LockfileUnusable unless `models verify-lock` would be content."""
    place = beside(config)
    drifted = [row for row in verify(open_local(config), place) if row.status != "ok"]
    if drifted:
        raise LockDrift(str(place), tuple(f"{row.name}: {row.detail}" for row in drifted))


def _locked(local: Local, name: str, deployment: DeploymentConfig, artifact: ResolvedArtifact) -> LockedModel:
    host = next((block for kind, block in local.host.engines.items() if kind == artifact.engine), EngineConfig())
    engine = LockedEngine(
        artifact.engine, deployment.engine_version or host.version, deployment.engine_image or host.image
    )
    files = tuple(LockedFile(file.path, file.sha256, file.size_bytes) for file in artifact.variant.files)
    return LockedModel(name, artifact.model.id, artifact.variant.id, artifact.digest, engine, files)
