"""Makes files part of the store: blobs, snapshots, ready records, damage marks. All of it appears at once or not.

Callers hold the mutation lock for everything but :meth:`Publication.add_blob`; the ready record is the commit.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from sbproxy.artifacts.core.model import ArtifactState, Corrupt, Missing, Partial, Ready
from sbproxy.artifacts.core.records import (
    MAX_RECORD_BYTES,
    ReadyRecord,
    RecordedFile,
    decode_ready,
    encode,
    manifest,
    needed_blobs,
)
from sbproxy.artifacts.core.source import MANIFEST_NAME, is_sha256
from sbproxy.artifacts.disk import (
    TEMP_PREFIX,
    content,
    remove_tree,
    size_of,
    sync_folder,
    temp_beside,
    write_atomically,
)
from sbproxy.artifacts.partial import PartialFile
from sbproxy.artifacts.paths import StorePaths
from sbproxy.catalog.core.model import CatalogFile, ResolvedArtifact

MAX_REASON_BYTES = 2000
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP})


class Publication:
    """The published half of a store (contracts section 17)."""

    def __init__(self, paths: StorePaths) -> None:
        self.paths = paths

    # -- reading ------------------------------------------------------------------------------------------------

    def record(self, digest: str) -> ReadyRecord | None:
        """The ready record, or ``None`` when there is none that can be read."""
        data = content(self.paths.record(digest), MAX_RECORD_BYTES)
        record = decode_ready(data) if data is not None else None
        return record if record is not None and record.artifact_digest == digest else None

    def digests(self) -> list[str]:
        """Every artifact with a record, readable or not, in name order."""
        names = (path.name for path in self.paths.metadata.glob("*.json")) if self.paths.metadata.is_dir() else ()
        return sorted(filter(is_sha256, (name.removesuffix(".json") for name in names)))

    def state(self, artifact: ResolvedArtifact) -> ArtifactState:
        """Sizes only; a full check is ``FileArtifactStore.verify``."""
        published = self.published_state(artifact.digest)
        if published is not None:
            return published
        held = self._held_bytes(artifact)
        return Partial(min(held, artifact.variant.total_size_bytes)) if held else Missing()

    def published_state(self, digest: str) -> Ready | Corrupt | None:
        """What is published under a digest; ``None`` when nothing is."""
        # The mark wins over a record: a withdrawal that was killed halfway has left both.
        mark = content(self.paths.damage_mark(digest), MAX_REASON_BYTES)
        if mark is not None:
            return Corrupt(_printable(mark[:MAX_REASON_BYTES]))
        if not self.paths.record(digest).exists():
            return None
        record = self.record(digest)
        if record is None:
            return Corrupt("its record cannot be read")
        fault = next(filter(None, (self._size_fault(digest, file) for file in record.files)), None)
        return Corrupt(fault) if fault else Ready(self.paths.snapshot(digest))

    def _size_fault(self, digest: str, file: RecordedFile) -> str | None:
        size = size_of(self.paths.snapshot(digest) / file.path)
        if size is None:
            return f"{file.path} is missing"
        return None if size == file.size_bytes else f"{file.path} has {size} bytes instead of {file.size_bytes}"

    def has_blob(self, file: CatalogFile) -> bool:
        return size_of(self.paths.blob(file.sha256)) == file.size_bytes

    def needed_by(self, digest: str) -> set[str]:
        """Blobs that a published artifact refers to, told by its record or else by its manifest."""
        data = content(self.paths.record(digest), MAX_RECORD_BYTES) or b""
        return needed_blobs(data) or needed_blobs(
            content(self.paths.snapshot(digest) / MANIFEST_NAME, MAX_RECORD_BYTES) or b""
        )

    def _held_bytes(self, artifact: ResolvedArtifact) -> int:
        distinct = {file.sha256: file for file in artifact.variant.files}.values()
        blobs = sum(file.size_bytes for file in distinct if self.has_blob(file))
        folder = self.paths.partial_folder(artifact.digest)
        return blobs + sum(
            size_of(path) or 0 for pattern in ("*.part", "wheels/*.whl") for path in folder.glob(pattern)
        )

    # -- writing ------------------------------------------------------------------------------------------------

    def add_blob(self, partial: PartialFile) -> None:
        """Move a sealed partial to its final name. Read-only, since snapshots share its inode."""
        blob = self.paths.blob(partial.file.sha256)
        partial.path.chmod(0o444)
        partial.path.replace(blob)
        sync_folder(blob.parent)

    def drop_blob(self, sha256: str) -> int:
        """Delete a blob; returns the bytes that its name stood for."""
        blob = self.paths.blob(sha256)
        size = size_of(blob) or 0
        blob.unlink(missing_ok=True)
        return size

    def commit(self, record: ReadyRecord) -> Path:
        """Publish snapshot and record of an artifact whose blobs are all there. Returns the snapshot's path."""
        snapshot = self.paths.snapshot(record.artifact_digest)
        self.clear_leftovers()
        staged = temp_beside(snapshot)
        staged.mkdir()
        for file in record.files:
            target = staged / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            _link(self.paths.blob(file.sha256), target)
        write_atomically(staged / MANIFEST_NAME, manifest(record))
        for folder in {staged, *(path for path in staged.rglob("*") if path.is_dir())}:
            sync_folder(folder)
        self._set_aside(snapshot)
        staged.rename(snapshot)
        sync_folder(self.paths.snapshots)
        self.paths.damage_mark(record.artifact_digest).unlink(missing_ok=True)
        self.write_record(record)
        self.clear_leftovers()
        return snapshot

    def write_record(self, record: ReadyRecord) -> None:
        write_atomically(self.paths.record(record.artifact_digest), encode(record))

    def mark_damaged(self, digest: str, reason: str) -> None:
        """Withdraw an artifact but remember why, so that its state reads Corrupt until it is repaired."""
        write_atomically(self.paths.damage_mark(digest), reason.encode())
        self._withdraw(digest)

    def remove(self, digest: str) -> None:
        """Withdraw an artifact for good. Its blobs stay."""
        self._withdraw(digest)
        self.paths.damage_mark(digest).unlink(missing_ok=True)

    def clear_leftovers(self) -> None:
        """Delete what a killed process had staged; only holders of the mutation lock stage anything here."""
        for folder in (self.paths.snapshots, self.paths.metadata):
            for leftover in folder.glob(f"{TEMP_PREFIX}*"):
                if leftover.is_dir():
                    remove_tree(leftover)
                else:
                    leftover.unlink(missing_ok=True)

    def _withdraw(self, digest: str) -> None:
        self.paths.record(digest).unlink(missing_ok=True)
        sync_folder(self.paths.metadata)
        self._set_aside(self.paths.snapshot(digest))
        self.clear_leftovers()

    def _set_aside(self, snapshot: Path) -> None:
        """Out of the way in one step: a half-deleted snapshot never stands under a published name."""
        if snapshot.exists():
            snapshot.rename(temp_beside(snapshot))


def _link(blob: Path, target: Path) -> None:
    """A hard link, so that a snapshot can be mounted alone; a relative symlink where the file system has none."""
    try:
        target.hardlink_to(blob)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        target.symlink_to(os.path.relpath(blob, target.parent))


def _printable(mark: bytes) -> str:
    text = mark.decode("utf-8", "replace")
    return "".join(char if char.isprintable() else " " for char in text).strip() or "a check found damage"
