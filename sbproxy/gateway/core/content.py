"""Decides what the content of one message becomes: one text wherever it can be, image parts only for models that see.

Texts of other APIs' parts are taken as texts. Nothing is ever fetched: what is not inline is refused.
"""

from __future__ import annotations

import re
from typing import Any

from sbproxy.errors.gateway import InvalidRequest, RemoteContentRefused, UnsupportedContent

_TEXT_FIELD = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_MEDIA = {
    "image_url": "image",
    "input_image": "image",
    "input_audio": "audio",
    "file": "file",
    "input_file": "file",
    "video_url": "video",
}
_INLINE_IMAGE = re.compile(r"data:image/[a-z0-9.+-]{1,32};base64,[A-Za-z0-9+/]+={0,2}")
_DETAILS = ("auto", "low", "high")


def text_content(content: Any, path: str, role: str) -> str:
    """The text of a message that may hold nothing else. Raises InvalidRequest."""
    if type(content) is str:
        return content
    if type(content) is not list:
        raise InvalidRequest("must be a string or a list of text parts", path)
    _check_filled(content, path)
    return _joined([_text(part, path, at, role) for at, part in enumerate(content)])


def user_content(content: Any, path: str, model: str, *, images: bool) -> str | list[dict[str, Any]]:
    """A text, or parts when there is an image among them and the model takes ``images``.

    Raises InvalidRequest, RemoteContentRefused for what lies behind a URL, UnsupportedContent for other media.
    """
    if type(content) is str:
        return content
    if type(content) is not list:
        raise InvalidRequest("must be a string or a list of parts", path)
    _check_filled(content, path)
    if not any(part["type"] in _MEDIA for part in content):
        return _joined([_text(part, path, at, "user") for at, part in enumerate(content)])
    return [
        _image(part, f"{path}[{at}]", model, images)
        if part["type"] in _MEDIA
        else {"type": "text", "text": _text(part, path, at, "user")}
        for at, part in enumerate(content)
    ]


def _check_filled(content: list[Any], path: str) -> None:
    if not content:
        raise InvalidRequest("must hold at least one part", path)


def _joined(texts: list[str]) -> str:
    """Engines put a line break between text parts where a template takes one text only."""
    return "\n".join(texts)


def _text(part: dict[str, Any], path: str, at: int, role: str) -> str:
    kind = part["type"]
    name = _TEXT_FIELD.get(kind)
    if name is None or (kind == "refusal" and role != "assistant"):
        raise InvalidRequest(f"is no kind of part that a message of role {role} may hold", f"{path}[{at}].type")
    text = part.get(name)
    if type(text) is not str:
        raise InvalidRequest("must be a string", f"{path}[{at}].{name}")
    return text


def _image(part: dict[str, Any], path: str, model: str, images: bool) -> dict[str, Any]:
    """The part of an inline image, in the one form that engines know."""
    kind = part["type"]
    inner = part.get("image_url" if kind == "input_image" else kind)
    url = inner.get("url") if type(inner) is dict else inner
    named = f"{path}.image_url" if kind == "input_image" else f"{path}.{kind}.url"
    if type(url) is str and not url.startswith("data:"):
        raise RemoteContentRefused(named)
    if not images or _MEDIA[kind] != "image":
        raise UnsupportedContent(model, _MEDIA[kind], f"{path}.type")
    if type(url) is not str or _INLINE_IMAGE.fullmatch(url) is None:
        raise InvalidRequest("must be an image as a data: URL in base64", named)
    source = inner if type(inner) is dict else part
    detail = source.get("detail")
    if detail is None:
        return {"type": "image_url", "image_url": {"url": url}}
    if detail not in _DETAILS:
        raise InvalidRequest("must be auto, low or high", f"{path}.detail")
    return {"type": "image_url", "image_url": {"url": url, "detail": detail}}
