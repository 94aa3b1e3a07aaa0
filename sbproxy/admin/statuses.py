"""Decides the HTTP status of every foreseen failure (contracts sections 19 and 49). Total: a test walks the tree."""

from __future__ import annotations

from sbproxy.errors import (
    SbproxyError,
    admin,
    artifacts,
    catalog,
    config,
    daemon,
    engines,
    gateway,
    governance,
    keys,
    modelhost,
    observe,
)

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
    admin.ConfigMoved: 409,
    admin.AdminListenFailed: 500,
    admin.AdminTlsUnusable: 500,
    admin.PasswordHashInvalid: 500,
    observe.UnknownParameter: 400,
    observe.UnsupportedParameter: 400,
    observe.InvalidParameter: 400,
    observe.LogSettingInvalid: 400,
    observe.ValueStoreUnusable: 502,
    modelhost.UnknownDeployment: 404,
    modelhost.UnknownJob: 404,
    modelhost.AdmissionRejected: 409,
    modelhost.NoReadyReplica: 409,
    modelhost.InsufficientMemory: 409,
    modelhost.ResetRefused: 409,
    modelhost.FoundationChanged: 409,
    modelhost.JobStoreUnusable: 502,
    modelhost.JobNotCancellable: 409,
    modelhost.HandoffTimedOut: 502,
    modelhost.InvalidDesired: 502,
    modelhost.RevisionConflict: 409,
    modelhost.CatalogFenced: 409,
    modelhost.DesiredStoreFailed: 502,
    modelhost.RuntimeCommitFailed: 502,
    config.ConfigUnreadable: 500,
    config.ConfigNotWritten: 500,
    config.ConfigInvalid: 400,
    config.RestartRequired: 400,
    config.EnvironmentInvalid: 400,
    # Whole branches, where section 19 knows one answer: preparing and running an engine is the daemon's part of an
    # action, not the caller's. What the data plane meets does not come this way at all.
    artifacts.ArtifactError: 502,
    artifacts.RemovalBlocked: 409,
    artifacts.ArtifactAbsent: 404,
    artifacts.NoCacheBudget: 409,
    catalog.CatalogError: 502,
    engines.EngineError: 502,
    gateway.GatewayError: 502,
    daemon.DaemonError: 500,
    keys.KeysError: 500,
    keys.KeyManagementOff: 409,
    keys.UnknownKey: 404,
    keys.UnknownCredential: 404,
    keys.KeyRecordExists: 409,
    keys.KeyRevisionConflict: 409,
    keys.KeyTerminal: 409,
    keys.RotationRefused: 409,
    keys.ConfiguredRecord: 409,
    keys.CredentialInUse: 409,
    governance.GovernanceError: 500,
    governance.GovernanceUnavailable: 503,
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
    modelhost.CatalogFenced: 400,
    admin.AdminError: 500,
    artifacts.ArtifactError: 500,
    catalog.CatalogError: 500,
    config.ConfigError: 500,
    daemon.DaemonError: 500,
    engines.EngineError: 500,
    gateway.GatewayError: 500,
    governance.GovernanceError: 500,
    keys.KeySettingInvalid: 400,
    keys.KeyMaterialUnusable: 400,
    keys.KeysError: 500,
    modelhost.ModelHostError: 500,
    observe.ObserveError: 500,
}

# A document that was sent is wrong wherever it cannot be applied; only what the file and our own stores refuse is the
# daemon's fault (document 2, "PUT /admin/config").
CONFIG_WRITE_STATUSES: dict[type[SbproxyError], int] = {
    admin.BodyNotJson: 415,
    admin.ReloadInFlight: 409,
    admin.ReloadUnavailable: 503,
    admin.ConfigMoved: 409,
    config.ConfigUnreadable: 500,
    config.ConfigNotWritten: 500,
    modelhost.JobStoreUnusable: 500,
    modelhost.DesiredStoreFailed: 500,
    SbproxyError: 400,
}

# Of a pull that is asked for: a name that the catalog lacks, or one that this machine could not run.
PULL_STATUSES: dict[type[SbproxyError], int] = {
    catalog.UnknownModel: 404,
    catalog.UnknownVariant: 400,
    catalog.CatalogError: 422,
    artifacts.UnsafeArtifactPath: 422,
}

PREPARE_FAILED = "prepare_failed"
_INFRASTRUCTURE = (502, "prepare_infrastructure_failed")

# Of a replaced deployment map (contracts sections 17 and 19): status, and the code where it is not the leaf's own word.
REPLACE_STATUSES: dict[type[SbproxyError], tuple[int, str | None]] = {
    admin.InvalidBody: (400, None),
    admin.AuthorityReadOnly: (403, None),
    admin.ReloadUnavailable: (503, None),
    modelhost.InvalidDesired: (400, None),
    modelhost.RevisionConflict: (409, None),
    modelhost.AdmissionRejected: (422, None),
    modelhost.InsufficientMemory: (422, None),
    modelhost.FoundationChanged: (422, PREPARE_FAILED),
    modelhost.DesiredStoreFailed: (502, None),
    modelhost.RuntimeCommitFailed: (502, None),
    catalog.UnknownModel: (400, None),
    catalog.UnknownVariant: (400, None),
    catalog.NoCompatibleVariant: (422, "engine_incompatible"),
    catalog.CatalogError: (422, PREPARE_FAILED),
    engines.EngineBlocked: (422, None),
    engines.EngineIncompatible: (422, None),
    engines.UnsafeArgument: (422, None),
    engines.EngineError: (502, None),
    SbproxyError: _INFRASTRUCTURE,
}


def replace_outcome_of(error: SbproxyError) -> tuple[int, str]:
    """Status and code of a refused replacement. An operator's choice is a 422, a failing machine a 502."""
    if isinstance(error, artifacts.ArtifactError) and error.policy:
        return 422, PREPARE_FAILED
    status, code = next(REPLACE_STATUSES[kind] for kind in type(error).__mro__ if kind in REPLACE_STATUSES)
    return status, code or reason_of(error)


def status_of(error: SbproxyError) -> int:
    """For any route but reload."""
    return _looked_up(STATUSES, error)


def pull_status_of(error: SbproxyError) -> int:
    return _looked_up({**STATUSES, **PULL_STATUSES}, error)


def reload_status_of(error: SbproxyError) -> int:
    return _looked_up(RELOAD_STATUSES, error)


def config_write_status_of(error: SbproxyError) -> int:
    return _looked_up(CONFIG_WRITE_STATUSES, error)


def _looked_up(table: dict[type[SbproxyError], int], error: SbproxyError) -> int:
    """The status of the leaf, or else of its branch. What nobody placed cannot be an answer of this daemon."""
    return next((table[kind] for kind in type(error).__mro__ if kind in table), 500)


def reason_of(error: SbproxyError) -> str:
    """The stable word: an admission refusal is known by its reason, everything else by its code."""
    return error.reason if isinstance(error, modelhost.AdmissionRejected) else error.code
