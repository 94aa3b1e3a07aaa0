"""Every bound of the data-plane listener: bytes, seconds, counts. What happens at a bound is decided elsewhere."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of one listener.

    ``body_bytes`` is for hosts whose origin does not say (contracts section 5). ``bodies_bytes`` bounds the bodies of
    all requests together, those that are being answered included; bodies below ``small_body_bytes`` are not counted:
    their bound is the number of connections.

    ``body_timeout_s`` is granted once and then topped up by one second for each ``body_bytes_per_s`` received, so that
    a large upload may take long but a trickle may not. ``write_timeout_s`` is the longest time in which a client that
    owes us reading takes no byte. ``read_ahead_bytes`` bounds the pipelined requests kept while one is answered.
    """

    head_bytes: int = 32 * 1024
    header_count: int = 100
    target_bytes: int = 8 * 1024
    body_bytes: int = 64 * 1024 * 1024
    bodies_bytes: int = 512 * 1024 * 1024
    small_body_bytes: int = 4 * 1024
    read_ahead_bytes: int = 64 * 1024
    write_buffer_bytes: int = 64 * 1024
    connections: int = 10_000
    idle_timeout_s: float = 75.0
    head_timeout_s: float = 15.0
    body_timeout_s: float = 30.0
    body_bytes_per_s: float = 4096.0
    write_timeout_s: float = 60.0
    linger_timeout_s: float = 2.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ValueError(f"ServerLimits.{name} must be above zero")

    @property
    def sweep_interval_s(self) -> float:
        """How often deadlines are looked at: fine enough for the shortest of them, at most once a second."""
        shortest = min(
            self.idle_timeout_s, self.head_timeout_s, self.body_timeout_s, self.write_timeout_s, self.linger_timeout_s
        )
        return min(1.0, shortest / 4)
