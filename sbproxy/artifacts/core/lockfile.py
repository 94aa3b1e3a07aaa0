"""The lockfile ``sbproxy-models.lock``: which exact artifacts a configuration means, and how a machine departs from it.

Contracts section 9. Resolving names and hashing files is done by who asks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from sbproxy.artifacts.core.model import ArtifactState, Corrupt, Ready
from sbproxy.artifacts.core.source import is_sha256
from sbproxy.catalog.core.paths import safe_relative

NAME: Final = "sbproxy-models.lock"
MAX_BYTES: Final = 16 * 1024 * 1024
Status = Literal["ok", "missing", "digest_mismatch"]


@dataclass(frozen=True, slots=True)
class LockedEngine:
    """``version`` and ``image`` as the configuration pins them, if it does."""

    kind: str
    version: str | None = None
    image: str | None = None


@dataclass(frozen=True, slots=True)
class LockedFile:
    path: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LockedModel:
    """One deployment: ``name`` is its id, ``model`` that of the catalog."""

    name: str
    model: str
    variant_id: str
    artifact_digest: str
    engine: LockedEngine
    files: tuple[LockedFile, ...]


@dataclass(frozen=True, slots=True)
class Lockfile:
    generated_at_ms: int
    catalog_revision: str
    models: tuple[LockedModel, ...]


@dataclass(frozen=True, slots=True)
class Checked:
    """One row of ``verify-lock``; ``detail`` says what to do unless the status is ok."""

    name: str
    variant: str
    status: Status
    detail: str | None = None


def encode(lockfile: Lockfile) -> bytes:
    return json.dumps(asdict(lockfile), indent=2).encode() + b"\n"


def decode(data: bytes) -> Lockfile:
    """Raises ValueError with the reason for everything that :func:`encode` does not write."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES} bytes")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON ({str(error)[:80]})") from None
    try:
        lockfile = Lockfile(**{**document, "models": tuple(_model(each) for each in document["models"])})
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"its fields are not those of a lockfile ({str(error)[:80]})") from None
    _require(_text(lockfile.catalog_revision) and _count(lockfile.generated_at_ms), "its head is not sound")
    names = [model.name for model in lockfile.models]
    _require(len(set(names)) == len(names), "it names a deployment twice")
    return lockfile


def compare(locked: Lockfile, wanted: Lockfile | None, cached: Mapping[str, ArtifactState]) -> list[Checked]:
    """Rows in the order of the names. ``wanted`` is what the configuration means now, if one was named; ``cached`` what
    a full check of the cache found, by digest."""
    now = None if wanted is None else {model.name: model for model in wanted.models}
    rows = [_check(model, now, cached) for model in locked.models]
    names = {model.name for model in locked.models}
    unlocked = (model for name, model in (now or {}).items() if name not in names)
    rows += [
        Checked(model.name, model.variant_id, "missing", "not in the lockfile; run: sbproxy models lock")
        for model in unlocked
    ]
    return sorted(rows, key=lambda row: row.name)


def _check(locked: LockedModel, now: Mapping[str, LockedModel] | None, cached: Mapping[str, ArtifactState]) -> Checked:
    def row(status: Status, detail: str | None = None) -> Checked:
        return Checked(locked.name, locked.variant_id, status, detail)

    if now is not None:
        found = now.get(locked.name)
        if found is None:
            return row("missing", "the configuration has no such deployment; run: sbproxy models lock")
        difference = _difference(locked, found)
        if difference is not None:
            return row("digest_mismatch", f"{difference}; restore it, or run: sbproxy models lock")
    match cached.get(locked.artifact_digest):
        case Ready():
            return row("ok")
        case Corrupt(reason):
            return row("digest_mismatch", f"the cached copy is damaged ({reason}); run: sbproxy models pull")
    return row("missing", "not in the cache; run: sbproxy models pull")


def _difference(locked: LockedModel, now: LockedModel) -> str | None:
    pairs = (
        ("the model", locked.model, now.model),
        ("the variant", locked.variant_id, now.variant_id),
        ("the artifact", locked.artifact_digest[:12], now.artifact_digest[:12]),
        ("the engine", _engine(locked.engine), _engine(now.engine)),
    )
    if locked.artifact_digest != now.artifact_digest or locked.engine != now.engine or locked.model != now.model:
        return next(f"{what} is {found}, locked is {was}" for what, was, found in pairs if was != found)
    return None if locked.files == now.files else "the files are others than those locked"


def _engine(engine: LockedEngine) -> str:
    return " ".join(filter(None, (engine.kind, engine.version, engine.image)))


def _model(document: Any) -> LockedModel:
    files = tuple(LockedFile(**each) for each in document["files"])
    model = LockedModel(**{**document, "engine": LockedEngine(**document["engine"]), "files": files})
    texts = (model.name, model.model, model.variant_id, model.artifact_digest, model.engine.kind)
    _require(all(map(_text, texts)), "an entry has fields that are no text")
    pins = (model.engine.version, model.engine.image)
    _require(all(pin is None or _text(pin) for pin in pins), "an engine's pin is no text")
    _require(is_sha256(model.artifact_digest), f"the digest of {model.name!r} is none")
    for file in files:
        sound = _text(file.path) and safe_relative(file.path) and _text(file.sha256) and is_sha256(file.sha256)
        _require(sound and _count(file.size_bytes), f"a file of {model.name!r} is not sound")
    _require(bool(files), f"{model.name!r} has no files")
    return model


def _text(value: object) -> bool:
    return isinstance(value, str)


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _require(sound: bool, reason: str) -> None:
    if not sound:
        raise ValueError(reason)
