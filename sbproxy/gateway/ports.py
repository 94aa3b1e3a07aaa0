"""What the gateway needs from others, as narrow Protocols that the daemon hands in (architecture decision 4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from sbproxy.engines.core.model import Endpoint
from sbproxy.errors.keys import KeyRefused
from sbproxy.keys.core.caller import Known, Unresolved
from sbproxy.keys.core.record import KeyRecord
from sbproxy.modelhost.core.status import Availability, Priority
from sbproxy.observe.core.record import RequestRecord

PriceOf = Callable[[str, str, str], tuple[int, int] | None]
"""Micros for a million prompt and answer tokens of (origin, provider, model)."""


class Permit(Protocol):
    """The right to run one request on one ready engine. Released exactly once; a second release does nothing."""

    endpoint: Endpoint
    deployment: str
    generation: int

    def release(self) -> None: ...

    def engine_failed(self, detail: str) -> None:
        """Tell the host that the engine's connection broke or refused, so that it looks at the process."""
        ...


class ManagedModels(Protocol):
    """Admission to the deployments of this machine."""

    def try_acquire(self, deployment: str) -> Permit | None:
        """A permit at once when a replica is ready, has room and nobody queues; else None. Never raises, no I/O."""
        ...

    async def acquire(self, deployment: str, priority: Priority) -> Permit:
        """Queue, start the engine if it is cold, and return a permit.

        Cancelling the caller leaves the queue at once. Raises UnknownDeployment, AdmissionRejected, NoReadyReplica,
        or the EngineError / ArtifactError / InsufficientMemory that kept the engine from starting.
        """
        ...

    def availability(self, deployment: str) -> Availability: ...


class RequestSink(Protocol):
    """Takes the record of every finished request. Called on the event loop; must not block or raise."""

    def finished(self, record: RequestRecord) -> None: ...


class Keyring(Protocol):
    """Virtual keys. Implemented by ``sbproxy.keys.directory.KeyDirectory``."""

    def lookup(
        self, headers: Sequence[tuple[bytes, bytes]], origin: str, required: bool
    ) -> Known | Unresolved | KeyRefused | None:
        """At once, without I/O. None: no key, and none is needed."""
        ...

    async def resolve(self, asked: Unresolved) -> Known | KeyRefused | None: ...


class UpstreamHeader(Protocol):
    @property
    def header(self) -> bytes: ...

    @property
    def value(self) -> bytes: ...


class CredentialVault(Protocol):
    """The upstream credentials that keys are bound to. Implemented by ``sbproxy.keys.credentials.CredentialVault``."""

    def cached(self, key: KeyRecord, provider: str, tenant_id: str) -> UpstreamHeader | None: ...

    async def presented(self, key: KeyRecord, provider: str, tenant_id: str) -> UpstreamHeader:
        """Raises CredentialUnusable or KeyStoreUnavailable."""
        ...
