"""A plan that `plan --out` wrote, read back for `apply -p`, and whether the world is still as it was planned."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from sbproxy.config.load import Loaded
from sbproxy.errors.cli import PlanStale, PlanUnusable

MAX_BYTES = 32 << 20


class PlanFile(BaseModel):
    """The fields that an apply looks at."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    schema_version: Literal[1]
    command: Literal["plan"]
    baseline_revision: str | None
    proposed_revision: str
    proposed_content_hash: str

    def require_fresh(self, proposed: Loaded, baseline: Loaded | None) -> None:
        """Raises PlanStale when either document is no longer what was planned with."""
        found = baseline.revision if baseline else None
        if self.baseline_revision != found:
            raise PlanStale("the baseline", self.baseline_revision or "empty", found or "empty")
        if self.proposed_content_hash != proposed.content_hash:
            raise PlanStale("the configuration's text", self.proposed_content_hash, proposed.content_hash)
        if self.proposed_revision != proposed.revision:
            raise PlanStale("the configuration", self.proposed_revision, proposed.revision)


def read_plan(path: Path) -> PlanFile:
    """Raises PlanUnusable."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise PlanUnusable(str(path), error.strerror or str(error)) from None
    if len(data) > MAX_BYTES:
        raise PlanUnusable(str(path), f"larger than {MAX_BYTES >> 20} MiB")
    try:
        return PlanFile.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise PlanUnusable(str(path), f"{where}: {first['msg']}") from None
