"""Decides what an HTTP answer to a file request means: append, restart, start over, ask again or refuse.

Reads the status line and headers only; the bytes themselves are counted and hashed by the partial file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

from sbproxy.catalog.core.model import CatalogFile
from sbproxy.errors.artifacts import (
    ArtifactError,
    DigestMismatch,
    SizeMismatch,
    SourceDenied,
    SourceNotFound,
    UnexpectedResponse,
)

MAX_HOPS = 8
MAX_RETRY_AFTER_S = 30.0
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")
_LINKED_SHA256 = re.compile(r'"?([0-9a-f]{64})"?')
_RETRYABLE = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Want:
    """What was asked. ``source`` is the name for errors; ``etag`` is that of the bytes before ``offset``."""

    file: CatalogFile
    source: str
    offset: int
    etag: str
    had_token: bool


@dataclass(frozen=True, slots=True)
class Head:
    """The final answer's head, header names in lower case. ``foreign``: a host other than the first gave it.

    ``linked`` holds the hub's own ``x-linked-*`` headers, which stand on the redirect and not on the final answer.
    """

    status: int
    headers: Mapping[str, str]
    foreign: bool
    linked: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Append:
    """206: the body continues at the offset that was asked for."""


@dataclass(frozen=True, slots=True)
class Restart:
    """200: the body is the whole file, whatever was asked. ``etag`` is empty unless it is a strong one."""

    etag: str


@dataclass(frozen=True, slots=True)
class StartOver:
    """The partial does not belong to what is there now: throw it away and ask for the whole file."""

    reason: str


@dataclass(frozen=True, slots=True)
class AskAgain:
    """A failure that may pass."""

    reason: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Refuse:
    """The end of this pull."""

    error: ArtifactError


Verdict = Append | Restart | StartOver | AskAgain | Refuse


def judge(head: Head, want: Want) -> Verdict:
    """The meaning of an answer (contracts section 17)."""
    status = head.status
    if status in (401, 403):
        # A content network refuses an outdated signed address with 403; a new redirect brings a new signature.
        if head.foreign:
            return AskAgain(f"HTTP {status} from the host it redirected to")
        return Refuse(SourceDenied(want.source, status, want.had_token))
    if status in (404, 410):
        return Refuse(SourceNotFound(want.file.path, want.source))
    if status in _RETRYABLE:
        return AskAgain(f"HTTP {status}", retry_after(head.headers.get("retry-after")))
    if status == 416 and want.offset:
        return StartOver("HTTP 416, it has fewer bytes now")
    if status not in (200, 206):
        return Refuse(UnexpectedResponse(want.source, f"HTTP {status} for {want.file.path}"))
    return _changed(head, want) or _unusable(head, want) or (_whole(head) if status == 200 else _part(head, want))


def _changed(head: Head, want: Want) -> Verdict | None:
    """The hub names size and SHA-256 of large files before a byte flows; a difference ends the pull there."""
    size = _count(head.linked.get("x-linked-size", ""))
    if size is not None and size != want.file.size_bytes:
        return Refuse(SizeMismatch(want.file.path, want.file.size_bytes, size))
    named = _LINKED_SHA256.fullmatch(head.linked.get("x-linked-etag", ""))
    if named and named[1] != want.file.sha256:
        return Refuse(DigestMismatch(want.file.path, want.file.sha256, named[1]))
    return None


def _unusable(head: Head, want: Want) -> Verdict | None:
    announced = _count(head.headers.get("content-length", ""))
    wrong_size = head.status == 200 and announced != want.file.size_bytes
    if wrong_size and _is_page(head.headers.get("content-type", "")) and not _may_be_page(want.file.path):
        return Refuse(UnexpectedResponse(want.source, f"an HTML page came instead of {want.file.path}"))
    encoding = head.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        return Refuse(UnexpectedResponse(want.source, f"the body is encoded ({encoding[:20]}) although none was asked"))
    if wrong_size and announced is not None:
        return Refuse(SizeMismatch(want.file.path, want.file.size_bytes, announced))
    return None


def _whole(head: Head) -> Verdict:
    return Restart(strong_etag(head.headers.get("etag", "")))


def _part(head: Head, want: Want) -> Verdict:
    if not want.offset:
        return Refuse(UnexpectedResponse(want.source, f"a part of {want.file.path} came although all of it was asked"))
    if strong_etag(head.headers.get("etag", want.etag)) != want.etag:
        return StartOver("its ETag changed")
    span = _CONTENT_RANGE.fullmatch(head.headers.get("content-range", "").strip())
    if span is None:
        return StartOver("a part came without a valid Content-Range")
    first, last, total = int(span[1]), int(span[2]), span[3]
    if total != "*" and int(total) != want.file.size_bytes:
        return Refuse(SizeMismatch(want.file.path, want.file.size_bytes, int(total)))
    if first != want.offset or not first <= last < want.file.size_bytes:
        return StartOver(f"bytes {first}-{last} came, from {want.offset} on was asked")
    return Append()


def strong_etag(etag: str) -> str:
    """The validator when ``If-Range`` may use it: strong ones only (RFC 9110 section 13.1.5); else empty."""
    etag = etag.strip()
    return etag if etag.startswith('"') and etag.endswith('"') and 2 < len(etag) <= 512 else ""


def looks_like_page(beginning: bytes, path: str) -> bool:
    """Whether the first bytes of a body are an HTML page where the catalog names something else."""
    start = beginning[:64].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    return not _may_be_page(path) and start.startswith((b"<!doctype html", b"<html"))


def _count(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None


def _is_page(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() in ("text/html", "application/xhtml+xml")


def _may_be_page(path: str) -> bool:
    return path.lower().endswith((".html", ".htm", ".xhtml", ".md"))


def retry_after(value: str | None) -> float | None:
    """Seconds to wait, bounded; dates and nonsense count as no answer."""
    if value is None or not value.strip().isdecimal():
        return None
    return min(float(value.strip()[:6]), MAX_RETRY_AFTER_S)


def origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    default = {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname or "", parts.port or default


def next_hop(current: str, location: str, hop: int) -> str:
    """Where a redirect leads. Raises ValueError with the reason when it must not be followed."""
    if hop >= MAX_HOPS:
        raise ValueError(f"more than {MAX_HOPS} redirects")
    target = urljoin(current, location)
    scheme, host, _ = origin(target)
    if scheme not in ("http", "https") or not host or not target.isprintable():
        raise ValueError("a redirect without a usable web address")
    if urlsplit(current).scheme == "https" and scheme == "http":
        raise ValueError("a redirect from https to http")
    return target
