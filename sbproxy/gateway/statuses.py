"""The total table from error leaves to what a caller of the data plane sees; a test walks the tree against it.

A class stands for all leaves below it that have no line of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from sbproxy.errors import SbproxyError, artifacts, engines, gateway, governance, keys, modelhost

INVALID = "invalid_request_error"
SERVER = "server_error"
AUTHENTICATION = "authentication_error"
PERMISSION = "permission_error"


@dataclass(frozen=True, slots=True)
class Outcome:
    """``kind`` is the OpenAI ``type``; ``code`` None means the leaf's own.

    ``sentence`` replaces the leaf's text where that is private (addresses, paths, engine output); ``{model}`` is the
    public name. ``managed`` answers with document 1's body. ``error_class`` is the coarse class of the request log.
    """

    status: int
    kind: str
    error_class: str
    code: str | None = None
    sentence: str | None = None
    managed: bool = False
    retry_after_s: int | None = None


def _refused(
    status: int, error_class: str = "invalid_request", *, kind: str = INVALID, code: str | None = None
) -> Outcome:
    return Outcome(status, kind, error_class, code)


def _managed(
    status: int,
    sentence: str,
    *,
    code: str | None = None,
    error_class: str = "model_unavailable",
    retry_after_s: int | None = None,
) -> Outcome:
    return Outcome(
        status, "managed_model_error", error_class, code, sentence, managed=True, retry_after_s=retry_after_s
    )


def _upstream(status: int, error_class: str, sentence: str) -> Outcome:
    return Outcome(status, "upstream_error", error_class, None, sentence)


INTERNAL = Outcome(500, SERVER, "internal", "internal_error", "the gateway failed to answer this request")
"""For anything that is not foreseen on the data plane."""

OUTCOMES: dict[type[SbproxyError], Outcome] = {
    gateway.InvalidRequest: _refused(400),
    gateway.RemoteContentRefused: _refused(400),
    gateway.UnsupportedByModel: _refused(400),
    gateway.UnsupportedContent: _refused(400),
    gateway.ContextLengthExceeded: _refused(400),
    gateway.EngineRefused: _refused(400, code="invalid_request"),
    gateway.BodyTooLarge: _refused(413),
    gateway.EncodedBody: _refused(415),
    gateway.UnsupportedMediaType: _refused(415),
    gateway.MultipartRefused: _refused(403),
    gateway.UnknownHost: _refused(404, "not_found"),
    gateway.UnknownPath: _refused(404, "not_found"),
    gateway.ModelNotFound: _refused(404, "not_found"),
    gateway.MethodNotAllowed: _refused(405),
    gateway.SurfaceNotServed: _refused(501, "not_implemented"),
    gateway.EngineFault: _upstream(502, "upstream_5xx", "the engine of {model} failed to answer"),
    gateway.ProviderFault: _upstream(502, "upstream_5xx", "the provider of {model} did not give a usable answer"),
    # The status of ProviderRefused is its own field; the line here serves its type and class.
    gateway.ProviderRefused: Outcome(502, "upstream_error", "upstream_4xx"),
    gateway.UpstreamUnreachable: _upstream(502, "upstream_unreachable", "the upstream of {model} cannot be reached"),
    gateway.UpstreamTimeout: _upstream(504, "upstream_timeout", "the upstream of {model} did not answer in time"),
    gateway.UpstreamBroken: _upstream(502, "upstream_broken", "the answer of {model} broke off"),
    gateway.UpstreamTooLarge: _upstream(
        502, "upstream_broken", "the answer of {model} is larger than this gateway takes"
    ),
    gateway.UnusableProvider: INTERNAL,
    modelhost.NoReadyReplica: _managed(503, "{model} has no ready replica and requests start none", retry_after_s=1),
    modelhost.UnknownDeployment: _managed(
        503, "nothing that could run {model} is deployed", code="no_eligible_replica"
    ),
    modelhost.InsufficientMemory: _managed(503, "there is no room for {model} now"),
    modelhost.ResetRefused: INTERNAL,
    modelhost.FoundationChanged: INTERNAL,
    modelhost.ModelHostError: _managed(503, "{model} cannot run now; the operator sees why in its status"),
    engines.EngineError: _managed(503, "the engine of {model} cannot run; the operator sees why in its status"),
    artifacts.ArtifactError: _managed(503, "the files of {model} are not ready; the operator sees why in its status"),
    keys.KeyMissing: _refused(401, "auth_denied", kind=AUTHENTICATION),
    keys.KeyUnknown: _refused(401, "auth_denied", kind=AUTHENTICATION),
    keys.KeyConflict: _refused(400, "auth_denied"),
    keys.PiiRuleInactive: Outcome(500, SERVER, "policy_denied"),
    keys.KeyStoreUnavailable: Outcome(503, SERVER, "key_store_unavailable", retry_after_s=1),
    keys.CredentialUnusable: Outcome(
        503,
        SERVER,
        "credential_unusable",
        sentence="the upstream credential of this key cannot be used; tell the operator",
    ),
    keys.KeyBlocked: _refused(403, "policy_denied", kind=PERMISSION),
    keys.KeyRevoked: _refused(403, "policy_denied", kind=PERMISSION),
    keys.KeyExpired: _refused(403, "policy_denied", kind=PERMISSION),
    keys.TenantMismatch: _refused(403, "policy_denied", kind=PERMISSION),
    keys.PrincipalNotAllowed: _refused(403, "policy_denied", kind=PERMISSION),
    keys.ModelNotAllowed: _refused(403, "policy_denied", kind=PERMISSION),
    keys.ProviderNotAllowed: _refused(403, "policy_denied", kind=PERMISSION),
    keys.ToolNotAllowed: _refused(403, "policy_denied", kind=PERMISSION),
    governance.RateExceeded: _refused(429, "rate_limited", kind="rate_limit_error"),
    governance.BudgetExhausted: _refused(402, "budget_exceeded", kind="insufficient_quota"),
    governance.GovernanceUnavailable: Outcome(
        503,
        SERVER,
        "governance_unavailable",
        sentence="the limits of this key cannot be checked now; try again shortly",
        retry_after_s=1,
    ),
}

ADMISSION: dict[str, Outcome] = {
    "queue_full": _managed(429, "too many requests wait for {model}", error_class="queue_full", retry_after_s=1),
    "queue_timeout": _managed(
        429, "the request waited too long for {model}", error_class="queue_timeout", retry_after_s=1
    ),
    "draining": _managed(503, "{model} is being drained and takes no new requests", retry_after_s=1),
    "insufficient_capacity": _managed(503, "{model} does not fit the memory that is free now"),
    "engine_unhealthy": _managed(503, "the engine of {model} is not healthy"),
    "crash_loop": _managed(503, "the engine of {model} keeps crashing; it stays stopped until an operator resets it"),
}
"""By ``AdmissionRejected.reason``. Waiting cures a full queue, so that is 429 (field report 17); the rest are 503."""


def outcome_of(error: SbproxyError) -> Outcome:
    """The line for an error; INTERNAL for a leaf that has no business on the data plane."""
    if isinstance(error, modelhost.AdmissionRejected):
        return ADMISSION.get(error.reason, OUTCOMES[modelhost.ModelHostError])
    for kind in type(error).__mro__:
        outcome = OUTCOMES.get(kind)
        if outcome is not None:
            return outcome
    return INTERNAL
