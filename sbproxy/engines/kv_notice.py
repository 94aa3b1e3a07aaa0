"""Tells people when an engine keeps its KV cache in another type than the one that was asked for."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from sbproxy.engines.core.model import LaunchSpec
from sbproxy.engines.core.settings import substituted

log = logging.getLogger(__name__)


def warn_of_substitution(engine: str, spec: LaunchSpec, runs: Mapping[str, str]) -> None:
    """One warning a launch. ``runs``: what is asked for to what the engine runs (document 1, ``kv_quant``)."""
    actual = substituted(spec, runs)
    if actual is not None:
        log.warning(
            "kv_quant_substituted deployment=%s engine=%s requested=%s runs=%s",
            *(spec.deployment, engine, spec.kv_quant, actual),
        )
