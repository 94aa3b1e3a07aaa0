"""The JSON Schema (2020-12) of sb.yml from the block types, for editors. Descriptions are the fields' docstrings."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from sbproxy.config.core.document import SbConfig

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_REFERENCE = {"type": "string", "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*\}"}


def schema() -> dict[str, Any]:
    """The schema as plain data. Needs the package's sources, which every installation has."""
    generated = SbConfig.model_json_schema(mode="validation", schema_generator=_Generator)
    # At the top an unknown key only warns (contracts section 1).
    generated.pop("additionalProperties", None)
    return {"$schema": DIALECT, **generated, "title": "sb.yml"}


def schema_text() -> str:
    """The schema as it is printed and kept in docs/."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


class _Generator(GenerateJsonSchema):
    """Numbers and truth values may also be written as ``${VAR}``; secrets show no default."""

    def int_schema(self, schema: core_schema.IntSchema) -> JsonSchemaValue:
        return {"anyOf": [super().int_schema(schema), _REFERENCE]}

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        return {"anyOf": [super().float_schema(schema), _REFERENCE]}

    def bool_schema(self, schema: core_schema.BoolSchema) -> JsonSchemaValue:
        return {"anyOf": [super().bool_schema(schema), _REFERENCE]}

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        generated = super().default_schema(schema)
        if generated.get("format") == "password":
            generated.pop("default", None)
        return generated

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        generated = super().model_schema(schema)
        cls = schema["cls"]
        for name, text in _docstrings(cls).items():
            generated["properties"][name]["description"] = text
        generated["description"] = inspect.cleandoc(cls.__doc__ or "")
        return generated


def _docstrings(block: type[BaseModel]) -> dict[str, str]:
    """The string that stands after each field of ``block``."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(block)))
    definition = tree.body[0]
    assert isinstance(definition, ast.ClassDef)  # noqa: S101 - the source of a class is a class
    found: dict[str, str] = {}
    for statement, following in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            found[statement.target.id] = inspect.cleandoc(following.value.value)
    return found
