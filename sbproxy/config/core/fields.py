"""Field types that several blocks of sb.yml share."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr

from sbproxy.config.core.checks import absolute_path, file_path, identifier, ip_literal, printable, sha256_hex


class Block(BaseModel):
    """A mapping of sb.yml: strict types, unknown keys refused, immutable once loaded."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)


Identifier = Annotated[
    str,
    Field(
        min_length=1, max_length=128, json_schema_extra={"pattern": r"^([A-Za-z0-9._-]|\$\{[A-Za-z_][A-Za-z0-9_]*\})+$"}
    ),
    AfterValidator(identifier),
]
"""``[A-Za-z0-9._-]+``, at most 128 characters."""

IpLiteral = Annotated[str, AfterValidator(ip_literal)]
Sha256Hex = Annotated[str, AfterValidator(sha256_hex)]
Port = Annotated[int, Field(ge=1, le=65535)]
Secret = SecretStr
"""A secret position: ``${VAR}`` must be set, ``env:NAME`` and ``file:/path`` are resolved at load."""

Name = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(printable)]
"""A name that people and clients see; no control characters."""

ShortName = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(printable)]
"""The same, at most 128 characters."""

FilePath = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(file_path)]
"""A path; a relative one starts at the directory of sb.yml."""

AbsolutePath = Annotated[
    str,
    Field(min_length=1, max_length=4096, json_schema_extra={"pattern": r"^(/|\$\{)"}),
    AfterValidator(absolute_path),
]
