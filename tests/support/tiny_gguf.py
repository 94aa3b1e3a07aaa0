"""Writes a BERT of two layers with random weights as one GGUF file, for embeddings from a real llama-server.

Standard library only and the same bytes every time. What it says of a text means nothing; that equal texts give equal
vectors, different ones different vectors, and each one as many figures as the header promises, does.
"""

from __future__ import annotations

import random
import string
import struct
from pathlib import Path
from typing import Any

from support.tiny_llama import float32

EMBEDDING, LAYERS, HEADS, FFN, CONTEXT = 64, 2, 2, 128, 512
PARAMETERS = "107K"
"""As a catalog writes it."""

_ALIGNMENT = 32
_U32, _F32, _BOOL, _STRING, _ARRAY, _I32 = 4, 6, 7, 8, 9, 5
_MEAN = 1
_NORMAL, _CONTROL = 1, 3
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_WORDS = ("hello", "world", "cat", "dog", "sits", "the", "a")


def write_tiny_bert(path: Path) -> Path:
    """Write the file (its folder is made when missing) and return it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = _tensors(len(_vocabulary()))
    described = [_text("GGUF", raw=True), struct.pack("<IQQ", 3, len(tensors), len(_facts()))]
    described += [_text(key) + _value(value) for key, value in _facts().items()]
    data = bytearray()
    source = random.Random(20)
    for name, shape in tensors.items():
        data += bytes(-len(data) % _ALIGNMENT)
        described.append(_text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(data)))
        data += float32(source, shape, ones="norm.weight" in name)
    header = b"".join(described)
    path.write_bytes(header + bytes(-len(header) % _ALIGNMENT) + bytes(data))
    return path


def _vocabulary() -> list[str]:
    """Word pieces as llama.cpp keeps them: what begins a word has a mark, what goes on with one has none."""
    letters = string.ascii_lowercase + string.digits
    begins = [f"\u2581{piece}" for piece in (*letters, *string.punctuation, *_WORDS)]
    return [*_SPECIAL, *dict.fromkeys(begins), *letters]


def _facts() -> dict[str, tuple[int, Any]]:
    """Key to (type, value); an array's value is (type of its elements, elements)."""
    tokens = _vocabulary()
    kinds = [_CONTROL if token in _SPECIAL else _NORMAL for token in tokens]
    return {
        "general.architecture": (_STRING, "bert"),
        "general.name": (_STRING, "tiny random bert"),
        "general.file_type": (_U32, 0),
        "bert.block_count": (_U32, LAYERS),
        "bert.context_length": (_U32, CONTEXT),
        "bert.embedding_length": (_U32, EMBEDDING),
        "bert.feed_forward_length": (_U32, FFN),
        "bert.attention.head_count": (_U32, HEADS),
        "bert.attention.layer_norm_epsilon": (_F32, 1e-12),
        "bert.attention.causal": (_BOOL, False),
        "bert.pooling_type": (_U32, _MEAN),
        "tokenizer.ggml.model": (_STRING, "bert"),
        "tokenizer.ggml.token_type_count": (_U32, 2),
        "tokenizer.ggml.tokens": (_ARRAY, (_STRING, tokens)),
        "tokenizer.ggml.token_type": (_ARRAY, (_I32, kinds)),
        "tokenizer.ggml.padding_token_id": (_U32, 0),
        "tokenizer.ggml.unknown_token_id": (_U32, 1),
        "tokenizer.ggml.cls_token_id": (_U32, 2),
        "tokenizer.ggml.bos_token_id": (_U32, 2),
        "tokenizer.ggml.seperator_token_id": (_U32, 3),
        "tokenizer.ggml.eos_token_id": (_U32, 3),
        "tokenizer.ggml.mask_token_id": (_U32, 4),
    }


def _tensors(vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Name to shape, the fastest dimension first, as GGUF has it."""
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (EMBEDDING, vocabulary),
        "token_types.weight": (EMBEDDING, 2),
        "position_embd.weight": (EMBEDDING, CONTEXT),
    }
    shapes |= _layer("token_embd_norm", EMBEDDING)
    for block in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            shapes |= _layer(f"blk.{block}.{name}", EMBEDDING, EMBEDDING)
        shapes |= _layer(f"blk.{block}.attn_output_norm", EMBEDDING)
        shapes |= _layer(f"blk.{block}.ffn_up", EMBEDDING, FFN)
        shapes |= _layer(f"blk.{block}.ffn_down", FFN, EMBEDDING)
        shapes |= _layer(f"blk.{block}.layer_output_norm", EMBEDDING)
    return shapes


def _layer(name: str, *shape: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": shape, f"{name}.bias": (shape[-1],)}


def _value(typed: tuple[int, Any]) -> bytes:
    kind, value = typed
    return struct.pack("<I", kind) + _plain(kind, value)


def _plain(kind: int, value: Any) -> bytes:
    if kind == _ARRAY:
        element, items = value
        return struct.pack("<IQ", element, len(items)) + b"".join(_plain(element, item) for item in items)
    if kind == _STRING:
        return _text(value)
    return struct.pack({_U32: "<I", _I32: "<i", _F32: "<f", _BOOL: "<?"}[kind], value)


def _text(value: str, *, raw: bool = False) -> bytes:
    data = value.encode()
    return data if raw else struct.pack("<Q", len(data)) + data
