"""Priority order under load, on a real engine with one slot: interactive before standard before batch, FIFO within."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from sbproxy.modelhost.host import ModelHost
from support.model_host_parts import Counts, Drivers, FixedDevices, MemoryJobs, MemoryStore, catalog, host_config
from support.real_parts import real_engine_driver, real_model_path

pytestmark = [pytest.mark.e2e, pytest.mark.real_engine]


async def test_classes_are_served_in_order_on_a_real_engine(tmp_path: Path) -> None:
    driver = await asyncio.to_thread(real_engine_driver, tmp_path)
    model = await asyncio.to_thread(real_model_path)
    store = MemoryStore(tmp_path)
    (tmp_path / "model.gguf").unlink()
    (tmp_path / "model.gguf").symlink_to(model)
    host = ModelHost(
        catalog=catalog(),
        config=host_config(),
        store=store,
        drivers=Drivers(llama_cpp=driver),
        devices=FixedDevices(),
        jobs=MemoryJobs(),
        metrics=Counts(),
    )
    await (await host.prepare(host.catalog, host_config(chat={"warm": True, "max_context": 256}))).commit()
    served: list[str] = []

    async def ask(priority: str, number: int) -> None:
        permit = await host.acquire("chat", priority)  # type: ignore[arg-type]
        endpoint = permit.endpoint
        served.append(f"{priority}{number}")
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.post(
                f"http://{endpoint.host}:{endpoint.port}/v1/completions",
                headers={"Authorization": f"Bearer {endpoint.api_key}"},
                json={"model": endpoint.alias, "prompt": "One two three", "max_tokens": 4, "temperature": 0},
                timeout=60,
            )
        assert answer.status_code == 200
        permit.release()

    try:
        first = asyncio.create_task(ask("standard", 0))
        await asyncio.sleep(0)
        crowd = [
            asyncio.create_task(ask(priority, number))
            for number in (1, 2)
            for priority in ("batch", "standard", "interactive")
        ]
        await asyncio.gather(first, *crowd)
    finally:
        await host.close()
    assert served == [
        *("standard0", "interactive1", "interactive2", "standard1", "standard2", "batch1", "batch2"),
    ]
