"""The places of the store below its root (contracts section 17). Digests are checked before they become names."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from sbproxy.artifacts.core.source import check_sha256


@dataclass(frozen=True, slots=True)
class StorePaths:
    """Every path of one store. Methods raise UnsafeArtifactPath for a digest that is none."""

    root: Path

    @property
    def blobs(self) -> Path:
        return self.root / "blobs" / "sha256"

    @property
    def snapshots(self) -> Path:
        return self.root / "snapshots"

    @property
    def metadata(self) -> Path:
        return self.root / "metadata"

    @property
    def partials(self) -> Path:
        return self.root / "partials"

    @property
    def locks(self) -> Path:
        return self.root / "locks"

    @property
    def mutation_lock(self) -> Path:
        return self.locks / "cache-mutation.lock"

    def blob(self, sha256: str) -> Path:
        return self.blobs / _checked(sha256)

    def blob_lock(self, sha256: str) -> Path:
        return self.locks / f"blob-{_checked(sha256)}.lock"

    def snapshot(self, digest: str) -> Path:
        return self.snapshots / _checked(digest)

    def record(self, digest: str) -> Path:
        return self.metadata / f"{_checked(digest)}.json"

    def damage_mark(self, digest: str) -> Path:
        """Stands where a record stood until a full check found damage; holds the reason."""
        return self.metadata / f"{_checked(digest)}.corrupt"

    def pull_lock(self, digest: str) -> Path:
        return self.locks / f"{_checked(digest)}.lock"

    def lease_lock(self, digest: str) -> Path:
        return self.locks / f"lease-{_checked(digest)}.lock"

    def partial_folder(self, digest: str) -> Path:
        return self.partials / _checked(digest)

    def plan(self, digest: str) -> Path:
        """The files that a pull needs, so that a prune beside it leaves them."""
        return self.partial_folder(digest) / "plan.json"

    def partial(self, digest: str, sha256: str) -> Path:
        return self.partial_folder(digest) / f"{_checked(sha256)}.part"

    def seed(self, digest: str, sha256: str) -> Path:
        """A copy out of another program's cache; beside the partial, whose bytes it must not cost."""
        return self.partial_folder(digest) / f"{_checked(sha256)}.seed"

    def resume(self, digest: str, sha256: str) -> Path:
        return self.partial_folder(digest) / f"{_checked(sha256)}.json"

    def present(self) -> bool:
        """Whether there is a store. Raises OSError when its root is something else than a directory."""
        try:
            found = self.root.stat()
        except FileNotFoundError:
            return False
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(self.root))
        return True

    def create(self) -> None:
        for folder in (self.blobs, self.snapshots, self.metadata, self.partials, self.locks):
            folder.mkdir(parents=True, exist_ok=True)


def _checked(sha256: str) -> str:
    check_sha256(sha256)
    return sha256
