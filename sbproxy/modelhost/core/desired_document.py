"""What a replacement of the admin-managed deployment map may say, and the revision document that it becomes.

Decides the shape of the body and the digest (contracts sections 0 row 5 and 14); what a map means for this node is
decided by ``draft_rules``, and where documents are kept by ``modelhost.desired_store``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError

from sbproxy.catalog.core.canonical import CanonicalValue, canonical_json
from sbproxy.config.core.fields import Block
from sbproxy.config.core.model_errors import nearest
from sbproxy.config.core.model_host import ColdStart, DeploymentConfig, EngineChoice, PullPolicy
from sbproxy.config.core.scalars import LARGEST_INTEGER
from sbproxy.config.core.tree import KeyPath, quoted, render
from sbproxy.errors.admin import InvalidBody

SOURCE_MODE = "admin_managed"
SOURCE_REVISION = "admin-api"
_EXPECTED = 'expected {"expected_revision": <null or a revision>, "deployments": {<id>: {...}}}'

_Count: TypeAlias = Annotated[int, Field(ge=0)]
_Small: TypeAlias = Annotated[int, Field(ge=0, le=(1 << 32) - 1)]


class DeploymentDraft(Block):
    """The keys that the admin API takes (contracts section 0, row 5). Ranges and names are ``draft_rules``' matter."""

    model: str
    variant: str | None = None
    heterogeneous_variants: bool = False
    replicas: _Small = 1
    tensor_parallel: _Small | None = None
    required_labels: dict[str, str] = {}
    spread_by: list[str] = []
    pull: PullPolicy = "on_demand"
    warm: bool = False
    cold_start: ColdStart
    keep_alive_secs: _Count | None = None
    max_concurrency: _Small | None = None
    max_queue_depth: _Count = 128
    queue_timeout_ms: _Count = 30_000
    engine: EngineChoice = "auto"
    rollout: Literal["rolling", "recreate"] = "rolling"


class _Body(Block):
    expected_revision: _Count | None
    deployments: dict[str, DeploymentDraft]


_DRAFTS: TypeAdapter[dict[str, DeploymentDraft]] = TypeAdapter(dict[str, DeploymentDraft])


@dataclass(frozen=True, slots=True)
class Replacement:
    """A whole new map, and the revision that it was written against (None: nothing was stored yet)."""

    expected_revision: int | None
    deployments: Mapping[str, DeploymentDraft]


def parse_replacement(raw: bytes) -> Replacement:
    """The body of ``PUT /admin/model-host/deployments``. Raises InvalidBody, which names the key at fault."""
    if not raw.strip():
        raise InvalidBody(f"the request body is missing; {_EXPECTED}")
    try:
        value = strict_json(raw)
    except ValueError as error:
        raise InvalidBody(f"invalid JSON body: {error}") from None
    if not isinstance(value, dict):
        raise InvalidBody(f"invalid JSON body; {_EXPECTED}")
    try:
        body = _Body.model_validate(value)
    except ValidationError as error:
        raise InvalidBody(_first_problem(error)) from None
    return Replacement(body.expected_revision, body.deployments)


@dataclass(frozen=True, slots=True)
class RevisionDocument:
    """One durable revision of the map. ``deployments`` holds every accepted key that has a value, defaults included.

    ``content_digest`` is the hex SHA-256 of the canonical JSON of the six members before it.
    """

    SCHEMA_VERSION: ClassVar[int] = 1

    revision: int
    catalog_revision: str
    deployments: Mapping[str, DeploymentDraft]
    content_digest: str

    @classmethod
    def of(cls, revision: int, catalog_revision: str, deployments: Mapping[str, DeploymentDraft]) -> Self:
        """Raises ValueError for what has no canonical JSON, which no accepted map holds."""
        members = _members(revision, catalog_revision, deployments)
        return cls(revision, catalog_revision, deployments, _digest(members))

    def encoded(self) -> bytes:
        """Canonical JSON of all seven members."""
        members = _members(self.revision, self.catalog_revision, self.deployments)
        return canonical_json({**members, "content_digest": self.content_digest})

    @classmethod
    def decoded(cls, data: bytes) -> Self:
        """What ``encoded`` wrote, by this version or an older one. Raises ValueError with the reason."""
        value = strict_json(data)
        if not isinstance(value, dict) or value.get("schema_version") != cls.SCHEMA_VERSION:
            raise ValueError("the stored document is not of schema version 1")
        digest = value.pop("content_digest", None)
        # Of what was written, not of what it is read as: a later version may know more keys.
        if digest != _digest(value):
            raise ValueError("the stored document does not match its content_digest")
        try:
            drafts = _DRAFTS.validate_python(value["deployments"])
            return cls(value["revision"], value["catalog_revision"], drafts, digest)
        except (ValidationError, KeyError):
            raise ValueError("the stored document is not a revision of a deployment map") from None

    @property
    def shown(self) -> dict[str, dict[str, Any]]:
        """The map as plain data: what GET answers, and what may be sent back as it is."""
        return {name: _plain(draft) for name, draft in self.deployments.items()}


def strict_json(raw: bytes) -> Any:
    """Any JSON value. Raises ValueError for repeated keys at any depth, integers beyond 2^53-1, NaN and non-UTF-8."""
    try:
        return json.loads(
            raw.decode("utf-8"), object_pairs_hook=_object, parse_int=_integer, parse_constant=_no_constant
        )
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} (line {error.lineno}, column {error.colno})") from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for key, item in pairs:
        if key in value:
            raise ValueError(f"the key {quoted(key)} stands twice in one object")
        value[key] = item
    return value


def _integer(text: str) -> int:
    if len(text) > 20 or abs(number := int(text)) > LARGEST_INTEGER:
        raise ValueError(f"integers beyond ±{LARGEST_INTEGER} are not accepted")
    return number


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _first_problem(error: ValidationError) -> str:
    """The revision comes last: the shape of the map is looked at before it."""
    problems = sorted(
        error.errors(include_url=False, include_input=False), key=lambda each: each["loc"][:1] == ("expected_revision",)
    )
    path, kind = problems[0]["loc"], problems[0]["type"]
    if kind == "missing":
        return f"{render(path)}: this key is required and missing{_hint(path)}"
    if kind == "extra_forbidden":
        return f"{render(path)}: {_unknown(path)}"
    return f"{render(path)}: {worded(problems[0]['msg'])}"


def worded(message: str) -> str:
    """pydantic's sentence in the words of our other refusals."""
    return message.replace("Input should be", "must be").replace("Value error, ", "")


def _hint(path: KeyPath) -> str:
    if path[-1] == "expected_revision":
        return "; send the revision that GET returned, null where it returned null"
    return "; write wait, reject or fallback" if path[-1] == "cold_start" else ""


def _unknown(path: KeyPath) -> str:
    name = str(path[-1])
    if len(path) == 3 and name in DeploymentConfig.model_fields:
        return "only sb.yml takes this key (file_managed); the admin API does not"
    block = DeploymentDraft if len(path) == 3 else _Body
    near = nearest(name, tuple(block.model_fields))
    return f"unknown key; did you mean '{near}'?" if near else "unknown key"


def _plain(draft: DeploymentDraft) -> dict[str, Any]:
    return draft.model_dump(exclude_none=True)


def _members(
    revision: int, catalog_revision: str, deployments: Mapping[str, DeploymentDraft]
) -> dict[str, CanonicalValue]:
    return {
        "schema_version": RevisionDocument.SCHEMA_VERSION,
        "revision": revision,
        "source_mode": SOURCE_MODE,
        "source_revision": SOURCE_REVISION,
        "catalog_revision": catalog_revision,
        "deployments": {name: _plain(draft) for name, draft in deployments.items()},
    }


def _digest(members: dict[str, CanonicalValue]) -> str:
    return hashlib.sha256(canonical_json(members)).hexdigest()
