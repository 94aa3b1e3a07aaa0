"""What the console says about a failure's word: the next step for a person. Total over the error tree; a test walks it.

The nearest class of a leaf's ancestry counts; admission refusals go by their reason, as they do on the wire.
"""

from __future__ import annotations

from functools import cache

from sbproxy.errors import SbproxyError, leaves
from sbproxy.errors.admin import AdminError, AuthorityReadOnly, ReloadInFlight
from sbproxy.errors.artifacts import ArtifactError, DiskFull, ManualArtifactMissing, SourceDenied, TransportFailed
from sbproxy.errors.catalog import CatalogError
from sbproxy.errors.client import ClientError, DaemonUnreachable, Forbidden, Unauthorized
from sbproxy.errors.config import ConfigError, RestartRequired
from sbproxy.errors.daemon import DaemonError
from sbproxy.errors.engines import EngineBlocked, EngineError, EngineIncompatible, EngineLaunchFailed, UnsafeArgument
from sbproxy.errors.gateway import GatewayError
from sbproxy.errors.governance import GovernanceError, GovernanceRefusal, GovernanceUnavailable
from sbproxy.errors.keys import KeyManagementOff, KeyRevisionConflict, KeysError, KeyStoreFailed, KeyTerminal
from sbproxy.errors.modelhost import FoundationChanged, InsufficientMemory, ModelHostError, ResetRefused
from sbproxy.errors.observe import ObserveError

NEXT_STEP: dict[type[SbproxyError], str] = {
    AdminError: "look at the daemon's log",
    AuthorityReadOnly: "edit sb.yml and reload",
    ReloadInFlight: "wait for the reload that runs, then try again",
    ArtifactError: "pull the model again; the daemon's log has the details",
    DiskFull: "free some space with: sbproxy models prune",
    ManualArtifactMissing: "fetch it with: sbproxy models pull",
    SourceDenied: "accept the model's licence at its source and set HF_TOKEN for the daemon",
    TransportFailed: "try again; the part that came is kept",
    CatalogError: "correct the model or variant in sb.yml; sbproxy models list shows what there is",
    ClientError: "check the address and that daemon and console have the same version",
    DaemonUnreachable: "start the daemon, or check the address; the console goes on trying",
    Unauthorized: "sign in with the password of the daemon's proxy.admin block",
    Forbidden: "sign in as an operator with role admin",
    ConfigError: "correct sb.yml; sbproxy validate names every problem",
    RestartRequired: "restart the daemon to apply this",
    DaemonError: "another process may hold the port",
    EngineError: "look at the engine's log, then clear with c",
    EngineBlocked: "correct engines in sb.yml; sbproxy doctor says what is missing",
    EngineIncompatible: "take another engine build or variant; sbproxy doctor says what this machine can run",
    EngineLaunchFailed: "look at the engine's log, mend the cause, then clear with c",
    UnsafeArgument: "take the flag out of extra_args",
    GatewayError: "look at the request log",
    GovernanceError: "look at the daemon's log",
    GovernanceRefusal: "look at the key's usage and its limits",
    GovernanceUnavailable: "see that the Redis of key governance runs",
    KeysError: "look at the key and its policy",
    KeyManagementOff: "set proxy.key_management.enabled in sb.yml and reload",
    KeyRevisionConflict: "read the key again; somebody else changed it",
    KeyTerminal: "mint another key",
    KeyStoreFailed: "look at the daemon's log",
    ModelHostError: "look at the daemon's log",
    FoundationChanged: "stop the deployments first, then reload",
    InsufficientMemory: "take a smaller variant, less max_context or max_concurrency, or free memory",
    ResetRefused: "nothing to clear: it is healthy",
    ObserveError: "correct the parameter",
}

ADMISSION: dict[str, str] = {
    "insufficient_capacity": NEXT_STEP[InsufficientMemory],
    "queue_full": "raise max_queue_depth, or have fewer callers",
    "queue_timeout": "raise queue_timeout_ms or max_concurrency",
    "engine_unhealthy": "mend what the engine complains about, then clear with c",
    "crash_loop": "mend what the engine complains about, then clear with c",
    "draining": "wait until it has stopped",
}
"""Document 1's stable admission reasons."""

WAITING = "wait, it starts as soon as there is room; or stop what holds it"
"""For a replica that is on its way up and has a reason: it has not been refused, it queues for memory or a place."""


def next_step(word: str) -> str | None:
    """The sentence for a ``code`` or ``reason_code`` from the wire; None for one that a newer daemon invented."""
    return ADMISSION.get(word) or _by_code().get(word)


def sentence_of(leaf: type[SbproxyError]) -> str | None:
    return next((NEXT_STEP[kind] for kind in leaf.__mro__ if kind in NEXT_STEP), None)


@cache
def _by_code() -> dict[str, str]:
    return {leaf.code: sentence for leaf in leaves() if (sentence := sentence_of(leaf)) is not None}
