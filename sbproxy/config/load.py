"""Reads sb.yml: text, variables, secrets, types, rules; either a :class:`Loaded` or one error with every problem.

What a value may be stands in ``config.core``. Opens the file itself and the files at secret positions, nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from sbproxy.config.core import model_errors
from sbproxy.config.core.document import SbConfig
from sbproxy.config.core.effective import effective, revision_of
from sbproxy.config.core.findings import Finding
from sbproxy.config.core.rules import Declared, host_findings, rule_findings
from sbproxy.config.core.salvage import salvage
from sbproxy.config.core.secret_forms import may_be_shown, secret_form
from sbproxy.config.core.serve_lowering import Lowering, lower
from sbproxy.config.core.serve_notes import Served
from sbproxy.config.core.shape import is_secret
from sbproxy.config.core.tree import KeyPath, Mark, Node, Scalar, Table, mark_of, plain, render, scalars
from sbproxy.config.core.unsupported import NOT_YET, TOP_LEVEL
from sbproxy.config.secrets import resolve_secret
from sbproxy.config.yaml_text import MAX_BYTES, MAX_PROBLEMS, Reading, decode, read_tree
from sbproxy.errors.config import ConfigInvalid, ConfigUnreadable, Problem

_TOP_LEVEL_KEYS = tuple(SbConfig.model_fields)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration that passed every rule of one document.

    ``revision`` names the effective document (secrets masked, so that it tells nothing about them), ``content_hash``
    the raw bytes; both are 12 hex characters. Relative paths in ``config`` are absolute. ``references`` maps secret
    positions to the reference written there. With ``secrets_resolved`` False the secrets in ``config`` are the
    references themselves: good for printing and checking, never for serving.

    ``config`` holds no ``serve:`` block: each was lowered, and ``served`` tells by deployment id where from.
    """

    config: SbConfig = field(repr=False)
    path: Path
    revision: str
    content_hash: str
    warnings: tuple[Problem, ...]
    references: Mapping[KeyPath, str]
    secrets_resolved: bool
    served: Mapping[str, Served] = field(default_factory=dict)
    allow_unpinned_refs: bool = False
    """What a serve block says of raw references on a worker of a cluster."""


FurtherRules = Callable[[SbConfig], Iterable[Finding | Problem]]
"""Rules of a caller that are reported together with ours; a Problem is one of another file that this one names."""


def load_file(
    path: Path, environ: Mapping[str, str], *, resolve_secrets: bool = True, further: FurtherRules | None = None
) -> Loaded:
    """Read and check one file. Raises ConfigUnreadable or ConfigInvalid."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigUnreadable(str(path), _reading_failed(error)) from None
    except ValueError:
        raise ConfigUnreadable(str(path), "is not a file name") from None
    try:
        text = decode(data)
    except ValueError as error:
        raise ConfigUnreadable(str(path), str(error)) from None
    return load_text(text, path=path, environ=environ, resolve_secrets=resolve_secrets, further=further)


def load_text(
    text: str,
    *,
    path: Path,
    environ: Mapping[str, str],
    resolve_secrets: bool = True,
    further: FurtherRules | None = None,
) -> Loaded:
    """Check one document; ``path`` names it and gives the directory of its relative paths. Raises ConfigInvalid."""
    file = str(path)
    reading = read_tree(text, file=file, environ=environ)
    if not isinstance(reading.root, Table):
        problems = list(reading.problems)
        if reading.root is not None:
            mark = reading.root.mark
            reason = "the document is not a mapping; expected the keys proxy and origins"
            problems.append(Problem(file, "", reason, mark.line, mark.column))
        raise ConfigInvalid(file, tuple(problems))
    check = _Check(file, reading, reading.root, environ, resolve_secrets)
    lowered = check.config(path, further)
    if check.problems:
        raise ConfigInvalid(file, _in_order(file, check.problems))
    references = lowered.references(check.references)
    return Loaded(
        config=lowered.config,
        path=path,
        revision=revision_of(effective(lowered.config, references)),
        content_hash=hashlib.sha256(text.encode()).hexdigest()[:12],
        warnings=_in_order(file, check.warnings),
        references=references,
        secrets_resolved=resolve_secrets,
        served=lowered.served,
        allow_unpinned_refs=bool(lowered.policy.value("allow_unpinned_refs")),
    )


class _Check:
    """One document on its way to a :class:`SbConfig`; collects problems and warnings instead of stopping."""

    def __init__(
        self, file: str, reading: Reading, root: Table, environ: Mapping[str, str], resolve_secrets: bool
    ) -> None:
        self._file = file
        self._reading = reading
        self._root = root
        self._environ = environ
        self._resolve = resolve_secrets
        self._refused_secrets: set[KeyPath] = set()
        self.references: dict[KeyPath, str] = {}
        self.problems: list[Problem] = list(reading.problems)
        self._unreadable = frozenset(problem.path for problem in reading.problems)
        self.warnings: list[Problem] = []

    def config(self, path: Path, further: FurtherRules | None) -> Lowering:
        """The configuration lowered, or what could be salvaged of it when ``problems`` is not empty."""
        data = plain(self._root)
        self._top_level(data)
        self._secrets(data)
        self._variables()
        declared = _declared(data)
        salvaged = salvage(data, SbConfig, {"directory": path.parent.absolute()})
        wrong = list(model_errors.findings(salvaged.error, self._root)) if salvaged.error is not None else []
        self._report(finding for finding in wrong if render(finding.path) not in self._unreadable)
        config = salvaged.document or SbConfig()
        refused = frozenset(self._refused_secrets) | model_errors.misspelt(wrong, self._root)
        lowered = lower(config)
        found = list(chain(rule_findings(config, declared), self._of_lowered(lowered, further)))
        self.problems.extend(each for each in found if isinstance(each, Problem))
        standing = salvaged.standing((each for each in found if isinstance(each, Finding)), refused)
        self._report(finding for finding in standing if not self._reads_unreadable(finding))
        self.warnings.extend(_problem(self._file, self._root, finding) for finding in lowered.warnings)
        return lowered

    @staticmethod
    def _of_lowered(lowered: Lowering, further: FurtherRules | None) -> Iterator[Finding | Problem]:
        """What is wrong with what the document comes to, at the places where it is written."""
        yield from lowered.findings
        config = lowered.config
        more = host_findings(config.proxy.model_host) if lowered.served else ()
        for each in chain(more, further(config) if further else ()):
            found = lowered.as_written(each) if isinstance(each, Finding) else each
            if found is not None:
                yield found

    def _reads_unreadable(self, finding: Finding) -> bool:
        return any(render(path) in self._unreadable for path in (finding.path, *finding.depends_on))

    def _report(self, found: Iterable[Finding]) -> None:
        self.problems.extend(_problem(self._file, self._root, finding) for finding in found)

    def _top_level(self, data: dict[str, Any]) -> None:
        for key in [key for key in data if key not in _TOP_LEVEL_KEYS]:
            del data[key]
            if key in TOP_LEVEL:
                self._report([Finding((key,), NOT_YET)])
            else:
                near = model_errors.nearest(key, _TOP_LEVEL_KEYS)
                finding = Finding((key,), "unknown top-level key, ignored", near, _TOP_LEVEL_KEYS)
                self.warnings.append(_problem(self._file, self._root, finding))

    def _secrets(self, data: dict[str, Any]) -> None:
        missing: dict[KeyPath, tuple[str, ...]] = {}
        for path, _, name in self._reading.unset:
            missing[path] = (*missing.get(path, ()), name)
        for path, scalar in scalars(self._root):
            if not is_secret(path) or not (scalar.interpolated or isinstance(scalar.value, str)):
                continue
            if may_be_shown(scalar.written):
                self.references[path] = scalar.written
            _put(data, path, self._secret(path, scalar, missing.get(path, ())))

    def _secret(self, path: KeyPath, scalar: Scalar, missing: tuple[str, ...]) -> str:
        try:
            if self._resolve:
                return resolve_secret(scalar, missing, self._environ)
            secret_form(scalar.written, scalar.text)
        except ValueError as error:
            self._refused_secrets.add(path)
            self._report([Finding(path, str(error))])
        return scalar.written

    def _variables(self) -> None:
        """Warn of what interpolation left as written, outside of secrets."""
        for path, mark, name in self._reading.unset:
            if not is_secret(path) or not self._resolve:
                kept = "" if is_secret(path) else f"; the text ${{{name}}} is kept as written"
                self._warn(path, mark, f"environment variable '{name}' is not set{kept}")
        for path, mark in self._reading.malformed:
            reason = "'${' does not begin a reference; only ${NAME} is filled in, without defaults and nesting"
            if is_secret(path):
                self._refused_secrets.add(path)
                self._report([Finding(path, reason)])
            else:
                self._warn(path, mark, reason)

    def _warn(self, path: KeyPath, mark: Mark, reason: str) -> None:
        self.warnings.append(Problem(self._file, render(path), reason, mark.line, mark.column))


def _declared(data: dict[str, Any]) -> Declared:
    """Names of the deployments and hosts in the document as written."""
    deployments: Any = data
    for key in ("proxy", "model_host", "deployments"):
        deployments = deployments.get(key, {}) if isinstance(deployments, dict) else None
    origins = data.get("origins", {})
    return Declared(
        deployments=frozenset(deployments) if isinstance(deployments, dict) else None,
        hosts=tuple(origins) if isinstance(origins, dict) else (),
    )


def _put(data: Any, path: KeyPath, value: str) -> None:
    for step in path[:-1]:
        data = data[step]
    data[path[-1]] = value


def _problem(file: str, root: Node, finding: Finding) -> Problem:
    mark = mark_of(root, finding.path)
    return Problem(file, render(finding.path), finding.reason, mark.line, mark.column, finding.near, finding.allowed)


def _in_order(file: str, problems: list[Problem]) -> tuple[Problem, ...]:
    """By line, each once, bounded: a document full of mistakes names the first ones and counts the rest.

    The document itself comes before the files that it names.
    """
    ordered = sorted(
        dict.fromkeys(problems),
        key=lambda problem: (problem.file != file, problem.file, problem.line or 0, problem.path),
    )
    if len(ordered) <= MAX_PROBLEMS:
        return tuple(ordered)
    rest = f"and {len(ordered) - MAX_PROBLEMS} more problems"
    return (*ordered[:MAX_PROBLEMS], Problem(file, "", rest))


def _reading_failed(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, IsADirectoryError):
        return "is a directory, expected a file"
    if isinstance(error, PermissionError):
        return "no permission to read it"
    return f"cannot be read: {error.strerror or type(error).__name__}"
