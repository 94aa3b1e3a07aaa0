"""The real test model in a second quantization, made here from the first: what a rolling update goes to."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from support.real_parts import REAL, real_model_path


def requantized_model_path() -> Path:
    """SmolLM2 135M Instruct as Q8_0, about 145 MB; the weights are those of the Q4_1 file."""
    target = REAL / "models" / "SmolLM2-135M-Instruct.Q8_0.gguf"
    if not target.is_file():
        partial = target.with_suffix(".partial")
        _requantize(real_model_path(), partial)
        partial.replace(target)
    return target


def _requantize(source: Path, target: Path) -> None:
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for name, entry in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind = entry.types[0]
        of = entry.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, entry.contents(), kind, sub_type=of)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    for tensor in reader.tensors:
        if tensor.tensor_type in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.Q8_0):
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            continue
        weights = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        packed = gguf.quantize(weights, gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor(tensor.name, packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
