"""Reads catalog documents: the built-in one and an operator's file; strict, with every problem at once.

What a value may be stands in ``catalog.core``; the YAML reader is the configuration's.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from sbproxy.catalog.core.convert import to_catalog
from sbproxy.catalog.core.model import Catalog
from sbproxy.catalog.core.rules import catalog_findings
from sbproxy.catalog.core.written import LACKING, WrittenCatalog
from sbproxy.config.core import model_errors
from sbproxy.config.core.findings import Finding
from sbproxy.config.core.salvage import salvage
from sbproxy.config.core.tree import Table, mark_of, plain, render
from sbproxy.config.yaml_text import MAX_BYTES, decode, read_tree
from sbproxy.errors.catalog import CatalogInvalid, CatalogUnreadable
from sbproxy.errors.config import Problem

BUILTIN = "builtin"


@cache
def builtin_catalog() -> Catalog:
    """The catalog that comes with the program."""
    data = resources.files("sbproxy.catalog").joinpath("builtin.yaml").read_bytes()
    return parse_catalog(data, file="builtin.yaml", origin=BUILTIN)


def read_catalog(path: Path) -> Catalog:
    """An operator's document. Raises CatalogUnreadable or CatalogInvalid."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise CatalogUnreadable(str(path), error.strerror or "cannot be read") from None
    return parse_catalog(data, file=str(path), origin=str(path))


def parse_catalog(data: bytes, *, file: str, origin: str) -> Catalog:
    """A validated document. Raises CatalogUnreadable (not text, too large) or CatalogInvalid."""
    try:
        text = decode(data)
    except ValueError as error:
        raise CatalogUnreadable(file, str(error)) from None
    reading = read_tree(text, file=file)
    root = reading.root
    problems = list(reading.problems)
    if not isinstance(root, Table):
        if root is not None:
            problems.append(Problem(file, "", "the document is not a mapping; expected catalog v2", root.mark.line))
        raise CatalogInvalid(file, tuple(problems))
    written, found = _check(plain(root), root)
    for finding in found:
        mark = mark_of(root, finding.path)
        path = render(finding.path)
        problems.append(Problem(file, path, finding.reason, mark.line, mark.column, finding.near, finding.allowed))
    if problems or written is None:
        raise CatalogInvalid(file, tuple(sorted(problems, key=lambda problem: (problem.line or 0, problem.path))))
    return to_catalog(written, origin)


def _check(data: dict[str, Any], root: Table) -> tuple[WrittenCatalog | None, list[Finding]]:
    if data.get("schema_version", 1) == 1:
        reason = "a catalog of version 1 names no exact files and is not supported by this version; write version 2"
        return None, [Finding(("schema_version",), reason)]
    salvaged = salvage(data, WrittenCatalog)
    found: list[Finding] = []
    if salvaged.error is not None:
        found.extend(model_errors.findings(salvaged.error, root, WrittenCatalog, LACKING))
    if salvaged.document is not None:
        found.extend(salvaged.standing(catalog_findings(salvaged.document), model_errors.misspelt(found, root)))
    return salvaged.document, found
