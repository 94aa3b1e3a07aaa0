"""What can go wrong with model files (contracts section 17)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sbproxy.errors.tree import SbproxyError


class ArtifactError(SbproxyError):
    """Branch: fetching, verifying, publishing and removing artifacts.

    ``policy`` is true for refusals that an operator's choice causes (422 ``prepare_failed``); the rest are
    infrastructure failures (502 ``prepare_infrastructure_failed``).
    """

    policy: ClassVar[bool] = False


@dataclass(eq=False)
class SizeMismatch(ArtifactError):
    """A file's byte count is not the catalog's."""

    code: ClassVar[str] = "size_mismatch"
    policy: ClassVar[bool] = True
    file: str
    expected_bytes: int
    actual_bytes: int

    def text(self) -> str:
        return f"{self.file}: {self.actual_bytes} bytes, the catalog says {self.expected_bytes}; nothing was published"


@dataclass(eq=False)
class DigestMismatch(ArtifactError):
    """A file's SHA-256 is not the catalog's; the bytes were thrown away."""

    code: ClassVar[str] = "digest_mismatch"
    policy: ClassVar[bool] = True
    file: str
    expected_sha256: str
    actual_sha256: str

    def text(self) -> str:
        return (
            f"{self.file}: sha256 {self.actual_sha256[:12]}… is not the catalog's {self.expected_sha256[:12]}…;"
            " the bytes were discarded"
        )


@dataclass(eq=False)
class ManualArtifactMissing(ArtifactError):
    """``pull: manual`` met a cache miss."""

    code: ClassVar[str] = "manual_artifact_missing"
    policy: ClassVar[bool] = True
    subject: str

    def text(self) -> str:
        model = self.subject.split(":")[0]
        return f"{self.subject} is not in the cache and its pull policy is manual; run: sbproxy models pull {model}"


@dataclass(eq=False)
class OfflineArtifactMissing(ArtifactError):
    """The network is denied and the cache has no verified copy."""

    code: ClassVar[str] = "offline_artifact_missing"
    policy: ClassVar[bool] = True
    subject: str

    def text(self) -> str:
        return f"{self.subject} is not in the cache and --offline forbids fetching it"


@dataclass(eq=False)
class PickleRefused(ArtifactError):
    """A pickle variant without the catalog's ``allow_pickle``."""

    code: ClassVar[str] = "pickle_refused"
    policy: ClassVar[bool] = True
    subject: str

    def text(self) -> str:
        return f"{self.subject} holds pickle files; the catalog entry must say allow_pickle: true"


@dataclass(eq=False)
class PickleUnsafe(ArtifactError):
    """A pickle file that the catalog allows did not pass the supply-chain scan. ``named`` is the global that it
    names and may not, if that is why."""

    code: ClassVar[str] = "pickle_unsafe"
    policy: ClassVar[bool] = True
    subject: str
    file: str
    reason: str
    named: str | None = None

    def text(self) -> str:
        return (
            f"{self.subject}: the pickle file {self.file} {self.reason}; nothing was published,"
            " choose a safetensors or gguf variant"
        )


@dataclass(eq=False)
class StartupArtifactNotSelected(ArtifactError):
    """A start met a cache miss of an artifact whose policy is ``on_demand``."""

    code: ClassVar[str] = "startup_artifact_not_selected"
    policy: ClassVar[bool] = True
    subject: str

    def text(self) -> str:
        model = self.subject.split(":")[0]
        return (
            f"{self.subject} is not in the cache and pull: on_demand does not fetch it at start;"
            f" set pull: on_boot, or run: sbproxy models pull {model}"
        )


@dataclass(eq=False)
class SourceCredentialInvalid(ArtifactError):
    """The credential for a source cannot be used as configured. ``reason`` never holds its value."""

    code: ClassVar[str] = "source_credential_invalid"
    policy: ClassVar[bool] = True
    source: str
    reason: str

    def text(self) -> str:
        return f"the credential for {self.source} cannot be used: {self.reason}"


@dataclass(eq=False)
class PackageToolMissing(ArtifactError):
    """A ``pypi:`` source needs pip and this interpreter has none."""

    code: ClassVar[str] = "package_tool_missing"
    executable: str

    def text(self) -> str:
        return f"{self.executable} has no pip, which pypi: sources need; run: {self.executable} -m ensurepip --upgrade"


_UNBLOCK = {
    "configured": "take it out of the deployments first",
    "pinned": "unpin its deployment first",
    "resident": "stop the deployment that runs it first",
    "leased": "another process runs or checks it; try again when that has ended",
    "downloading": "wait for the pull or cancel it first",
    "locked": "another process holds its lock; try again when that has ended",
}


@dataclass(eq=False)
class RemovalBlocked(ArtifactError):
    """A protected artifact was asked to go. ``reason``: configured, resident, pinned, leased, locked, downloading."""

    code: ClassVar[str] = "removal_blocked"
    policy: ClassVar[bool] = True
    digest: str
    reason: str

    def text(self) -> str:
        step = _UNBLOCK.get(self.reason)
        return f"artifact {self.digest[:12]}… cannot be removed: it is {self.reason}" + (f"; {step}" if step else "")


@dataclass(eq=False)
class ArtifactAbsent(ArtifactError):
    """No verified artifact has that digest."""

    code: ClassVar[str] = "artifact_not_cached"
    policy: ClassVar[bool] = True
    digest: str

    def text(self) -> str:
        return f"no verified artifact {self.digest} is in the cache; GET /admin/model-host/files lists those that are"


@dataclass(eq=False)
class NoCacheBudget(ArtifactError):
    """A collection was asked for and there is nothing to collect down to."""

    code: ClassVar[str] = "cache_budget_missing"
    policy: ClassVar[bool] = True
    directory: str

    def text(self) -> str:
        return (
            f"cache directory {self.directory} has no budget to collect down to;"
            " set proxy.model_host.cache.budget_gib and reload"
        )


@dataclass(eq=False)
class UnsafeArtifactPath(ArtifactError):
    """A path of a file or source that would leave its folder or is not absolute where it must be."""

    code: ClassVar[str] = "invalid_artifact"
    policy: ClassVar[bool] = True
    path: str
    reason: str

    def text(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(eq=False)
class SourceNotFound(ArtifactError):
    """The source has no such file."""

    code: ClassVar[str] = "source_not_found"
    file: str
    source: str

    def text(self) -> str:
        return f"{self.file} does not exist at {self.source}"


@dataclass(eq=False)
class SourceDenied(ArtifactError):
    """401 or 403 of a gated source."""

    code: ClassVar[str] = "source_denied"
    source: str
    status: int
    had_token: bool

    def text(self) -> str:
        if self.had_token:
            return (
                f"{self.source} refused the token (HTTP {self.status}); accept the licence there or use another token"
            )
        return f"{self.source} is gated (HTTP {self.status}); accept its licence and set HF_TOKEN"


@dataclass(eq=False)
class TransportFailed(ArtifactError):
    """The connection broke, timed out or ended early, and the bounded retries are used up."""

    code: ClassVar[str] = "transport_failed"
    retryable: ClassVar[bool] = True
    source: str
    reason: str

    def text(self) -> str:
        return f"fetching from {self.source} failed: {self.reason}; the part that came is kept, run it again to resume"


@dataclass(eq=False)
class UnexpectedResponse(ArtifactError):
    """The source answered with something that is not the file: an HTML page, a wrong range, a bad status."""

    code: ClassVar[str] = "unexpected_response"
    retryable: ClassVar[bool] = True
    source: str
    reason: str

    def text(self) -> str:
        return f"{self.source} did not send the file: {self.reason}"


@dataclass(eq=False)
class DiskFull(ArtifactError):
    """Not enough room, seen before or during the fetch."""

    code: ClassVar[str] = "disk_full"
    directory: str
    needed_bytes: int
    free_bytes: int

    def text(self) -> str:
        mib = 1024 * 1024
        return (
            f"{self.directory}: {self.needed_bytes // mib} MiB needed, {self.free_bytes // mib} MiB free;"
            " free some space (sbproxy models prune) and run it again"
        )


@dataclass(eq=False)
class StoreUnusable(ArtifactError):
    """The cache folder cannot be created, read or written."""

    code: ClassVar[str] = "store_unusable"
    directory: str
    reason: str

    def text(self) -> str:
        return f"cache directory {self.directory}: {self.reason}"


@dataclass(eq=False)
class CacheCorrupt(ArtifactError):
    """A published snapshot no longer matches its record."""

    code: ClassVar[str] = "cache_corrupt"
    subject: str
    reason: str

    def text(self) -> str:
        return f"{self.subject}: the cached copy is damaged ({self.reason}); pull it again"


@dataclass(eq=False)
class PullCancelled(ArtifactError):
    """The caller asked the pull to end. What was fetched is kept for a resume."""

    code: ClassVar[str] = "pull_cancelled"
    retryable: ClassVar[bool] = True
    subject: str

    def text(self) -> str:
        return f"pulling {self.subject} was cancelled; the part that came is kept"
