"""`models lock|verify-lock`: pins what a configuration means, and tells when a machine departs from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbproxy_cli import output
from sbproxy_cli.boundary import verb
from sbproxy_cli.invocation import current
from sbproxy_cli.local import open_local
from sbproxy_cli.options import CacheDirOption, Format, FormatOption

if TYPE_CHECKING:
    from sbproxy.artifacts.core.lockfile import Checked, Lockfile

DRIFT = 2
_LOCK_HEADER = ("NAME", "VARIANT", "ENGINE", "ARTIFACT")
_CHECK_HEADER = ("NAME", "VARIANT", "STATUS", "DETAIL")


@verb("models lock")
def lock(
    context: typer.Context,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to write it; default: beside the configuration.")
    ] = None,
    output_format: FormatOption = Format.text,
) -> None:
    """Write down the exact artifacts that the configuration's deployments mean. Needs -f."""
    config = current(context).required_config(None)
    from sbproxy_cli.models.locking import beside, lock_of, write_lock

    place = out or beside(config)
    lockfile = lock_of(open_local(config), place)
    write_lock(lockfile, place)
    if output_format is Format.json:
        output.envelope("models.lock", _lock_fields(lockfile, place))
        return
    rows = [(each.name, each.variant_id, each.engine.kind, each.artifact_digest) for each in lockfile.models]
    output.table(_LOCK_HEADER, rows)
    output.lines(f"written to {place}")


@verb("models verify-lock")
def verify_lock(
    context: typer.Context,
    lockfile: Annotated[
        Path | None, typer.Option("--lockfile", help="Default: beside the configuration, else in this directory.")
    ] = None,
    cache_dir: CacheDirOption = None,
    output_format: FormatOption = Format.text,
) -> None:
    """Hash what the cache has of the locked artifacts; with -f also look whether the configuration still means them.

    Exit codes: 0 everything matches, 2 it does not.
    """
    config = current(context).config
    from sbproxy.artifacts.core.lockfile import NAME
    from sbproxy_cli.models.locking import beside, verify

    place = lockfile or (beside(config) if config is not None else Path(NAME))
    rows = verify(open_local(config, cache_dir=cache_dir), place)
    drift = any(row.status != "ok" for row in rows)
    if output_format is Format.json:
        fields = {"lockfile": str(place), "drift": drift, "models": [_check_fields(row) for row in rows]}
        output.envelope("models.verify-lock", fields)
    else:
        output.table(_CHECK_HEADER, [(row.name, row.variant, row.status, row.detail or "-") for row in rows])
    if drift:
        raise typer.Exit(DRIFT)


def _lock_fields(lockfile: Lockfile, place: Path) -> dict[str, Any]:
    return {
        "path": str(place),
        "catalog_revision": lockfile.catalog_revision,
        "models": [
            {
                "name": each.name,
                "variant": each.variant_id,
                "engine": each.engine.kind,
                "artifact_digest": each.artifact_digest,
            }
            for each in lockfile.models
        ],
    }


def _check_fields(row: Checked) -> dict[str, Any]:
    fields = {"name": row.name, "variant": row.variant, "status": row.status}
    return fields if row.detail is None else {**fields, "detail": row.detail}
