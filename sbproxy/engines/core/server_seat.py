"""What belongs to one process of a Python engine and not to the plan: where it listens and who it says it is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerSeat:
    """``model`` is the weights' folder as the engine sees it (or a repository that it fetches)."""

    host: str
    port: int
    alias: str
    model: str
