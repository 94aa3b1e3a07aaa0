"""`models pull`: fetches, verifies and publishes exact artifacts in this process; needs no daemon."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from sbproxy.errors import SbproxyError
from sbproxy_cli import diagnostics, output
from sbproxy_cli.boundary import verb
from sbproxy_cli.interruption import run_cancellable
from sbproxy_cli.invocation import current
from sbproxy_cli.local import Local, open_local
from sbproxy_cli.options import (
    CacheDirOption,
    CatalogFileOption,
    EngineName,
    EngineOption,
    Format,
    FormatOption,
    VariantOption,
)
from sbproxy_cli.sizes import human_size

if TYPE_CHECKING:
    from sbproxy.artifacts.core.model import GcReport
    from sbproxy.catalog.core.model import ResolvedArtifact
    from sbproxy_cli.models.fetch import Pulled


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line asks for."""

    ids: tuple[str, ...]
    everything: bool
    variant: str | None
    engine: str


@verb("models pull")
def pull(
    context: typer.Context,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Catalog ids.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every model of the catalog that can run here.")] = False,
    variant: VariantOption = None,
    engine: EngineOption = EngineName.auto,
    catalog_file: CatalogFileOption = None,
    cache_dir: CacheDirOption = None,
    offline: Annotated[bool, typer.Option("--offline", help="Use no network: verify what the cache holds.")] = False,
    output_format: FormatOption = Format.text,
) -> None:
    """Fetch models: those named, or the configured deployments and the catalog's on_boot entries."""
    invocation = current(context)
    wanted = Wanted(tuple(ids or ()), everything, variant, engine.engine)
    if variant is not None and len(wanted.ids) != 1:
        raise typer.BadParameter("--variant needs exactly one ID")
    if everything and wanted.ids:
        raise typer.BadParameter("--all takes no ID")
    if catalog_file is not None and "config" in invocation.typed:
        raise typer.BadParameter("--catalog-file and -f exclude each other: the configuration names its own catalog")
    local = open_local(invocation.config, cache_dir=cache_dir, catalog_file=catalog_file)
    artifacts = select(local, wanted)
    if not artifacts:
        diagnostics.note(f"sbproxy models pull: nothing is selected; {_how_to_select(local)}")
    from sbproxy_cli.models.fetch import pull_all

    pulled = run_cancellable("models pull", pull_all(local, artifacts, offline=offline)) if artifacts else []
    _answer(pulled, _collect(local, pulled), output_format)


def _how_to_select(local: Local) -> str:
    if local.loaded is None:
        return "name an ID, use --all, or name a configuration"
    return "the configuration has nothing to fetch; name an ID, or use --all"


def _collect(local: Local, pulled: list[Pulled]) -> GcReport | None:
    """The collection that ends a pull where the cache has a budget; what was asked for just now stays."""
    budget_gib = local.host.cache.budget_gib
    if budget_gib is None or not pulled:
        return None
    from sbproxy.artifacts.core.sweep import JUST_PULLED, budget_bytes, protections
    from sbproxy_cli.models.removal import configured_digests

    protected = protections(
        {"configured": configured_digests(local), JUST_PULLED: [each.artifact.digest for each in pulled]}
    )
    return local.foundation.store.collect(budget_bytes(budget_gib), protected)


def select(local: Local, wanted: Wanted) -> list[ResolvedArtifact]:
    """Exact artifacts in order, each once. `--all` and on_boot skip with a note what cannot run here."""
    found: dict[str, ResolvedArtifact] = {}
    for model, variant, engine, may_skip in _candidates(local, wanted):
        try:
            artifact = local.resolve(model, variant, engine)
        except SbproxyError as error:
            if not may_skip:
                raise
            diagnostics.note(f"skipped {model}: {error}")
            continue
        if artifact.variant.unverified:
            diagnostics.note(f"skipped {model}: a raw reference is used as it is and never enters the cache")
            continue
        found.setdefault(artifact.digest, artifact)
    return list(found.values())


def _candidates(local: Local, wanted: Wanted) -> list[tuple[str, str | None, str, bool]]:
    """(model, variant, engine, may be skipped). Raises DesiredStoreFailed."""
    from sbproxy.daemon.desired_state import stored_deployments

    catalog = local.foundation.catalog
    if wanted.ids:
        return [(model, wanted.variant, wanted.engine, False) for model in wanted.ids]
    if wanted.everything:
        return [(model, None, wanted.engine, True) for model in catalog.models]
    configured = [
        (each.model, each.variant, each.engine if wanted.engine == "auto" else wanted.engine, False)
        for each in stored_deployments(local.host).values()
    ]
    on_boot = [(model.id, None, wanted.engine, True) for model in catalog.models.values() if model.pull == "on_boot"]
    return [*configured, *on_boot]


def _answer(pulled: list[Pulled], collected: GcReport | None, output_format: Format) -> None:
    if collected is not None and collected.budget_unsatisfied_bytes:
        diagnostics.note(
            f"the cache is {human_size(collected.budget_unsatisfied_bytes)} above its budget, and all that is left is"
            " in use or was pulled just now; raise cache.budget_gib or remove deployments"
        )
    if output_format is Format.json:
        gc = {} if collected is None else {"gc": asdict(collected)}
        output.envelope("models.pull", {"artifacts": [each.fields() for each in pulled], **gc})
        return
    for each in pulled:
        how = f"{each.snapshot.fetched_bytes} bytes fetched" if each.job_id else "already here"
        output.lines(f"{each.artifact.subject} is ready: {each.snapshot.path} ({how})")
    if collected is not None and (collected.deleted_artifacts or collected.reclaimed_bytes):
        count, size = len(collected.deleted_artifacts), human_size(collected.reclaimed_bytes)
        output.lines(f"{size} reclaimed to keep the budget, {count} unused artifacts removed")
