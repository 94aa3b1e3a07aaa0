"""Messages of ``GET /admin/model-host/value`` (document 2; contracts section 31). Micros are millionths of a dollar."""

from __future__ import annotations

from typing import Literal

from sbproxy.api.envelope import ApiAnswer

Precision = Literal["model_tokenizer", "heuristic"]


class ModelValue(ApiAnswer):
    """One model by the name that callers asked for; ``__other__`` stands for all beyond the first 999."""

    model: str
    local_completions: int
    cloud_completions: int
    saved_micros: int
    cloud_spent_micros: int


class CompressionTotal(ApiAnswer):
    tokens_saved: int
    gross_cost_saved_micros: int
    token_count_precision: Precision


class CompressionValue(CompressionTotal):
    """What one lever of the context compression has saved on one model."""

    model: str
    lever: str


class ValueAnswer(ApiAnswer):
    """Savings are gross: ``total_saved_micros`` minus ``total_cloud_spent_micros`` is the net."""

    models: list[ModelValue]
    total_saved_micros: int
    total_cloud_spent_micros: int
    total_local_completions: int
    total_cloud_completions: int
    compression: list[CompressionValue]
    compression_totals: dict[str, CompressionTotal]
    total_compression_tokens_saved: int
    total_compression_gross_cost_saved_micros: int
