"""Fetches files over HTTP into partial files: resumes by range, retries with growing pauses, gives up in bounds.

``If-Range`` carries the ETag of the final answer, since that host is the one that judges it; the hub's
``x-linked-etag`` is compared with the catalog before a byte flows (``core.answer``).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sbproxy.artifacts.core.answer import (
    Append,
    AskAgain,
    Refuse,
    Restart,
    StartOver,
    Want,
    judge,
    looks_like_page,
)
from sbproxy.artifacts.core.records import MAX_RECORD_BYTES, SCHEMA_VERSION, ResumeRecord, decode_resume, encode
from sbproxy.artifacts.core.source import public_source
from sbproxy.artifacts.credentials import Token
from sbproxy.artifacts.disk import content, write_atomically
from sbproxy.artifacts.partial import PartialFile
from sbproxy.artifacts.progress import PullTracker
from sbproxy.artifacts.transport import BrokenOff, Exchange, HttpTransport
from sbproxy.catalog.core.model import CatalogFile
from sbproxy.errors.artifacts import DigestMismatch, SizeMismatch, TransportFailed, UnexpectedResponse

CHECKPOINT_BYTES = 16 * 1024 * 1024
PROGRESS_THAT_COUNTS = 1024 * 1024
MAX_START_OVERS = 2


@dataclass(frozen=True, slots=True)
class Retry:
    """``attempts`` in a row may fail without a mebibyte of progress; pauses double up to the limit, in seconds."""

    attempts: int = 5
    first_pause_s: float = 0.5
    max_pause_s: float = 8.0

    def pause(self, failures: int) -> float:
        return float(min(self.max_pause_s, self.first_pause_s * 2 ** (failures - 1)))


@dataclass(frozen=True, slots=True)
class HttpLine:
    """How one artifact's files are reached. ``source`` names them in errors; the functions take path and sha256."""

    transport: HttpTransport
    retry: Retry
    tracker: PullTracker
    source: str
    token: Token | None
    url_of: Callable[[str], str]
    resume_path: Callable[[str], Path]


class HttpFetcher:
    """Fetches the files of one artifact from one hub repository or web address."""

    def __init__(self, line: HttpLine) -> None:
        self._line = line

    def fetch(self, file: CatalogFile, partial: PartialFile) -> None:
        """Fill and seal ``partial``. Raises ArtifactError leaves; what may be continued stays on disk."""
        job = _FileJob(self._line, file, partial)
        with partial.opened():
            job.begin()
            job.fill()
            try:
                partial.seal()
                return
            except DigestMismatch:
                job.forget()
                if not job.resumed:
                    raise
        # Bytes of an earlier pull were damaged on this disk; only a whole fetch can prove the source wrong.
        with partial.opened():
            job.restart()
            job.fill()
            partial.seal()


class _FileJob:
    """One file's way through its attempts. ``resumed``: bytes of an earlier pull are part of what is here."""

    def __init__(self, line: HttpLine, file: CatalogFile, partial: PartialFile) -> None:
        self._line = line
        self._file = file
        self._partial = partial
        self._url = line.url_of(file.path)
        self._record_url = public_source(self._url)
        self._record_path = line.resume_path(file.sha256)
        self._etag = ""
        self._checkpoint_at = 0
        self._start_overs = 0
        self.resumed = False

    def begin(self) -> None:
        """Keep what an earlier pull left when its record fits, else begin at zero."""
        held = self._partial.bytes_on_disk()
        record = self._read_record()
        finished = held == self._file.size_bytes
        if held and record and record.continues(self._record_url, self._file, held) and (record.etag or finished):
            self._etag = record.etag
            self._partial.keep()
            self.resumed = True
        else:
            self.restart()

    def restart(self, etag: str = "") -> None:
        # In this order: old bytes beside a new ETag would pass for the beginning of the new content.
        self._partial.restart()
        self._etag = etag
        self._checkpoint_at = 0
        self.resumed = False

    def fill(self) -> None:
        failures = 0
        while not self._partial.complete:
            before = self._partial.offset
            failure = self._attempt()
            if failure is None:
                continue
            failures = 1 if self._partial.offset - before >= PROGRESS_THAT_COUNTS else failures + 1
            if failures >= self._line.retry.attempts:
                raise TransportFailed(self._line.source, f"{self._file.path}: {failure.reason}")
            self._line.tracker.pause(failure.retry_after_s or self._line.retry.pause(failures))

    def forget(self) -> None:
        """Nothing of this content may be continued."""
        self._partial.discard()
        self._record_path.unlink(missing_ok=True)

    def _attempt(self) -> AskAgain | None:
        """One exchange; ``None`` when the bytes that were asked for came."""
        if not self._etag and self._partial.offset:
            self.restart()
        want = Want(self._file, self._line.source, self._partial.offset, self._etag, self._line.token is not None)
        headers = {"accept-encoding": "identity", "accept": "*/*", "user-agent": "sbproxy"}
        if want.offset:
            headers |= {"range": f"bytes={want.offset}-", "if-range": want.etag}
        try:
            with self._line.transport.get(self._url, headers, self._line.token, self._line.tracker) as exchange:
                return self._receive(exchange, want)
        except BrokenOff as end:
            if end.final:
                raise UnexpectedResponse(self._line.source, f"{self._file.path}: {end.reason}") from None
            if self._partial.complete:
                return None
            return AskAgain(end.reason)

    def _receive(self, exchange: Exchange, want: Want) -> AskAgain | None:
        match judge(exchange.head, want):
            case Refuse(error):
                if isinstance(error, SizeMismatch | DigestMismatch):
                    self.forget()
                raise error
            case AskAgain() as failure:
                return failure
            case StartOver(reason):
                self._start_over(reason)
                return None
            case Restart(etag):
                self.restart(etag)
                self._write_record()
            case Append():
                pass
        return self._read_body(exchange)

    def _read_body(self, exchange: Exchange) -> AskAgain | None:
        try:
            self._take(exchange)
        except (SizeMismatch, UnexpectedResponse):
            self.forget()
            raise
        except BaseException:
            self._leave_record()
            raise
        self._leave_record()
        if self._partial.complete:
            return None
        return AskAgain(f"it ended after {self._partial.offset} of {self._file.size_bytes} bytes")

    def _take(self, exchange: Exchange) -> None:
        for chunk in exchange.body:
            if not self._partial.offset and looks_like_page(chunk, self._file.path):
                raise UnexpectedResponse(self._line.source, f"an HTML page came instead of {self._file.path}")
            self._partial.write(chunk)
            self._line.tracker.fetched_bytes += len(chunk)
            if self._partial.offset - self._checkpoint_at >= CHECKPOINT_BYTES:
                self._write_record()

    def _start_over(self, reason: str) -> None:
        self._start_overs += 1
        self.restart()
        if self._start_overs > MAX_START_OVERS:
            self.forget()
            raise UnexpectedResponse(self._line.source, f"{self._file.path}: {reason}")

    def _read_record(self) -> ResumeRecord | None:
        data = content(self._record_path, MAX_RECORD_BYTES)
        return decode_resume(data) if data is not None else None

    def _leave_record(self) -> None:
        """For the next pull. Only a hint, and the disk may just have filled up: the bytes themselves count."""
        with suppress(OSError):
            self._write_record()

    def _write_record(self) -> None:
        self._checkpoint_at = self._partial.offset
        record = ResumeRecord(
            schema_version=SCHEMA_VERSION,
            url=self._record_url,
            etag=self._etag,
            expected_sha256=self._file.sha256,
            expected_size=self._file.size_bytes,
            completed_bytes=self._partial.offset,
        )
        write_atomically(self._record_path, encode(record))
