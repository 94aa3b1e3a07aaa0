"""`models remove|prune`: the verified artifacts of this machine, without a daemon but never against one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbproxy_cli import diagnostics, output
from sbproxy_cli.admin_args import (
    DEFAULT_URL,
    PASSWORD_VARIABLE,
    PasswordStdinOption,
    UrlOption,
    UserOption,
    connect,
)
from sbproxy_cli.boundary import verb
from sbproxy_cli.interruption import run_cancellable
from sbproxy_cli.invocation import current
from sbproxy_cli.local import Local, open_local
from sbproxy_cli.options import (
    ArgvPassword,
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
    from sbproxy.catalog.core.model import CatalogModel, Variant
    from sbproxy_cli.models.removal import Removed


@verb("models remove")
def remove(
    context: typer.Context,
    model_id: Annotated[str, typer.Argument(metavar="ID", help="A catalog id.")],
    variant: VariantOption = None,
    engine: EngineOption = EngineName.auto,
    catalog_file: CatalogFileOption = None,
    cache_dir: CacheDirOption = None,
    admin_url: UrlOption = DEFAULT_URL,
    username: UserOption = "admin",
    password_stdin: PasswordStdinOption = False,
    output_format: FormatOption = Format.text,
    argv_password: ArgvPassword = None,
) -> None:
    """Remove one exact artifact; refused while a configuration, a daemon or an engine holds it."""
    local = open_local(current(context).config, cache_dir=cache_dir, catalog_file=catalog_file)
    from sbproxy.catalog.core.resolve import find_model
    from sbproxy_cli.models.removal import choose_variant, configured_digests, remove_artifact

    model = find_model(local.foundation.catalog, model_id)
    chosen = choose_variant(local, model, variant, engine.engine)
    wanted, resident = frozenset[str](), frozenset[str]()
    if password_stdin or os.environ.get(PASSWORD_VARIABLE):
        wanted, resident = run_cancellable("models remove", _held(local, admin_url, username, password_stdin))
    # What runs is told as that: stopping it is the first step, whatever the configuration says.
    wanted = (wanted | configured_digests(local)) - resident
    removed = run_cancellable("models remove", remove_artifact(local, chosen, wanted, resident))
    _answer(model, chosen.variant, removed, output_format)


@verb("models prune")
def prune(
    context: typer.Context,
    cache_dir: CacheDirOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count, and delete nothing.")] = False,
    output_format: FormatOption = Format.text,
) -> None:
    """Reclaim what no cached artifact refers to, such as the rest of an interrupted pull."""
    local = open_local(current(context).config, cache_dir=cache_dir)
    report = local.foundation.store.prune(dry_run=dry_run)
    if output_format is Format.json:
        fields = {
            "dry_run": report.dry_run,
            "orphan_blobs": report.orphan_blobs,
            "reclaimed_bytes": report.reclaimed_bytes,
            "before_bytes": report.before_bytes,
        }
        output.envelope("models.prune", fields)
        return
    done = "would be reclaimed" if dry_run else "reclaimed"
    output.lines(
        f"{human_size(report.reclaimed_bytes)} of {human_size(report.before_bytes)} {done},"
        f" {report.orphan_blobs} orphan blobs"
    )


async def _held(local: Local, url: str, username: str, password_stdin: bool) -> tuple[frozenset[str], frozenset[str]]:
    """Digests that a daemon over the same cache has configured, and runs now. One that is not there holds nothing."""
    from sbproxy.errors.client import DaemonUnreachable

    async with connect(url, username, password_stdin=password_stdin) as client:
        try:
            files = await client.files()
            status = await client.status()
        except DaemonUnreachable as error:
            diagnostics.note(f"no daemon was asked: {error}")
            return frozenset(), frozenset()
    if files.cache_root is None or not _same_folder(Path(files.cache_root), local.foundation.cache_root):
        return frozenset(), frozenset()
    configured = frozenset(row.artifact_digest for row in status.deployments if row.artifact_digest is not None)
    return configured, frozenset(each.artifact_digest for each in files.artifacts if each.resident)


def _same_folder(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def _answer(model: CatalogModel, variant: Variant, removed: Removed, output_format: Format) -> None:
    if output_format is Format.json:
        fields: dict[str, Any] = {
            "model": model.id,
            "variant": variant.id,
            "artifact_digest": removed.digest,
            "removed": removed.removed,
            "reclaimed_bytes": removed.reclaimed_bytes,
            "job_id": removed.job_id,
        }
        output.envelope("models.remove", fields)
    elif removed.removed:
        output.lines(f"{model.id}:{variant.id} removed, {human_size(removed.reclaimed_bytes)} reclaimed")
    else:
        output.lines(f"{model.id}:{variant.id} is not in the cache; nothing was removed")
