"""Writes a Llama of two layers with random weights as a Hugging Face snapshot (safetensors, byte tokens).

Standard library only and the same bytes every time, so that a catalog can name its digests. It speaks nonsense; what
it is for is loading in a real engine within seconds.
"""

from __future__ import annotations

import array
import hashlib
import json
import random
import struct
import sys
from pathlib import Path
from typing import Any

HIDDEN, LAYERS, HEADS, FFN, CONTEXT = 64, 2, 2, 128, 512
SPECIAL = ("<s>", "</s>")
BEGIN, END = 256, 257
VOCABULARY = 256 + len(SPECIAL)
TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}assistant:"
PARAMETERS = "115K"
"""As a catalog writes it."""

_CATALOG = """schema_version: 2
catalog_revision: tiny-llama-1
models:
  tiny-llama:
    params: {params}
    license: apache-2.0
    family: llama
    context_length: {context}
    attention: {{layers: {layers}, kv_heads: {heads}, head_dim: {width}}}
    variants:
      - id: f32
        format: safetensors
        quant: F32
        engines: [{engines}]
        source: "file:{folder}"
        revision: "1"
        files:
{files}
        requirements: {{accelerators: [cpu]}}
        stability: preview
        certification: test
"""


def catalog(snapshot: Path, *, engines: list[str]) -> str:
    """A catalog v2 document with one model ``tiny-llama`` from the files of ``snapshot`` as they are now."""
    rows = []
    for path in sorted(snapshot.iterdir()):
        data = path.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        rows.append(f'          - {{path: {path.name}, sha256: "{digest}", size_bytes: {len(data)}}}')
    return _CATALOG.format(
        params=PARAMETERS,
        context=CONTEXT,
        layers=LAYERS,
        heads=HEADS,
        width=HIDDEN // HEADS,
        engines=", ".join(engines),
        folder=snapshot,
        files="\n".join(rows),
    )


def write_tiny_llama(folder: Path) -> Path:
    """Write the snapshot into ``folder`` (made when missing) and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in _documents().items():
        (folder / name).write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(_safetensors(_tensor_shapes()))
    return folder


def _documents() -> dict[str, Any]:
    return {
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": HIDDEN,
            "intermediate_size": FFN,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": HEADS,
            "head_dim": HIDDEN // HEADS,
            "hidden_act": "silu",
            "max_position_embeddings": CONTEXT,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "vocab_size": VOCABULARY,
            "bos_token_id": BEGIN,
            "eos_token_id": END,
            "torch_dtype": "float32",
        },
        "generation_config.json": {"bos_token_id": BEGIN, "eos_token_id": END},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIAL[0],
            "eos_token": SPECIAL[1],
            "model_max_length": CONTEXT,
            "chat_template": TEMPLATE,
        },
        "tokenizer.json": _tokenizer(),
    }


def _tokenizer() -> dict[str, Any]:
    """Every byte is a token: a byte-level BPE without merges."""
    vocabulary = {symbol: number for number, symbol in enumerate(_byte_symbols())}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": 256 + number,
                "content": content,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for number, content in enumerate(SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }


def _byte_symbols() -> list[str]:
    """The printable stand-in of each byte value, as byte-level tokenizers write them: what prints stands for itself,
    the others get the code points from 256 on."""
    symbols, spare = [], 256
    for value in range(256):
        if 33 <= value <= 126 or 161 <= value <= 172 or 174 <= value <= 255:
            symbols.append(chr(value))
        else:
            symbols.append(chr(spare))
            spare += 1
    return symbols


def _tensor_shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        shapes |= {f"{prefix}.self_attn.{name}_proj.weight": (HIDDEN, HIDDEN) for name in "qkvo"}
        shapes |= {f"{prefix}.mlp.{name}_proj.weight": (FFN, HIDDEN) for name in ("gate", "up")}
        shapes[f"{prefix}.mlp.down_proj.weight"] = (HIDDEN, FFN)
        shapes[f"{prefix}.input_layernorm.weight"] = (HIDDEN,)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (HIDDEN,)
    return shapes | {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCABULARY, HIDDEN)}


def _safetensors(shapes: dict[str, tuple[int, ...]]) -> bytes:
    """Header length (8 bytes, little endian), JSON header, data; all tensors in float32."""
    source = random.Random(20)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for name, shape in shapes.items():
        values = float32(source, shape, ones="norm" in name)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(data)


def float32(source: random.Random, shape: tuple[int, ...], *, ones: bool) -> bytes:
    """Little-endian values of one tensor: ones for a norm, else a narrow normal distribution."""
    count = 1
    for size in shape:
        count *= size
    values = array.array("f", (1.0 if ones else source.gauss(0, 0.05) for _ in range(count)))
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()
