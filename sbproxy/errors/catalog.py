"""What can go wrong between a model's name and its exact files (contracts section 16)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sbproxy.errors.config import Problem
from sbproxy.errors.tree import SbproxyError


class CatalogError(SbproxyError):
    """Branch: the catalog document and resolution."""


@dataclass(eq=False)
class CatalogUnreadable(CatalogError):
    """The catalog file cannot be read at all."""

    code: ClassVar[str] = "catalog_unreadable"
    file: str
    reason: str

    def text(self) -> str:
        return f"catalog {self.file}: {self.reason}"


@dataclass(eq=False)
class CatalogInvalid(CatalogError):
    """The catalog was read and is refused; ``problems`` holds everything that is wrong, in the order of the lines."""

    code: ClassVar[str] = "catalog_invalid"
    file: str
    problems: tuple[Problem, ...]

    def text(self) -> str:
        return "\n".join(problem.text() for problem in self.problems) or f"{self.file}: invalid catalog"


@dataclass(eq=False)
class UnknownModel(CatalogError):
    """No model of that id. ``near`` holds the closest ids, best first."""

    code: ClassVar[str] = "unknown_catalog_model"
    model: str
    near: tuple[str, ...] = ()

    def text(self) -> str:
        hint = f"; did you mean {', '.join(self.near)}?" if self.near else "; see: sbproxy models list"
        return f"there is no model {self.model!r} in the catalog{hint}"


@dataclass(eq=False)
class UnknownVariant(CatalogError):
    """The model has no variant of that id; ``available`` lists those that it has, in the catalog's order."""

    code: ClassVar[str] = "unknown_catalog_variant"
    model: str
    variant: str
    available: tuple[str, ...]

    def text(self) -> str:
        return f"model {self.model} has no variant {self.variant!r}; available: {', '.join(self.available) or 'none'}"


@dataclass(eq=False)
class VariantPinRequired(CatalogError):
    """The caller must name one exact variant and did not."""

    code: ClassVar[str] = "variant_pin_required"
    model: str
    available: tuple[str, ...]

    def text(self) -> str:
        return f"model {self.model}: name one exact variant; available: {', '.join(self.available) or 'none'}"


@dataclass(eq=False)
class IncompleteCatalogV2(CatalogError):
    """The entry lacks what an exact artifact needs: variants with files, or the context length."""

    code: ClassVar[str] = "incomplete_catalog_v2"
    model: str
    missing: str

    def text(self) -> str:
        return f"model {self.model} cannot be resolved to exact files: its catalog entry has no {self.missing}"


@dataclass(eq=False)
class NoCompatibleVariant(CatalogError):
    """Nothing this machine can run. ``reasons`` holds one line for each variant: ``id: why not``."""

    code: ClassVar[str] = "no_compatible_variant"
    model: str
    reasons: tuple[str, ...]

    def text(self) -> str:
        return f"no variant of model {self.model} can run here ({'; '.join(self.reasons)})"
