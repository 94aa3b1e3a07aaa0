"""Decides which part of the API a path names, and with which methods it may be asked (contracts section 30).

Which origin and model serve it is decided in ``routes``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote

from sbproxy.errors.gateway import InvalidRequest, MethodNotAllowed, SurfaceNotServed, UnknownPath

Surface = Literal[
    "chat_completions", "completions", "embeddings", "models", "messages", "responses", "assistants", "threads",
    "batches", "fine_tuning", "files", "realtime", "image_generation", "image_edits", "image_variations",
    "audio_transcription", "audio_translation", "audio_speech", "moderations", "reranking",
]  # fmt: skip
Methods = tuple[str, ...]

INFERENCE: frozenset[Surface] = frozenset({"chat_completions", "completions", "embeddings"})
PREFIXES = ("/v1", "/api/v1", "")

_READ: Methods = ("GET", "HEAD", "OPTIONS")
_SUBMIT: Methods = ("POST", "OPTIONS")
_SERVED: dict[str, tuple[Surface, Methods]] = {
    "/chat/completions": ("chat_completions", _SUBMIT),
    "/completions": ("completions", _SUBMIT),
    "/embeddings": ("embeddings", _SUBMIT),
    "/models": ("models", _READ),
}
_KNOWN: dict[str, Surface] = {
    "/messages": "messages",
    "/responses": "responses",
    "/assistants": "assistants",
    "/threads": "threads",
    "/batches": "batches",
    "/fine_tuning": "fine_tuning",
    "/files": "files",
    "/realtime": "realtime",
    "/images/generations": "image_generation",
    "/images/edits": "image_edits",
    "/images/variations": "image_variations",
    "/audio/transcriptions": "audio_transcription",
    "/audio/translations": "audio_translation",
    "/audio/speech": "audio_speech",
    "/moderations": "moderations",
    "/rerank": "reranking",
    "/reranking": "reranking",
}
_MODEL_ID_CHARACTERS = 512
_SHOWN_PATH_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Target:
    """What a path names. ``model_id`` is decoded and set only for one model's own page; ``path`` is the bare path."""

    surface: Surface
    methods: Methods
    path: str
    model_id: str | None = None


_EXACT: dict[str, Target] = {
    prefix + path: Target(surface, methods, path) for prefix in PREFIXES for path, (surface, methods) in _SERVED.items()
}


def find_target(method: str, path: str) -> Target:
    """The served target of a raw, still percent-encoded path.

    Raises SurfaceNotServed for known parts of the API that are not served, UnknownPath for all else, MethodNotAllowed,
    and InvalidRequest for a model id that is not UTF-8 or too long.
    """
    target = _EXACT.get(path) or _unusual_target(method, path)
    if method not in target.methods:
        raise MethodNotAllowed(shown(method), shown(path), target.methods)
    return target


def _unusual_target(method: str, path: str) -> Target:
    for prefix in PREFIXES:
        bare = path.removeprefix(prefix)
        if not path.startswith(prefix) or not bare.startswith("/"):
            continue
        if bare.startswith("/models/") and len(bare) > len("/models/"):
            return Target("models", _READ, "/models", _model_id(bare.removeprefix("/models/")))
        for known, surface in _KNOWN.items():
            if bare == known or bare.startswith(known + "/"):
                raise SurfaceNotServed(surface)
    raise UnknownPath(shown(method), shown(path))


def _model_id(encoded: str) -> str:
    """Names hold ``/``, ``:`` and ``#`` and arrive raw or percent-encoded; decoded once, like any path."""
    try:
        model = unquote(encoded, errors="strict")
    except UnicodeDecodeError:
        raise InvalidRequest("the model id in the path is not percent-encoded UTF-8", "model") from None
    if len(model) > _MODEL_ID_CHARACTERS:
        raise InvalidRequest(f"the model id is longer than {_MODEL_ID_CHARACTERS} characters", "model")
    return model


def shown(text: str) -> str:
    """A caller's text fit to stand in a message: printable and bounded."""
    cut = text if len(text) <= _SHOWN_PATH_CHARACTERS else text[:_SHOWN_PATH_CHARACTERS] + "…"
    return (
        cut
        if cut.isprintable()
        else "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in cut)
    )
