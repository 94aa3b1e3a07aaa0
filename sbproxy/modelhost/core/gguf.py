"""The few facts of a GGUF header (versions 2 and 3) that a memory estimate needs. Parses bytes, opens nothing.

Everything is bounded: a hostile count or length is a problem by name, a short read asks for more bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

MAX_PAIRS = 65_536
MAX_KEY_BYTES = 65_535
MAX_HEADER_BYTES = 64 << 20
_MAX_KEPT_BYTES = 4096
_MAX_HEADS_LISTED = 4096
_MAX_FIGURE = 1 << 48

_U8, _I8, _U16, _I16, _U32, _I32, _F32, _BOOL, _STRING, _ARRAY, _U64, _I64, _F64 = range(13)
_SCALARS = {
    _U8: "<B", _I8: "<b", _U16: "<H", _I16: "<h", _U32: "<I", _I32: "<i", _F32: "<f", _BOOL: "<B",
    _U64: "<Q", _I64: "<q", _F64: "<d",
}  # fmt: skip

_Value = int | float | str | tuple[int, ...] | None


class GgufProblem(ValueError):
    """The header is not what the format says; the text names the reason."""


class HeaderShort(GgufProblem):
    """The bytes at hand end inside the header; more of the file may settle it."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the fit reads out of a model file. None: the file does not say."""

    layers: int
    kv_heads: int
    head_dim: int
    context_length: int | None = None
    parameters: int | None = None
    experts: int | None = None
    expert_feed_forward: int | None = None
    hidden: int | None = None


class _Cursor:
    """Reads forward through bytes and never past their end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise HeaderShort(f"the header ends inside a value, {count} bytes wanted at byte {self._at}")
        piece = self._data[self._at : end]
        self._at = end
        return piece

    def number(self, layout: str) -> int | float:
        value: int | float = struct.unpack(layout, self.take(struct.calcsize(layout)))[0]
        return value

    def count(self) -> int:
        value = int(self.number("<Q"))
        if value > MAX_HEADER_BYTES:
            raise GgufProblem(f"a length of {value} in the header is beyond {MAX_HEADER_BYTES}")
        return value

    def value(self, kind: int) -> _Value:
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            text = self.take(self.count())
            return text.decode("utf-8", "replace") if len(text) <= _MAX_KEPT_BYTES else None
        if kind == _ARRAY:
            return self._array()
        raise GgufProblem(f"value type {kind} is unknown")

    def _array(self) -> tuple[int, ...] | None:
        kind = int(self.number("<I"))
        count = self.count()
        if kind == _STRING:
            for _ in range(count):
                self.take(self.count())
            return None
        if kind not in _SCALARS:
            raise GgufProblem(f"an array of value type {kind} is not allowed in a header")
        layout = _SCALARS[kind]
        raw = self.take(count * struct.calcsize(layout))
        if count > _MAX_HEADS_LISTED or kind in (_F32, _F64):
            return None
        return tuple(int(item[0]) for item in struct.iter_unpack(layout, raw))


def parse_shape(data: bytes) -> ModelShape:
    """The shape told by the first bytes of a file. Raises HeaderShort when they do not reach, GgufProblem else."""
    cursor = _Cursor(data)
    if cursor.take(4) != b"GGUF":
        raise GgufProblem("not a GGUF file (its first four bytes are not GGUF)")
    version = int(cursor.number("<I"))
    if version not in (2, 3):
        raise GgufProblem(f"GGUF version {version} is not supported (2 and 3 are)")
    cursor.count()
    pairs = cursor.count()
    if pairs > MAX_PAIRS:
        raise GgufProblem(f"{pairs} metadata pairs are more than {MAX_PAIRS}")
    found: dict[str, _Value] = {}
    for _ in range(pairs):
        length = cursor.count()
        if length > MAX_KEY_BYTES:
            raise GgufProblem(f"a key of {length} bytes is beyond {MAX_KEY_BYTES}")
        key = cursor.take(length).decode("utf-8", "replace")
        # Writers put the architecture's keys before the vocabulary, which is megabytes: stop when all is known.
        if key.startswith("tokenizer.") and _complete(found):
            break
        found[key] = cursor.value(int(cursor.number("<I")))
    return _shape(found)


def _complete(found: dict[str, _Value]) -> bool:
    arch = found.get("general.architecture")
    needed = ("block_count", "attention.head_count", "embedding_length", "context_length")
    return all(f"{arch}.{name}" in found for name in needed)


def _shape(found: dict[str, _Value]) -> ModelShape:
    arch = found.get("general.architecture")
    if not isinstance(arch, str):
        raise GgufProblem("general.architecture is missing")
    layers = _figure(found, f"{arch}.block_count")
    heads = _figure(found, f"{arch}.attention.head_count")
    if layers is None:
        raise GgufProblem(f"{arch}.block_count is missing")
    head_dim = _figure(found, f"{arch}.attention.key_length")
    width = _figure(found, f"{arch}.embedding_length")
    if head_dim is None and heads and width:
        head_dim = width // heads
    if heads is None or head_dim is None:
        raise GgufProblem(f"{arch}.attention.head_count or {arch}.embedding_length is missing")
    return ModelShape(
        layers=layers,
        kv_heads=_figure(found, f"{arch}.attention.head_count_kv") or heads,
        head_dim=head_dim,
        context_length=_figure(found, f"{arch}.context_length"),
        parameters=_figure(found, "general.parameter_count"),
        experts=_figure(found, f"{arch}.expert_count"),
        expert_feed_forward=_figure(found, f"{arch}.expert_feed_forward_length"),
        hidden=width,
    )


def _figure(found: dict[str, _Value], key: str) -> int | None:
    """A positive whole number; of a list with one figure a layer, the largest, so that the estimate is not short."""
    value = found.get(key)
    if isinstance(value, tuple):
        value = max(value, default=0)
    if not isinstance(value, int) or value == 0:
        return None
    if not 0 < value < _MAX_FIGURE:
        raise GgufProblem(f"{key} is {value}")
    return value
