"""The configuration file on disk: its text for the editor, and its replacement in one step."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Self

from sbproxy.config.redacted_text import redacted
from sbproxy.config.yaml_text import MAX_BYTES, decode
from sbproxy.errors.config import ConfigNotWritten, ConfigUnreadable


def shown_text(path: Path) -> str:
    """The text on disk, secrets masked. Blocking; raises ConfigUnreadable."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigUnreadable(str(path), error.strerror or str(error)) from None
    try:
        return redacted(decode(data))
    except ValueError as error:
        raise ConfigUnreadable(str(path), str(error)) from None


class StagedFile:
    """``data`` complete and durable beside ``path``, under another name. ``publish`` puts it in place; the end of the
    ``with`` block removes what was not published. Blocking; raises ConfigNotWritten."""

    def __init__(self, path: Path, data: bytes) -> None:
        self._path = path
        try:
            # A link to the file stays a link.
            self._target = path.resolve(strict=True)
            # One name, so that what a crash leaves behind is replaced and not added to.
            self._staged = self._target.with_name(f".{self._target.name}.sbproxy-new")
            self._write(data)
        except OSError as error:
            raise ConfigNotWritten(str(path), error.strerror or str(error)) from None

    def publish(self) -> None:
        """One rename, and as good as instant; raises ConfigNotWritten."""
        try:
            self._staged.replace(self._target)
            self._sync_directory()
        except OSError as error:
            raise ConfigNotWritten(str(self._path), error.strerror or str(error), running=True) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._discard()

    def _write(self, data: bytes) -> None:
        before = self._target.stat()
        self._discard()
        descriptor = os.open(self._staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                # Owner before mode, which a change of the owner may reset. A daemon that is not root cannot give away.
                with contextlib.suppress(PermissionError):
                    os.fchown(file.fileno(), before.st_uid, before.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            self._discard()
            raise

    def _discard(self) -> None:
        with contextlib.suppress(OSError):
            self._staged.unlink()

    def _sync_directory(self) -> None:
        descriptor = os.open(self._target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
