"""Which artifact a removal means, what protects it, and the removal itself as a durable job."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from sbproxy.artifacts.core.model import Missing
from sbproxy.catalog.core.identity import artifact_digest
from sbproxy.catalog.core.model import ArtifactDigest, CatalogModel, ResolvedArtifact, Variant
from sbproxy.daemon.desired_state import stored_deployments
from sbproxy.errors import SbproxyError
from sbproxy.errors.catalog import IncompleteCatalogV2, NoCompatibleVariant, UnknownVariant, VariantPinRequired
from sbproxy.modelhost.core.jobs import move
from sbproxy.modelhost.job_desk import JobDesk
from sbproxy.modelhost.job_store import SqliteJobStore
from sbproxy_cli.local import Local


@dataclass(frozen=True, slots=True)
class Removed:
    """What became of it; ``job_id`` is None when nothing was here to remove."""

    digest: str
    removed: bool
    reclaimed_bytes: int
    job_id: str | None


def choose_variant(local: Local, model: CatalogModel, variant: str | None, engine: str) -> ResolvedArtifact:
    """The named variant, or the only one that could be meant: what is cached, else the only one there is.

    Needs no engine on this machine: files of a model that cannot run here can still be removed. Raises
    IncompleteCatalogV2, UnknownVariant, NoCompatibleVariant (none runs with ``engine``) or VariantPinRequired.
    """
    if not model.variants:
        raise IncompleteCatalogV2(model.id, "variants with exact files")
    named = [each for each in model.variants if variant in (None, each.id)]
    if not named:
        raise UnknownVariant(model.id, str(variant), tuple(each.id for each in model.variants))
    fitting = [each for each in named if engine == "auto" or engine in each.engines]
    if not fitting:
        reasons = tuple(f"{each.id}: runs with {', '.join(each.engines)}, not with {engine}" for each in named)
        raise NoCompatibleVariant(model.id, reasons)
    artifacts = [_artifact(local, model, each) for each in fitting]
    here = [each for each in artifacts if not isinstance(local.foundation.store.state(each), Missing)]
    candidates = here or artifacts
    if len(candidates) > 1:
        raise VariantPinRequired(model.id, tuple(each.variant.id for each in candidates))
    return candidates[0]


def configured_digests(local: Local) -> frozenset[ArtifactDigest]:
    """Every artifact that a deployment may want, of the configuration or of the store that it names; without a pin that
    is each variant. Raises DesiredStoreFailed."""
    catalog = local.foundation.catalog
    return frozenset(
        artifact_digest(catalog.catalog_revision, model, variant)
        for deployment in stored_deployments(local.host).values()
        for model in catalog.models.values()
        if model.id == deployment.model
        for variant in model.variants
        if deployment.variant in (None, variant.id)
    )


async def remove_artifact(
    local: Local, artifact: ResolvedArtifact, configured: frozenset[str], resident: frozenset[str]
) -> Removed:
    """Raises RemovalBlocked (configured, resident, leased, locked) or StoreUnusable; the job tells of it too."""
    files, digest = local.foundation.store, artifact.digest
    guards = {"configured": digest in configured, "resident": digest in resident}
    if isinstance(files.state(artifact), Missing):
        return Removed(digest, False, 0, None)
    store = SqliteJobStore(local.foundation.jobs_path)
    desk = JobDesk(store, time.time)
    try:
        job = await desk.open("delete", artifact.subject)
        job.run("deleting")
        try:
            done = await asyncio.to_thread(files.remove, digest, **guards)
        except SbproxyError as error:
            job.fail(str(error), error.code)
            raise
        desk.moved(job, move(job.record, "deleted", desk.now_ms()))
    finally:
        await desk.close()
        store.close()
    return Removed(digest, done.removed, done.reclaimed_bytes, job.id)


def _artifact(local: Local, model: CatalogModel, variant: Variant) -> ResolvedArtifact:
    revision = local.foundation.catalog.catalog_revision
    return ResolvedArtifact(revision, model, variant, variant.engines[0], artifact_digest(revision, model, variant))
