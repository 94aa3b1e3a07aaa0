"""Decides the HTTP status of every foreseen failure (contracts sections 19 and 49). Total: a test walks the tree."""

from __future__ import annotations

from sbproxy.errors import SbproxyError, admin, artifacts, catalog, config, daemon, engines, gateway, modelhost, observe

STATUSES: dict[type[SbproxyError], int] = {
    admin.InvalidBody: 400,
    admin.BodyNotJson: 415,
    admin.InvalidJobId: 400,
    admin.InvalidEventId: 400,
    admin.StreamsExhausted: 503,
    admin.OwnStreamsExhausted: 429,
    admin.AuthorityReadOnly: 403,
    admin.ReloadInFlight: 409,
    admin.ReloadUnavailable: 503,
    admin.AdminListenFailed: 500,
    admin.AdminTlsUnusable: 500,
    admin.PasswordHashInvalid: 500,
    observe.UnknownParameter: 400,
    observe.UnsupportedParameter: 400,
    observe.InvalidParameter: 400,
    observe.LogSettingInvalid: 400,
    modelhost.UnknownDeployment: 404,
    modelhost.UnknownJob: 404,
    modelhost.AdmissionRejected: 409,
    modelhost.NoReadyReplica: 409,
    modelhost.InsufficientMemory: 409,
    modelhost.ResetRefused: 409,
    modelhost.FoundationChanged: 409,
    modelhost.JobStoreUnusable: 502,
    modelhost.InvalidDesired: 502,
    config.ConfigUnreadable: 500,
    config.ConfigInvalid: 400,
    config.RestartRequired: 400,
    config.EnvironmentInvalid: 400,
    # Whole branches, where section 19 knows one answer: preparing and running an engine is the daemon's part of an
    # action, not the caller's. What the data plane meets does not come this way at all.
    artifacts.ArtifactError: 502,
    artifacts.RemovalBlocked: 409,
    catalog.CatalogError: 502,
    engines.EngineError: 502,
    gateway.GatewayError: 502,
    daemon.DaemonError: 500,
}

# A candidate that says something wrong is the file's fault; one that cannot be read or built is the daemon's, which is
# what the branches say (document 2, "POST /admin/reload").
RELOAD_STATUSES: dict[type[SbproxyError], int] = {
    admin.ReloadInFlight: 409,
    admin.ReloadUnavailable: 503,
    admin.PasswordHashInvalid: 400,
    config.ConfigInvalid: 400,
    config.RestartRequired: 400,
    config.EnvironmentInvalid: 400,
    catalog.CatalogInvalid: 400,
    catalog.UnknownModel: 400,
    catalog.UnknownVariant: 400,
    catalog.VariantPinRequired: 400,
    catalog.IncompleteCatalogV2: 400,
    engines.UnsafeArgument: 400,
    gateway.UnusableProvider: 400,
    modelhost.FoundationChanged: 400,
    modelhost.InvalidDesired: 400,
    admin.AdminError: 500,
    artifacts.ArtifactError: 500,
    catalog.CatalogError: 500,
    config.ConfigError: 500,
    daemon.DaemonError: 500,
    engines.EngineError: 500,
    gateway.GatewayError: 500,
    modelhost.ModelHostError: 500,
    observe.ObserveError: 500,
}


def status_of(error: SbproxyError) -> int:
    """For any route but reload."""
    return _looked_up(STATUSES, error)


def reload_status_of(error: SbproxyError) -> int:
    return _looked_up(RELOAD_STATUSES, error)


def _looked_up(table: dict[type[SbproxyError], int], error: SbproxyError) -> int:
    """The status of the leaf, or else of its branch. What nobody placed cannot be an answer of this daemon."""
    return next((table[kind] for kind in type(error).__mro__ if kind in table), 500)


def reason_of(error: SbproxyError) -> str:
    """The stable word: an admission refusal is known by its reason, everything else by its code."""
    return error.reason if isinstance(error, modelhost.AdmissionRejected) else error.code
