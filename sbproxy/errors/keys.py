"""What keys and credentials refuse, on the data plane and in their administration (contracts sections 7, 49, 50).

No text of these holds any part of a token or a secret.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sbproxy.errors.tree import SbproxyError


class KeysError(SbproxyError):
    """Branch: virtual keys and credentials."""


class KeyRefused(KeysError):
    """Branch: a request of the data plane that its key does not carry. Decisions return these; callers raise them."""


@dataclass(eq=False)
class KeyMissing(KeyRefused):
    """No key where one is required."""

    code: ClassVar[str] = "missing_api_key"
    header: str = "Authorization"

    def text(self) -> str:
        return f"this origin needs a key; send it as {self.header}"


@dataclass(eq=False)
class KeyUnknown(KeyRefused):
    """A damaged token, an unknown id or a wrong secret; which of them is not told."""

    code: ClassVar[str] = "invalid_api_key"

    def text(self) -> str:
        return "the key is not valid here; check it, or ask the operator for another one"


@dataclass(eq=False)
class KeyConflict(KeyRefused):
    """Two headers carry two different keys."""

    code: ClassVar[str] = "conflicting_keys"

    def text(self) -> str:
        return "the request carries two different keys; send one"


@dataclass(eq=False)
class KeyBlocked(KeyRefused):
    code: ClassVar[str] = "key_blocked"
    key_id: str

    def text(self) -> str:
        return f"key {self.key_id} is blocked; ask the operator"


@dataclass(eq=False)
class KeyRevoked(KeyRefused):
    code: ClassVar[str] = "key_revoked"
    key_id: str

    def text(self) -> str:
        return f"key {self.key_id} is revoked; ask the operator for another one"


@dataclass(eq=False)
class KeyExpired(KeyRefused):
    code: ClassVar[str] = "key_expired"
    key_id: str

    def text(self) -> str:
        return f"key {self.key_id} has expired; ask the operator for another one"


@dataclass(eq=False)
class TenantMismatch(KeyRefused):
    """A key of one tenant at an origin of another."""

    code: ClassVar[str] = "tenant_mismatch"
    key_id: str

    def text(self) -> str:
        return f"key {self.key_id} does not belong to this origin's tenant"


@dataclass(eq=False)
class PrincipalNotAllowed(KeyRefused):
    code: ClassVar[str] = "principal_not_allowed"
    key_id: str

    def text(self) -> str:
        return f"key {self.key_id} may not be used by this principal"


@dataclass(eq=False)
class ModelNotAllowed(KeyRefused):
    code: ClassVar[str] = "model_not_allowed"
    key_id: str
    model: str

    def text(self) -> str:
        return f"key {self.key_id} may not use the model {self.model!r}"


@dataclass(eq=False)
class ProviderNotAllowed(KeyRefused):
    code: ClassVar[str] = "provider_not_allowed"
    key_id: str
    provider: str

    def text(self) -> str:
        return f"key {self.key_id} may not use the provider {self.provider!r}"


@dataclass(eq=False)
class ToolNotAllowed(KeyRefused):
    code: ClassVar[str] = "tool_not_allowed"
    key_id: str
    tool: str

    def text(self) -> str:
        return f"key {self.key_id} may not use the tool {self.tool!r}"


@dataclass(eq=False)
class PiiRuleInactive(KeyRefused):
    """A redaction rule that the key demands is not active at this origin: nothing is sent (contracts section 50)."""

    code: ClassVar[str] = "pii_rule_inactive"
    key_id: str
    rule: str

    def text(self) -> str:
        return f"key {self.key_id} requires the redaction rule {self.rule!r}, which this origin does not apply"


@dataclass(eq=False)
class KeyStoreUnavailable(KeyRefused):
    """Neither yes nor no: the store that knows the key does not answer."""

    code: ClassVar[str] = "key_store_unavailable"
    retryable: ClassVar[bool] = True

    def text(self) -> str:
        return "the key cannot be checked right now, because the key store does not answer; try again"


@dataclass(eq=False)
class CredentialUnusable(KeyRefused):
    """The credential that a key is bound to is missing, not active, of another tenant, or cannot be opened."""

    code: ClassVar[str] = "credential_unusable"
    key_id: str
    reason: str

    def text(self) -> str:
        return f"the upstream credential of key {self.key_id} cannot be used: {self.reason}; tell the operator"


class KeyAdministrationError(KeysError):
    """Branch: what an operator asked for cannot be done."""


@dataclass(eq=False)
class KeyManagementOff(KeyAdministrationError):
    code: ClassVar[str] = "key_management_disabled"

    def text(self) -> str:
        return "key_management is not enabled"


@dataclass(eq=False)
class UnknownKey(KeyAdministrationError):
    code: ClassVar[str] = "unknown_key"
    key_id: str

    def text(self) -> str:
        return f"there is no key {self.key_id}; GET /admin/keys lists them"


@dataclass(eq=False)
class UnknownCredential(KeyAdministrationError):
    code: ClassVar[str] = "unknown_credential"
    credential_id: str

    def text(self) -> str:
        return f"there is no credential {self.credential_id}; GET /admin/credentials lists them"


@dataclass(eq=False)
class KeyRecordExists(KeyAdministrationError):
    """An id that is taken. ``kind`` is key or credential."""

    code: ClassVar[str] = "already_exists"
    kind: str
    id: str

    def text(self) -> str:
        return f"there already is a {self.kind} {self.id}"


@dataclass(eq=False)
class KeyRevisionConflict(KeyAdministrationError):
    """Somebody was faster, or the caller looked at an old record."""

    code: ClassVar[str] = "revision_conflict"
    key_id: str
    expected_revision: int
    current_revision: int

    def text(self) -> str:
        return "key policy revision conflict"


@dataclass(eq=False)
class KeyTerminal(KeyAdministrationError):
    code: ClassVar[str] = "key_terminal"
    key_id: str
    current_revision: int

    def text(self) -> str:
        return "revoked key is terminal"


@dataclass(eq=False)
class RotationRefused(KeyAdministrationError):
    """An id that the configuration chose and that no minted token can carry."""

    code: ClassVar[str] = "rotation_refused"
    key_id: str
    current_revision: int

    def text(self) -> str:
        return f"key {self.key_id} has an id that no minted token can carry; change its secret where it is seeded"


@dataclass(eq=False)
class ConfiguredRecord(KeyAdministrationError):
    """A change by the API to what the configuration seeds. ``kind`` is key or credential."""

    code: ClassVar[str] = "configured_record"
    kind: str
    id: str
    way_out: str

    def text(self) -> str:
        return f"{self.kind} {self.id} is written in key_management.seed; {self.way_out}"


@dataclass(eq=False)
class CredentialInUse(KeyAdministrationError):
    code: ClassVar[str] = "credential_in_use"
    credential_id: str
    keys: tuple[str, ...]

    def text(self) -> str:
        named = f" ({', '.join(self.keys)})" if self.keys else ""
        return f"credential {self.credential_id} is bound to keys{named}; unbind or delete them first"


@dataclass(eq=False)
class KeyStoreFailed(KeyAdministrationError):
    """The store cannot be read or written. ``where`` holds no password."""

    code: ClassVar[str] = "key_store_failed"
    retryable: ClassVar[bool] = True
    where: str
    reason: str

    def text(self) -> str:
        return f"key store {self.where}: {self.reason}"


@dataclass(eq=False)
class KeyMaterialUnusable(KeyAdministrationError):
    """The pepper or the master key cannot be had, or does not open what was sealed."""

    code: ClassVar[str] = "key_material_unusable"
    where: str
    reason: str

    def text(self) -> str:
        return f"{self.where}: {self.reason}"


@dataclass(eq=False)
class KeySettingInvalid(KeyAdministrationError):
    """A value of key_management, its seeds or static keys that turned out wrong once its secrets were resolved."""

    code: ClassVar[str] = "key_setting_invalid"
    path: str
    reason: str

    def text(self) -> str:
        return f"{self.path}: {self.reason}"
