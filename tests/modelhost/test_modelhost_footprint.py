"""The memory that a real engine holds, against what the model host reserved for it (contracts section 15: 25 %)."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from sbproxy.catalog.core.model import WorkerFacts
from sbproxy.catalog.core.resolve import resolve
from sbproxy.catalog.document import builtin_catalog
from sbproxy.config.core.model_host import DeploymentConfig
from sbproxy.engines.core.argv import PROMPT_CACHE_MIB
from sbproxy.engines.core.model import LaunchSpec
from sbproxy.engines.driver import EngineProcess
from sbproxy.modelhost.core.memory_fit import estimate
from sbproxy.modelhost.demand import demand_of
from sbproxy.modelhost.model_shape import read_shape
from sbproxy.modelhost.status_rows import resident_bytes
from support.real_parts import real_binary, real_engine_driver, real_model_path

pytestmark = [pytest.mark.e2e, pytest.mark.real_engine]

BOUND = 1.25


def complete(engine: EngineProcess, prompt: str) -> Any:
    body = json.dumps({"prompt": prompt, "n_predict": 4, "temperature": 0}).encode()
    headers = {"Authorization": f"Bearer {engine.endpoint.api_key}"}
    request = urllib.request.Request(f"http://127.0.0.1:{engine.endpoint.port}/completion", body, headers)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=50) as answer:
        return json.load(answer)


async def held(engine: EngineProcess) -> int:
    found = await asyncio.to_thread(resident_bytes, engine.pid)
    assert found is not None
    return found


async def test_a_real_engine_holds_what_was_reserved_for_it(tmp_path: Path) -> None:
    driver = await asyncio.to_thread(real_engine_driver, tmp_path)
    binary = await asyncio.to_thread(real_binary, tmp_path)
    model = await asyncio.to_thread(real_model_path)
    worker = WorkerFacts(frozenset({"cpu"}), frozenset({"llama_cpp"}))
    artifact = resolve(await asyncio.to_thread(builtin_catalog), "smollm2-135m-instruct", None, worker)
    config = DeploymentConfig(model="smollm2-135m-instruct", max_context=2048, max_concurrency=2)
    demand = demand_of(artifact, config, await asyncio.to_thread(read_shape, model))
    planned = estimate(demand, (), 0.10).total_bytes
    spec = LaunchSpec("chat", 1, model, demand.context_tokens, demand.concurrency)
    engine = await driver.launch(binary, spec)
    try:
        await engine.wait_ready(60)
        assert planned / 2 < await held(engine) <= planned * BOUND
        await asyncio.gather(*(asyncio.to_thread(complete, engine, f"{n} is a number " * 60) for n in range(2)))
        assert await held(engine) <= planned * BOUND
        # Prompts that others pushed out of their slots are kept beside the plan, up to a bound of their own.
        for n in range(8):
            await asyncio.to_thread(complete, engine, f"{n} seas and {n} skies " * 50)
        assert await held(engine) <= planned * BOUND + (PROMPT_CACHE_MIB << 20)
    finally:
        await engine.stop(0)
