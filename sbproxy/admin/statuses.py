"""Decides the HTTP status of every foreseen failure (contracts sections 19 and 49). Total: a test walks the tree."""

from __future__ import annotations

from sbproxy.errors import SbproxyError, admin, artifacts, catalog, config, engines, gateway, modelhost, observe

STATUSES: dict[type[SbproxyError], int] = {
    admin.InvalidBody: 400,
    admin.InvalidJobId: 400,
    admin.InvalidEventId: 400,
    admin.StreamsExhausted: 503,
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
    modelhost.InvalidDesired: 502,
    modelhost.AdmissionRejected: 409,
    modelhost.NoReadyReplica: 409,
    modelhost.InsufficientMemory: 409,
    modelhost.ResetRefused: 409,
    modelhost.FoundationChanged: 409,
    # Preparation and engine failures of a lifecycle action are the daemon's, not the caller's.
    artifacts.SizeMismatch: 502,
    artifacts.DigestMismatch: 502,
    artifacts.ManualArtifactMissing: 502,
    artifacts.OfflineArtifactMissing: 502,
    artifacts.PickleRefused: 502,
    artifacts.RemovalBlocked: 409,
    artifacts.UnsafeArtifactPath: 502,
    artifacts.SourceNotFound: 502,
    artifacts.SourceDenied: 502,
    artifacts.TransportFailed: 502,
    artifacts.UnexpectedResponse: 502,
    artifacts.DiskFull: 502,
    artifacts.StoreUnusable: 502,
    artifacts.CacheCorrupt: 502,
    artifacts.PullCancelled: 502,
    engines.EngineBlocked: 502,
    engines.EngineIncompatible: 502,
    engines.UnsafeArgument: 502,
    engines.EngineAcquisitionFailed: 502,
    engines.EngineLaunchFailed: 502,
    gateway.UpstreamUnreachable: 502,
    gateway.UpstreamTimeout: 502,
    gateway.UpstreamBroken: 502,
    gateway.UpstreamTooLarge: 502,
    catalog.CatalogUnreadable: 502,
    catalog.CatalogInvalid: 502,
    catalog.UnknownModel: 502,
    catalog.UnknownVariant: 502,
    catalog.VariantPinRequired: 502,
    catalog.IncompleteCatalogV2: 502,
    catalog.NoCompatibleVariant: 502,
    config.ConfigUnreadable: 500,
    config.ConfigInvalid: 400,
    config.RestartRequired: 400,
    config.EnvironmentInvalid: 400,
}

# A candidate that says something wrong is the file's fault; one that cannot be read or built is the daemon's
# (document 2, "POST /admin/reload").
_RELOAD: dict[type[SbproxyError], int] = {
    admin.ReloadInFlight: 409,
    admin.ReloadUnavailable: 503,
    config.ConfigInvalid: 400,
    config.RestartRequired: 400,
    config.EnvironmentInvalid: 400,
    catalog.CatalogInvalid: 400,
    catalog.UnknownModel: 400,
    catalog.UnknownVariant: 400,
    catalog.VariantPinRequired: 400,
    catalog.IncompleteCatalogV2: 400,
    engines.UnsafeArgument: 400,
    modelhost.FoundationChanged: 400,
    modelhost.InvalidDesired: 400,
}


def status_of(error: SbproxyError) -> int:
    """For any route but reload. A leaf that nobody placed is a 500."""
    return STATUSES.get(type(error), 500)


def reload_status_of(error: SbproxyError) -> int:
    return _RELOAD.get(type(error), 500)


def reason_of(error: SbproxyError) -> str:
    """The stable word: an admission refusal is known by its reason, everything else by its code."""
    return error.reason if isinstance(error, modelhost.AdmissionRejected) else error.code
