"""`models list|show`: the catalog as this machine sees it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbproxy_cli import output
from sbproxy_cli.boundary import verb
from sbproxy_cli.invocation import current
from sbproxy_cli.local import Local, open_local
from sbproxy_cli.options import CacheDirOption, CatalogFileOption, Format, FormatOption
from sbproxy_cli.sizes import human_size

if TYPE_CHECKING:
    from sbproxy.catalog.core.model import CatalogModel, Variant
    from sbproxy_cli.models.rows import ModelRow

LIST_HEADER = ("MODEL", "VARIANT", "FORMAT", "SIZE", "STABILITY", "FIT", "VRAM(GiB)", "ENGINE", "STATUS")


@verb("models list")
def list_models(
    context: typer.Context,
    catalog_file: CatalogFileOption = None,
    cache_dir: CacheDirOption = None,
    output_format: FormatOption = Format.text,
) -> None:
    """List the catalog: what each model needs, whether it fits here, and what is in the cache."""
    local = _open(context, catalog_file, cache_dir)
    from sbproxy_cli.models.rows import model_rows

    rows = model_rows(local)
    if output_format is Format.json:
        output.envelope("models.list", {"models": [row.fields() for row in rows]})
    else:
        output.table(LIST_HEADER, [_cells(row) for row in rows], right=frozenset({"SIZE", "VRAM(GiB)"}))


@verb("models show")
def show_model(
    context: typer.Context,
    model_id: Annotated[str, typer.Argument(metavar="ID", help="A catalog id.")],
    catalog_file: CatalogFileOption = None,
    cache_dir: CacheDirOption = None,
    output_format: FormatOption = Format.text,
) -> None:
    """Show everything the catalog says of one model."""
    local = _open(context, catalog_file, cache_dir)
    from sbproxy.catalog.core.resolve import find_model
    from sbproxy_cli.models.rows import model_row

    model = find_model(local.foundation.catalog, model_id)
    row = model_row(local, model)
    fields = _details(local, model, row)
    if output_format is Format.json:
        output.envelope("models.show", fields)
    else:
        output.lines(*_text(fields, row))


def _open(context: typer.Context, catalog_file: Path | None, cache_dir: Path | None) -> Local:
    return open_local(current(context).config, cache_dir=cache_dir, catalog_file=catalog_file)


def _cells(row: ModelRow) -> tuple[str, ...]:
    artifact = row.artifact
    if artifact is None:
        return (row.model.id, "-", "-", "-", "-", row.fit, "-", "-", row.status)
    variant = artifact.variant
    vram = "-" if row.estimated_gib is None else f"{row.estimated_gib:.2f}"
    return (
        row.model.id,
        variant.id,
        variant.format,
        human_size(variant.total_size_bytes),
        variant.stability,
        row.fit,
        vram,
        artifact.engine,
        row.status,
    )


def _details(local: Local, model: CatalogModel, row: ModelRow) -> dict[str, Any]:
    """``models.show`` (contracts section 9); the single-artifact fields are those of the selected variant."""
    chosen = row.artifact.variant if row.artifact else model.variants[0]
    floor = chosen.requirements.min_memory_bytes
    return {
        "id": model.id,
        "catalog_revision": local.foundation.catalog.catalog_revision,
        "hf_repo": chosen.source.removeprefix("hf:") if chosen.source.startswith("hf:") else None,
        "source": chosen.source,
        "revision": chosen.revision,
        "sha256": {file.path: file.sha256 for file in chosen.files},
        "engine": row.artifact.engine if row.artifact else None,
        "pull": model.pull,
        "quants": [each.quant for each in model.variants],
        "params": model.params,
        "license": model.license,
        "family": model.family,
        "modality": model.modality,
        "context_length": model.context_length,
        "allow_pickle": model.allow_pickle,
        "variants": [_variant(each) for each in model.variants],
        "min_vram_hint_gib": None if floor is None else round(floor / (1 << 30), 2),
        "cached": row.status == "cached",
    }


def _variant(variant: Variant) -> dict[str, Any]:
    return {
        "id": variant.id,
        "format": variant.format,
        "quant": variant.quant,
        "engines": list(variant.engines),
        "source": variant.source,
        "revision": variant.revision,
        "files": [{"path": file.path, "sha256": file.sha256, "size_bytes": file.size_bytes} for file in variant.files],
        "accelerators": list(variant.requirements.accelerators),
        "min_memory_bytes": variant.requirements.min_memory_bytes,
        "exact_size_bytes": variant.total_size_bytes,
        "stability": variant.stability,
        "certification": variant.certification,
    }


def _text(fields: dict[str, Any], row: ModelRow) -> list[str]:
    memory = ""
    if row.memory is not None:
        cache = "with its KV cache" if row.memory.kv_bytes else "and the KV cache"
        memory = f", about {row.estimated_gib:.2f} GiB {cache}"
    pairs = [
        ("model", fields["id"]),
        ("parameters", fields["params"]),
        ("license", fields["license"]),
        ("family", fields["family"]),
        ("modality", fields["modality"]),
        ("context", f"{fields['context_length']} tokens" if fields["context_length"] else "unknown"),
        ("source", f"{fields['source']} at {fields['revision']}"),
        ("pull", fields["pull"]),
        ("runs here", f"{row.fit}{memory}" if row.refusal is None else row.refusal),
        ("cache", row.status),
    ]
    lines = [f"{name:<12}{value}" for name, value in pairs]
    for variant in fields["variants"]:
        size = human_size(variant["exact_size_bytes"])
        lines.append(f"{'variant':<12}{variant['id']}  {variant['format']}  {size}  {', '.join(variant['engines'])}")
        for file in variant["files"]:
            lines += [f"{'file':<12}{file['path']}", f"{'sha256':<12}{file['sha256']}"]
    return lines
