"""What no room can check alone: names, engine arguments and password hashes of sb.yml that other rooms give a meaning.

Reads the document and its catalog, nothing else. Used by the start, by every reload and by ``sbproxy validate``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sbproxy.catalog.core.model import Catalog, ModelId, WorkerFacts
from sbproxy.catalog.core.resolve import NEVER_AUTOMATIC, resolve
from sbproxy.catalog.document import builtin_catalog, read_catalog
from sbproxy.config.core.document import AdminConfig, SbConfig
from sbproxy.config.core.findings import Finding
from sbproxy.config.core.model_host import DeploymentConfig, ModelHostConfig
from sbproxy.config.core.references import CATALOG_FILE, reference_findings
from sbproxy.config.core.tree import KeyPath
from sbproxy.config.load import Loaded, load_file, load_text
from sbproxy.engines.core.allow_list import AllowList
from sbproxy.engines.core.by_engine import ALLOW_LISTS, SETTINGS
from sbproxy.errors.catalog import CatalogInvalid, CatalogUnreadable, NoCompatibleVariant
from sbproxy.errors.config import Problem
from sbproxy.errors.engines import UnsafeArgument

_ANY_MACHINE = WorkerFacts(
    accelerators=frozenset({"cpu", "cuda", "metal"}), engines=frozenset(ALLOW_LISTS), compute_capability=(99, 0)
)
"""Offers everything that a machine could to the engines of this version."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A configuration without a mistake, and the catalog that its names were looked up in."""

    loaded: Loaded
    catalog: Catalog


def load_checked(
    path: Path, environ: Mapping[str, str], *, resolve_secrets: bool = True, text: str | None = None
) -> Checked:
    """Read and check everything that can be checked without this machine. Blocking. ``text`` is what would stand in
    the file, where that is not what stands there.

    Raises ConfigUnreadable, or ConfigInvalid with every problem of the document and of the catalog that it names.
    """
    catalogs: list[Catalog] = []

    def further(config: SbConfig) -> Iterator[Finding | Problem]:
        try:
            catalogs.append(configured_catalog(config.proxy.model_host))
        except CatalogUnreadable as error:
            yield Finding(CATALOG_FILE, str(error))
        except CatalogInvalid as error:
            yield from error.problems
        yield from crossing_findings(config, catalogs[0] if catalogs else None)

    if text is None:
        loaded = load_file(path, environ, resolve_secrets=resolve_secrets, further=further)
    else:
        loaded = load_text(text, path=path, environ=environ, resolve_secrets=resolve_secrets, further=further)
    return Checked(loaded, catalogs[0])


def configured_catalog(config: ModelHostConfig) -> Catalog:
    """The catalog file of a configuration, or the built-in one. Raises CatalogUnreadable or CatalogInvalid."""
    return read_catalog(Path(config.catalog_file)) if config.catalog_file else builtin_catalog()


def crossing_findings(config: SbConfig, catalog: Catalog | None) -> Iterator[Finding]:
    """Everything in ``config`` that only another room can refuse. Without a catalog its names are not looked up."""
    if catalog is not None:
        variants = {str(name): tuple(str(each.id) for each in model.variants) for name, model in catalog.models.items()}
        yield from reference_findings(config, variants)
    for deployment_id, deployment in config.proxy.model_host.deployments.items():
        path: KeyPath = ("proxy", "model_host", "deployments", deployment_id)
        if catalog is not None:
            yield from _runnable(catalog, deployment, path)
        yield from argument_findings(deployment, path, catalog)
        yield from _settings(deployment, path, catalog)
    yield from _password_hashes(config.proxy.admin)


def _runnable(catalog: Catalog, deployment: DeploymentConfig, path: KeyPath) -> Iterator[Finding]:
    """A variant that no machine could run with this version. Names that are not there were reported before."""
    model = catalog.models.get(ModelId(deployment.model))
    pinned = deployment.variant
    candidates = [each for each in model.variants if pinned in (None, each.id)] if model else []
    if not candidates:
        return
    try:
        resolve(catalog, deployment.model, pinned, _ANY_MACHINE, deployment.engine)
    except NoCompatibleVariant as error:
        reason = f"no machine can run it with this version: {'; '.join(error.reasons)}"
        depends = (CATALOG_FILE, *((*path, key) for key in ("model", "variant", "engine")))
        yield Finding((*path, "variant" if pinned else "model"), reason, depends_on=depends)


def _engines(catalog: Catalog | None, deployment: DeploymentConfig) -> tuple[str, ...]:
    """The engines that may come to run it; which one ``auto`` takes is decided on the machine."""
    if deployment.engine != "auto":
        return (deployment.engine,)
    model = catalog.models.get(ModelId(deployment.model)) if catalog is not None else None
    variants = [each for each in model.variants if deployment.variant in (None, each.id)] if model else []
    automatic = {engine for each in variants for engine in each.engines} - NEVER_AUTOMATIC
    return tuple(name for name in ALLOW_LISTS if name in automatic) or tuple(ALLOW_LISTS)[:1]


def argument_findings(deployment: DeploymentConfig, path: KeyPath, catalog: Catalog | None = None) -> Iterator[Finding]:
    """Every element of ``extra_args`` that the lists of all engines which may come refuse, in the first one's words."""
    args = tuple(deployment.extra_args)
    refused = [dict(_refused(ALLOW_LISTS[engine], args)) for engine in _engines(catalog, deployment)]
    for at, reason in refused[0].items():
        if all(at in each for each in refused):
            yield Finding((*path, "extra_args", at), reason)


_SETTINGS = ("tool_call_parser", "swap_space_gib", "cpu_offload_gib", "chunked_prefill")


def _settings(deployment: DeploymentConfig, path: KeyPath, catalog: Catalog | None) -> Iterator[Finding]:
    """Settings that none of the engines which may come has: said now, not to the first request."""
    engines = _engines(catalog, deployment)
    for name in _SETTINGS:
        asked = getattr(deployment, name) is not None
        if asked and not any(name in SETTINGS[engine] for engine in engines):
            having = ", ".join(engine for engine, has in SETTINGS.items() if name in has)
            reason = f"{' and '.join(engines)} has no {name}; remove it, or use an engine that has it ({having})"
            yield Finding((*path, name), reason, depends_on=((*path, "engine"),))


def _refused(known: AllowList, args: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """(index, reason). What was refused is left out and the rest is looked at again, so that none hides another."""
    at = 0
    accepted: tuple[str, ...] = ()
    while at < len(args):
        takes_value = known.allowed.get(known.short.get(args[at], args[at]), False)
        words = args[at : at + (2 if takes_value else 1)]
        try:
            known.parse((*accepted, *words))
        except UnsafeArgument as error:
            yield at, f"{error.argument!r} is not allowed: {error.reason}"
            at += len(words)
            while at < len(args) and not args[at].startswith("-"):
                at += 1  # the value of what was refused
        else:
            accepted += words
            at += len(words)


def _password_hashes(admin: AdminConfig) -> Iterator[Finding]:
    hashes = [(index, each.password_hash) for index, each in enumerate(admin.operators) if each.password_hash]
    if not hashes:
        return
    # Costs the cryptography package, which most configurations do not need.
    from sbproxy.admin.passwords import PasswordHash

    for index, text in hashes:
        try:
            PasswordHash.parse(text)
        except ValueError as error:
            hint = "write the line of: sbproxy admin hash-password --password-stdin"
            yield Finding(("proxy", "admin", "operators", index, "password_hash"), f"{error}; {hint}")
