"""What an operator is told of lowered ``serve:`` blocks: where a deployment is from, and what raw references risk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from sbproxy.config.core.findings import Finding
from sbproxy.config.core.serve import RawReference, ServeModelConfig
from sbproxy.config.core.serve_policy import HostPolicy
from sbproxy.config.core.tree import KeyPath, quoted, render

RAW_RISKS: Final = {
    "hf": (
        "is a raw reference: the engine fetches it itself, with access to the network, a cache folder that it may"
        " write, and no digest to check the files against; pin a catalog v2 model to verify them"
    ),
    "file": (
        "is a raw reference: the file is used where it lies, with no digest to check it against;"
        " pin a catalog v2 model to verify it"
    ),
}
"""What an operator should know of each kind, at every load."""


@dataclass(frozen=True, slots=True)
class Served:
    """One deployment that comes from serve blocks. ``places`` are its entries, the first of them first."""

    deployment: str
    provider: str
    entry: ServeModelConfig
    places: tuple[KeyPath, ...]

    @property
    def raw(self) -> RawReference | None:
        return self.entry.raw


def served_warnings(served: Mapping[str, Served], policy: HostPolicy) -> Iterator[Finding]:
    timeout = policy.settled.get(("queue_timeout_ms",))
    if timeout is not None and policy.value("max_concurrent_requests") is None:
        yield Finding(timeout.path, "has no effect without max_concurrent_requests")
    for each in served.values():
        if each.raw is not None:
            yield Finding((*each.places[0], "model"), f"{quoted(each.entry.model)} {RAW_RISKS[each.raw.kind]}")


def provenance(served: Mapping[str, Served]) -> Iterator[str]:
    """One line for each lowered deployment: which entries it is from, and what has no canonical form."""
    for each in served.values():
        line = f"{each.deployment} is from {' and '.join(map(render, each.places))}"
        if each.raw is not None:
            line += (
                f"; {quoted(each.entry.model)} is a raw reference, which has no canonical form: keep its serve block"
            )
        yield line
