"""Decides whether the parameters of a request are of the kinds and in the ranges that the API gives them.

Parameters that only engines know pass, save those whose wrong values an engine answers with a failure of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sbproxy.errors.gateway import InvalidRequest
from sbproxy.gateway.core.schemas import check_schema

Check = Callable[[Any, str], None]
_STOPS = 4
_METADATA = 16
_LOGIT_BIASES = 1024
_GRAMMAR_CHARACTERS = 16384


def _boolean(value: Any, param: str) -> None:
    if type(value) is not bool:
        raise InvalidRequest("must be true or false", param)


def _text(value: Any, param: str) -> None:
    if type(value) is not str:
        raise InvalidRequest("must be a string", param)


def _object(value: Any, param: str) -> None:
    if type(value) is not dict:
        raise InvalidRequest("must be an object", param)


def _number(low: float, high: float) -> Check:
    def check(value: Any, param: str) -> None:
        if type(value) not in (int, float) or not low <= value <= high:
            raise InvalidRequest(f"must be a number from {low:g} to {high:g}", param)

    return check


def _whole(low: int, high: int) -> Check:
    def check(value: Any, param: str) -> None:
        if type(value) is not int or not low <= value <= high:
            raise InvalidRequest(f"must be a whole number from {low} to {high}", param)

    return check


def _one_of(*words: str) -> Check:
    def check(value: Any, param: str) -> None:
        if value not in words:
            raise InvalidRequest(f"must be one of {', '.join(words)}", param)

    return check


def _never(reason: str) -> Check:
    def check(value: Any, param: str) -> None:
        if value is not False:
            raise InvalidRequest(reason, param)

    return check


def _stop(value: Any, param: str) -> None:
    stops = value if type(value) is list else [value]
    if len(stops) > _STOPS:
        raise InvalidRequest(f"must hold at most {_STOPS} strings", param)
    for at, stop in enumerate(stops):
        if type(stop) is not str or not stop:
            where = f"{param}[{at}]" if stops is value else param
            raise InvalidRequest("must be a string that is not empty, or a list of such", where)


def _logit_bias(value: Any, param: str) -> None:
    _object(value, param)
    if len(value) > _LOGIT_BIASES:
        raise InvalidRequest(f"must hold at most {_LOGIT_BIASES} tokens", param)
    for token, bias in value.items():
        if not (token.isascii() and token.isdigit() and len(token) <= 9):
            raise InvalidRequest("must have the numbers of tokens as names", param)
        if type(bias) not in (int, float) or not -100 <= bias <= 100:
            raise InvalidRequest("must be a number from -100 to 100", f"{param}.{token}")


def _metadata(value: Any, param: str) -> None:
    _object(value, param)
    if len(value) > _METADATA or not all(type(each) is str for each in value.values()):
        raise InvalidRequest(f"must be an object of at most {_METADATA} strings", param)


def _modalities(value: Any, param: str) -> None:
    if value != ["text"]:
        raise InvalidRequest("must be text alone: managed models answer in nothing else", param)


def _schema(value: Any, param: str) -> None:
    _object(value, param)
    check_schema(value, param)


def _grammar(value: Any, param: str) -> None:
    _text(value, param)
    if len(value) > _GRAMMAR_CHARACTERS:
        raise InvalidRequest(f"must hold at most {_GRAMMAR_CHARACTERS} characters", param)


def _response_format(value: Any, param: str) -> None:
    _object(value, param)
    kind = value.get("type")
    if kind not in ("text", "json_object", "json_schema"):
        raise InvalidRequest("must be text, json_object or json_schema", f"{param}.type")
    if kind == "json_schema":
        inner = value.get("json_schema")
        _object(inner, f"{param}.json_schema")
        _text(inner.get("name"), f"{param}.json_schema.name")
        # Without a schema an engine constrains nothing, which the caller would read as a model that does not obey.
        _schema(inner.get("schema"), f"{param}.json_schema.schema")


_SHARED: dict[str, Check] = {
    "temperature": _number(0, 2),
    "top_p": _number(0, 1),
    "frequency_penalty": _number(-2, 2),
    "presence_penalty": _number(-2, 2),
    "seed": _whole(-(1 << 63), (1 << 63) - 1),
    "stop": _stop,
    "logit_bias": _logit_bias,
    "user": _text,
    # An engine's own parameters, which are bounded like a schema of the API.
    "json_schema": _schema,
    "grammar": _grammar,
}
_CHAT: dict[str, Check] = {
    **_SHARED,
    "logprobs": _boolean,
    "top_logprobs": _whole(0, 20),
    "response_format": _response_format,
    "metadata": _metadata,
    "store": _never("is not supported by managed models: nothing is stored"),
    "modalities": _modalities,
    "audio": _never("is not supported by managed models"),
    "web_search_options": _never("is not supported by managed models"),
    "prediction": _object,
    "reasoning_effort": _one_of("none", "minimal", "low", "medium", "high", "xhigh"),
    "verbosity": _one_of("low", "medium", "high"),
    "service_tier": _text,
    # An engine answers a wrong value of these with a 500.
    "reasoning_format": _one_of("none", "auto", "deepseek", "deepseek-legacy"),
    "chat_template_kwargs": _object,
}
_COMPLETIONS: dict[str, Check] = {
    **_SHARED,
    "logprobs": _whole(0, 5),
    "best_of": _whole(1, 1),
    "echo": _never("is not supported by managed models"),
    "suffix": _never("is not supported by managed models"),
}
_EMBEDDINGS: dict[str, Check] = {
    "encoding_format": _one_of("float", "base64"),
    "dimensions": _whole(1, 1 << 20),
    "user": _text,
}
PARAMETERS: Mapping[str, Mapping[str, Check]] = {
    "chat_completions": _CHAT,
    "completions": _COMPLETIONS,
    "embeddings": _EMBEDDINGS,
}


def check_parameters(document: dict[str, Any], checks: Mapping[str, Check]) -> dict[str, Any]:
    """The document without its null fields, the same object when it has none. Raises InvalidRequest."""
    nulls = False
    for name, value in document.items():
        if value is None:
            nulls = True
        elif name in checks:
            checks[name](value, name)
    if nulls:
        document = {name: value for name, value in document.items() if value is not None}
    if "top_logprobs" in document and document.get("logprobs") is not True:
        raise InvalidRequest("is only allowed together with logprobs: true", "top_logprobs")
    return document
