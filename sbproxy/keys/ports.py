"""The roles of the key plane: where records are kept, who counts usage, and what the admin API may do with keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from sbproxy.keys.core.preview import Sample
from sbproxy.keys.core.record import CredentialRecord, KeyRecord


class KeyStore(Protocol):
    """Durable records. Every method raises KeyStoreFailed when the store cannot be asked."""

    async def get_key(self, key_id: str) -> KeyRecord | None: ...

    async def list_keys(self) -> Sequence[KeyRecord]:
        """Oldest first."""
        ...

    async def insert_key(self, record: KeyRecord) -> None:
        """Raises KeyRecordExists, or UnknownCredential for a ``credential_id`` that is not there."""
        ...

    async def swap_key(self, record: KeyRecord, expected_revision: int) -> None:
        """Replace a record whose revision still is the expected one, atomically over all processes.

        Raises UnknownKey, KeyRevisionConflict, or UnknownCredential.
        """
        ...

    async def delete_key(self, key_id: str) -> bool:
        """False when there was none."""
        ...

    async def get_credential(self, credential_id: str) -> CredentialRecord | None: ...

    async def list_credentials(self) -> Sequence[CredentialRecord]:
        """Oldest first."""
        ...

    async def insert_credential(self, record: CredentialRecord) -> None:
        """Raises KeyRecordExists."""
        ...

    async def replace_credential(self, record: CredentialRecord) -> None:
        """Raises UnknownCredential."""
        ...

    async def delete_credential(self, credential_id: str) -> bool:
        """False when there was none. Raises CredentialInUse while a key is bound to it, atomically."""
        ...

    async def close(self) -> None: ...


Kind = Literal["key", "credential"]


@dataclass(frozen=True, slots=True)
class Invalidated:
    """A record that changed or went. ``id`` None: every record of that kind."""

    kind: Kind
    id: str | None


class Broadcast(Protocol):
    """Tells the other processes of a shared tier. ``publish`` raises KeyStoreFailed."""

    def listen(self, heard: Callable[[Invalidated], None]) -> None: ...

    async def publish(self, what: Invalidated) -> None: ...

    async def close(self) -> None: ...


class UsageReader(Protocol):
    """What governance has counted for a key."""

    async def snapshot(self, record: KeyRecord) -> Mapping[str, Any]:
        """The governance snapshot as JSON values. Raises GovernanceUnavailable."""
        ...


@dataclass(frozen=True, slots=True)
class Propagation:
    """A change that is stored, but that the shared tier could not be told about."""

    detail: str
    effect: str


@dataclass(frozen=True, slots=True)
class KeyChanged:
    """A stored change: the record before and after it."""

    record: KeyRecord
    before: KeyRecord | None = None
    propagation: Propagation | None = None


@dataclass(frozen=True, slots=True)
class KeyMinted(KeyChanged):
    """``token`` exists here and nowhere else. ``grace_expires_at``: when the secret before it stops (Unix seconds)."""

    token: str = field(default="", repr=False)
    grace_expires_at: float | None = None


@dataclass(frozen=True, slots=True)
class CredentialChanged:
    record: CredentialRecord
    before: CredentialRecord | None = None
    propagation: Propagation | None = None


KeyAction = Literal["revoke", "block", "unblock"]


class KeyControl(Protocol):
    """Keys and credentials as an operator handles them. Raises leaves of KeyAdministrationError and InvalidBody."""

    async def list_keys(self) -> Sequence[KeyRecord]: ...

    async def get_key(self, key_id: str) -> KeyRecord: ...

    async def mint(self, policy: Mapping[str, Any]) -> KeyMinted:
        """``policy``: record field to value, as ``core.change`` takes it."""
        ...

    async def change(self, key_id: str, expected_revision: int, policy: Mapping[str, Any]) -> KeyChanged: ...

    async def act(self, key_id: str, action: KeyAction, expected_revision: int | None) -> KeyChanged: ...

    async def rotate(self, key_id: str, expected_revision: int | None, grace_secs: int) -> KeyMinted: ...

    async def delete_key(self, key_id: str) -> KeyChanged: ...

    async def preview(self, key_id: str, sample: Sample, at: float | None) -> dict[str, Any]: ...

    async def evict(self, key_id: str | None) -> Propagation | None:
        """Drop cached policies here and, on a shared tier, in every process."""
        ...


class CredentialControl(Protocol):
    """Upstream credentials as an operator handles them. Raises leaves of KeyAdministrationError and InvalidBody."""

    async def list_credentials(self) -> Sequence[CredentialRecord]: ...

    async def get_credential(self, credential_id: str) -> CredentialRecord: ...

    async def create_credential(
        self, said: Mapping[str, Any], *, vault_ref: str | None, secret: str | None
    ) -> CredentialChanged: ...

    async def change_credential(
        self, credential_id: str, said: Mapping[str, Any], *, vault_ref: str | None, secret: str | None
    ) -> CredentialChanged: ...

    async def act_on_credential(self, credential_id: str, action: KeyAction) -> CredentialChanged: ...

    async def delete_credential(self, credential_id: str) -> CredentialChanged: ...


@dataclass(frozen=True, slots=True)
class KeyAdministration:
    """Everything that the admin API needs of the key plane. ``usage`` None: nothing counts."""

    keys: KeyControl
    credentials: CredentialControl
    usage: UsageReader | None = None
