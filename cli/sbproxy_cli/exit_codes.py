"""What a failure means to the caller of a command (contracts section 9). Total over the error tree; a test walks it."""

from __future__ import annotations

from typing import Literal

from sbproxy.errors import SbproxyError
from sbproxy.errors.admin import AdminError
from sbproxy.errors.artifacts import ArtifactError
from sbproxy.errors.catalog import CatalogError
from sbproxy.errors.cli import (
    ApplyLocked,
    CliError,
    ModelNotReady,
    PlanStale,
    PortTaken,
    PullsFailed,
    ServiceFailed,
    ServiceUnavailable,
    SystemRefused,
)
from sbproxy.errors.client import (
    ClientError,
    DaemonRefused,
    DaemonSilent,
    DaemonUnreachable,
    Forbidden,
    ProtocolMismatch,
    Unauthorized,
)
from sbproxy.errors.config import ConfigError, ConfigInvalid
from sbproxy.errors.daemon import DaemonError
from sbproxy.errors.engines import EngineError
from sbproxy.errors.gateway import GatewayError
from sbproxy.errors.governance import GovernanceError
from sbproxy.errors.keys import KeyMaterialUnusable, KeysError, KeySettingInvalid
from sbproxy.errors.modelhost import InvalidDesired, ModelHostError, UnknownDeployment
from sbproxy.errors.observe import ObserveError

Cause = Literal["usage", "input", "runtime"]
"""usage: the line itself; input: a document or name it points at; runtime: everything that happens later."""

CAUSES: dict[type[SbproxyError], Cause] = {
    CliError: "usage",
    PortTaken: "runtime",
    ModelNotReady: "runtime",
    PullsFailed: "runtime",
    SystemRefused: "runtime",
    ServiceUnavailable: "runtime",
    ServiceFailed: "runtime",
    ObserveError: "usage",
    ConfigError: "input",
    CatalogError: "input",
    InvalidDesired: "input",
    UnknownDeployment: "input",
    ModelHostError: "runtime",
    ArtifactError: "runtime",
    EngineError: "runtime",
    GatewayError: "runtime",
    GovernanceError: "runtime",
    KeysError: "runtime",
    KeySettingInvalid: "input",
    KeyMaterialUnusable: "input",
    AdminError: "runtime",
    DaemonError: "runtime",
    ClientError: "runtime",
}
"""The nearest class of a leaf's ancestry counts, so a leaf differs from its branch only where it stands here itself."""

DAEMON_VERBS = ("serve", "run")

APPLY_CODES: dict[type[SbproxyError], int] = {
    PlanStale: 5,
    ApplyLocked: 6,
    DaemonUnreachable: 7,
    DaemonSilent: 7,
    DaemonRefused: 4,
    Forbidden: 4,
    Unauthorized: 4,
    ProtocolMismatch: 4,
    ConfigInvalid: 3,
    CatalogError: 3,
}
"""`plan` and `apply` tell their callers apart what can be done about it; what is not here is 1."""


def cause(leaf: type[SbproxyError]) -> Cause:
    """Raises KeyError for a leaf of a branch that has no row."""
    for ancestor in leaf.__mro__:
        if ancestor in CAUSES:
            return CAUSES[ancestor]
    raise KeyError(leaf.__name__)


def exit_code(verb: str, error: SbproxyError) -> int:
    """1 for what goes wrong in a daemon that this command is, and for any configuration that serve refuses; else 2."""
    if verb in ("plan", "apply"):
        return next((APPLY_CODES[kind] for kind in type(error).__mro__ if kind in APPLY_CODES), 1)
    why = cause(type(error))
    if why == "runtime" and verb in DAEMON_VERBS:
        return 1
    if why == "input" and verb == "serve":
        return 1
    return 2
