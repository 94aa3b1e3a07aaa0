"""Decides what a collection takes to bring the cache down to its budget, one step after the other (section 17).

Loose blobs go first, then abandoned partials, then artifacts by last access and digest; never one that is protected.
Whether a lock is free at that moment is the caller's to find out and to tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sbproxy.artifacts.core.garbage import HeldBlob, HeldPartial, abandoned, orphans
from sbproxy.artifacts.core.model import GcReport

SHARED = "shared"
"""Kept because each of its blobs belongs to a protected artifact too: without it nothing would be freed."""
JUST_PULLED = "just_pulled"
"""Kept because the pull that ends in this collection was for it: a single artifact may be larger than the budget."""


@dataclass(frozen=True, slots=True)
class Holding:
    """One published artifact. ``blobs`` are what it refers to, ``protection`` is why it must stay, if it must."""

    digest: str
    last_accessed_ms: int
    blobs: frozenset[str]
    protection: str | None = None


@dataclass(frozen=True, slots=True)
class DropBlob:
    """Delete a blob that nothing refers to."""

    sha256: str


@dataclass(frozen=True, slots=True)
class DropPartial:
    """Delete the rest of a pull that nobody works on."""

    digest: str


@dataclass(frozen=True, slots=True)
class RemoveArtifact:
    """Withdraw an artifact, then delete the ``blobs`` that only it needed."""

    digest: str
    blobs: tuple[str, ...]


Step = DropBlob | DropPartial | RemoveArtifact


class Sweep:
    """Ask for :meth:`next_step`, carry it out, and say whether it was :meth:`done` or :meth:`refused`; then again.

    ``in_use``: blobs that pulls at work count on.
    """

    def __init__(
        self,
        budget_bytes: int,
        *,
        blobs: Iterable[HeldBlob],
        partials: Iterable[HeldPartial],
        holdings: Iterable[Holding],
        in_use: Iterable[str],
        partial_grace_s: float,
    ) -> None:
        self._budget = budget_bytes
        self._blobs = {blob.sha256: blob.size_bytes for blob in blobs}
        held = list(partials)
        self._partials = {partial.digest: partial.size_bytes for partial in held}
        self._stale = [partial.digest for partial in abandoned(held, partial_grace_s)]
        self._holdings = {each.digest: each for each in sorted(holdings, key=lambda h: (h.last_accessed_ms, h.digest))}
        self._protected = {digest: each.protection for digest, each in self._holdings.items() if each.protection}
        self._in_use = frozenset(in_use)
        # Once is enough: whatever an artifact leaves loose goes with it.
        loose = orphans((HeldBlob(*each) for each in self._blobs.items()), self._needed(self._holdings))
        self._loose = [blob.sha256 for blob in reversed(loose)]
        self._deleted: list[str] = []
        self._passed: dict[str, str] = {}
        self._before = self._used

    @property
    def over_budget(self) -> bool:
        return self._used > self._budget

    def next_step(self) -> Step | None:
        """``None`` once the cache is within its budget, or nothing more may go."""
        if not self.over_budget:
            return None
        if self._loose:
            return DropBlob(self._loose[-1])
        if self._stale:
            return DropPartial(self._stale[0])
        kept = self._needed(self._protected)
        for digest, holding in self._holdings.items():
            if digest in self._protected:
                self._passed[digest] = self._protected[digest]
            elif holding.blobs & self._blobs.keys() <= kept:
                self._passed[digest] = SHARED
            else:
                others = self._needed(self._holdings.keys() - {digest})
                return RemoveArtifact(digest, tuple(sorted(holding.blobs & self._blobs.keys() - others)))
        return None

    def done(self, step: Step) -> None:
        match step:
            case DropBlob(sha256):
                self._loose.pop()
                del self._blobs[sha256]
            case DropPartial(digest):
                self._stale.remove(digest)
                del self._partials[digest]
            case RemoveArtifact(digest, blobs):
                del self._holdings[digest]
                self._passed.pop(digest, None)
                self._deleted.append(digest)
                for sha256 in blobs:
                    del self._blobs[sha256]

    def refused(self, step: DropPartial | RemoveArtifact, reason: str) -> None:
        """Somebody took it since it was looked at."""
        if isinstance(step, DropPartial):
            self._stale.remove(step.digest)
        else:
            self._protected[step.digest] = reason

    def report(self) -> GcReport:
        used = self._used
        return GcReport(
            before_bytes=self._before,
            after_bytes=used,
            reclaimed_bytes=self._before - used,
            deleted_artifacts=tuple(self._deleted),
            skipped_artifacts=dict(self._passed),
            budget_unsatisfied_bytes=max(0, used - self._budget),
        )

    @property
    def _used(self) -> int:
        return sum(self._blobs.values()) + sum(self._partials.values())

    def _needed(self, digests: Iterable[str]) -> frozenset[str]:
        return self._in_use.union(*(self._holdings[digest].blobs for digest in digests))


def budget_bytes(gib: float) -> int:
    return int(gib * (1 << 30))


def protections(reasons: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """One reason for each digest, out of sets of digests by reason; the first reason named wins."""
    found: dict[str, str] = {}
    for reason, digests in reasons.items():
        for digest in digests:
            found.setdefault(digest, reason)
    return found
