"""Which memory pools a deployment may live in, best first.

The engine has the last word (its build may lack a device); splitting one model over several cards belongs here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sbproxy.catalog.core.model import Accelerator
from sbproxy.devices.core.model import Device, Machine

Acceleration = Literal["auto", "cuda", "metal", "vulkan", "cpu"]


def candidates(machine: Machine, accelerators: Sequence[Accelerator], acceleration: Acceleration) -> list[Device]:
    """The card with the most free memory that policy and catalog allow, then the CPU if they allow that too.

    Only ``auto`` may fall from a card to the CPU, and only when the engine build cannot use the card: a model that
    is too big for the card is refused rather than run slowly by surprise. Vulkan drives any card.
    """
    found: list[Device] = []
    if acceleration != "cpu":
        cards = [
            device
            for device in machine.accelerated
            if device.kind in accelerators and acceleration in ("auto", "vulkan", device.kind)
        ]
        found.extend(sorted(cards, key=lambda device: (-device.free_bytes, device.index))[:1])
    if acceleration in ("auto", "cpu") and "cpu" in accelerators:
        found.append(machine.cpu)
    return found
