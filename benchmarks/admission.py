"""CPU time of one admission decision, and of one placement decision, on a host with scripted engines."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from sbproxy.devices.core.model import Device
from sbproxy.modelhost.core.admission import AdmissionQueue
from sbproxy.modelhost.core.placement import Option
from sbproxy.modelhost.core.residency import Claim, Holding, House, decide
from sbproxy.modelhost.core.status import MemoryEstimate
from support.model_host_parts import World

ROUNDS = 20_000


def microseconds(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    started = time.process_time()
    for _ in range(rounds):
        work()
    return (time.process_time() - started) / rounds * 1e6


async def granted_at_once(replicas: int) -> float:
    world = World(Path(tempfile.mkdtemp()))
    await world.apply(a={"warm": True, "replicas": replicas, "variant": "q4", "max_concurrency": 4})

    def one() -> None:
        permit = world.host.try_acquire("a")
        assert permit is not None
        permit.release()

    found = microseconds(one)
    await world.close()
    return found


def queued() -> float:
    """Join behind 100 others, leave through a grant."""
    queue = AdmissionQueue(1, 1000, 1)
    seat, _ = queue.open_seat()
    assert queue.try_grant()
    tickets = iter(range(1, ROUNDS + 200))
    for _ in range(100):
        queue.join(next(tickets), "standard")

    def one() -> None:
        queue.join(next(tickets), "standard")
        queue.release(seat)

    return microseconds(one)


def placed(deployments: int) -> float:
    """One placement that has to evict, among so many resident deployments on 8 cards."""
    cards = [Device(index, "cuda", "card", 80 << 30, 8 << 30) for index in range(8)]
    held = [Holding((f"d{n}", 1), {n % 8: 4 << 30}, "busy" if n % 3 else "idle", float(n)) for n in range(deployments)]
    need = MemoryEstimate((0,), 10 << 30, 0, 0, 0)
    claim = Claim(("new", 1), [Option((card,), need) for card in cards])
    return microseconds(lambda: decide(claim, held, House()), 200)


def main() -> None:
    rows = [
        ("granted at once, 1 replica", asyncio.run(granted_at_once(1))),
        ("granted at once, 8 replicas", asyncio.run(granted_at_once(8))),
        ("queued behind 100 and granted", queued()),
        ("placed by eviction among 16 residents on 8 cards", placed(16)),
    ]
    for name, cost in rows:
        print(f"{name:52} {cost:8.1f} µs")


if __name__ == "__main__":
    main()
