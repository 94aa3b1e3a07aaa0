"""The model host over real engines: room for one of two models, rolling updates, replicas, keep-alive, crash loops."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.daemon import Answer, Daemon, daemon
from support.real_parts import cache_root, real_binary, real_model_path
from support.requantized import requantized_model_path

pytestmark = [pytest.mark.e2e, pytest.mark.real_engine, pytest.mark.timeout(240)]

QUESTION = "Complete the sentence: The capital of France is"

CONFIG = """
proxy:
  http_bind_port: {port}
  bind_address: 127.0.0.1
  admin:
    enabled: true
    port: {admin_port}
    password: "${SB_ADMIN_PASSWORD}"
    rate_limit_per_minute: 100000
  model_host:
    catalog_file: catalog.yml
    shutdown_deadline_ms: 20000
    cache: {CACHE}
    engines: {llama_cpp: {path: ENGINE}}
    deployments:
DEPLOYMENTS
origins:
  localhost:
    action:
      type: ai_proxy
      providers:
        - {name: first, provider_type: managed_model, deployment: one, models: [one]}
PROVIDERS
"""
MORE = "        - {{name: {0}, provider_type: managed_model, deployment: {0}, models: [{0}]}}"

VARIANT = """
      - id: {id}
        format: gguf
        quant: {quant}
        engines: [llama_cpp]
        source: "file:{folder}"
        revision: "{digest:.40}"
        files: [{{path: {name}, sha256: {digest}, size_bytes: {size}}}]
        requirements: {{accelerators: [cpu], min_memory_bytes: 1}}
        stability: preview
        certification: test"""


def variant(name: str, quant: str, path: Path) -> str:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    size = path.stat().st_size
    return VARIANT.format(id=name, quant=quant, folder=path.parent, name=path.name, digest=digest, size=size)


def catalog() -> str:
    variants = variant("q4_1", "Q4_1", real_model_path()) + variant("q8_0", "Q8_0", requantized_model_path())
    facts = ["params: 135M", "license: apache-2.0", "family: smollm2", "context_length: 8192"]
    lines = "\n".join(f"    {fact}" for fact in facts)
    return f"schema_version: 2\ncatalog_revision: real-1\nmodels:\n  smollm:\n{lines}\n    variants:{variants}\n"


@contextlib.contextmanager
def serving(folder: Path, deployments: dict[str, str], *, cache: str = "") -> Iterator[Daemon]:
    """A daemon with these deployments, each of them the rest of a flow mapping in YAML."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "catalog.yml").write_text(catalog())
    lines = "\n".join(
        f"      {name}: {{model: smollm, max_context: 512, {more}}}" for name, more in deployments.items()
    )
    text = CONFIG.replace("ENGINE", str(real_binary(folder).program)).replace("DEPLOYMENTS", lines)
    text = text.replace("PROVIDERS", "\n".join(MORE.format(name) for name in deployments if name != "one"))
    text = text.replace("{CACHE}", f'{{directory: "{cache_root()}", {cache}}}')
    with daemon(folder, text) as handle:
        handle.start()
        yield handle


def ask(served: Daemon, model: str, **more: Any) -> Answer:
    return served.chat(model, content=QUESTION, temperature=0, max_tokens=12, timeout_s=120, **more)


def long_answer(served: Daemon) -> Answer:
    return served.chat("one", content=QUESTION, max_tokens=96, ignore_eos=True, timeout_s=120)


def text_of(answer: Answer) -> str:
    assert answer.status == 200, answer.body
    found: str = answer.json()["choices"][0]["message"]["content"]
    return found


def rows(served: Daemon, deployment: str = "one") -> list[dict[str, Any]]:
    status = served.ask("GET", "/admin/model-host/status", admin=True).json()
    return [row for row in status["deployments"] if row["deployment"] == deployment]


def until(condition: Any, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_two_models_on_a_budget_for_one_lose_no_answer(tmp_path: Path) -> None:
    deployment = "max_concurrency: 2, queue_timeout_ms: 120000, variant: "
    limits = {"one": deployment + "q4_1", "two": deployment + "q8_0"}
    with serving(tmp_path, limits, cache="max_resident_models: 1") as served:
        highest = [0]
        done = threading.Event()

        def watch() -> None:
            while not done.is_set():
                resident = [row for name in ("one", "two") for row in rows(served, name) if row["pid"]]
                highest[0] = max(highest[0], len(resident))
                time.sleep(0.05)

        watcher = threading.Thread(target=watch)
        watcher.start()

        def caller(number: int) -> list[str]:
            return [text_of(ask(served, ("one", "two")[(number + turn) % 2])) for turn in range(4)]

        with ThreadPoolExecutor(4) as pool:
            answers = [text for texts in pool.map(caller, range(4)) for text in texts]
        done.set()
        watcher.join()
        assert len(answers) == 16
        assert all("Paris" in text for text in answers), answers
        assert highest[0] == 1, "two engines were resident at once"


def test_a_rolling_update_between_two_quantizations_fails_nobody(tmp_path: Path) -> None:
    shape = "max_concurrency: 4, max_queue_depth: 64, queue_timeout_ms: 120000, warm: true, rollout: rolling, variant: "
    with serving(tmp_path, {"one": shape + "q4_1"}) as served:
        before = rows(served)[0]
        outcomes: Counter[int] = Counter()
        stop = threading.Event()

        def hammer() -> None:
            while not stop.is_set():
                outcomes[ask(served, "one").status] += 1

        threads = [threading.Thread(target=hammer) for _ in range(20)]
        for thread in threads:
            thread.start()
        until(lambda: outcomes[200] >= 20)
        served.config.write_text(served.config.read_text().replace("variant: q4_1", "variant: q8_0"))
        reloaded = served.ask("POST", "/admin/reload", admin=True, timeout_s=120)
        assert reloaded.status == 200, reloaded.body
        so_far = outcomes[200]
        until(lambda: outcomes[200] >= so_far + 20)
        stop.set()
        for thread in threads:
            thread.join()
        assert set(outcomes) == {200}, outcomes
        until(lambda: [row["variant"] for row in rows(served)] == ["q8_0"])
        assert rows(served)[0]["generation"] == before["generation"] + 1
        assert not psutil.pid_exists(before["pid"])


def test_two_replicas_share_the_work_and_one_survives_the_other(tmp_path: Path) -> None:
    shape = "variant: q4_1, replicas: 2, warm: true, max_queue_depth: 32, queue_timeout_ms: 60000"
    with serving(tmp_path, {"one": shape}) as served:
        first, second = rows(served)
        assert (first["state"], second["state"]) == ("ready", "ready")
        assert first["pid"] != second["pid"]
        with ThreadPoolExecutor(2) as pool:
            long = [pool.submit(long_answer, served) for _ in range(2)]
            until(lambda: [row["active_requests"] for row in rows(served)] == [1, 1])
            assert all(future.result().status == 200 for future in long)
        os.kill(first["pid"], signal.SIGKILL)
        assert "Paris" in text_of(ask(served, "one"))
        until(lambda: [row["state"] for row in rows(served)] == ["ready", "ready"])
        assert rows(served)[0]["pid"] not in (first["pid"], second["pid"])
        assert rows(served)[1]["pid"] == second["pid"]


def test_keep_alive_unloads_and_the_next_request_wakes(tmp_path: Path) -> None:
    with serving(tmp_path, {"one": "variant: q4_1, keep_alive_secs: 1"}) as served:
        assert "Paris" in text_of(ask(served, "one"))
        assert rows(served)[0]["expires_at_ms"] is not None
        until(lambda: rows(served)[0]["state"] == "stopped")
        assert rows(served)[0]["stop_cause"] == "keep_alive"
        assert "Paris" in text_of(ask(served, "one"))


def test_a_crash_loop_holds_until_reset(tmp_path: Path) -> None:
    with serving(tmp_path, {"one": "variant: q4_1, warm: true"}) as served:
        killed: set[int] = set()

        def looping() -> bool:
            row = rows(served)[0]
            if row["pid"] and row["pid"] not in killed:
                killed.add(row["pid"])
                with contextlib.suppress(ProcessLookupError):
                    os.kill(row["pid"], signal.SIGKILL)
            return bool(row["reason_code"] == "crash_loop")

        until(looping, 120)
        assert len(killed) == 5
        refused = ask(served, "one")
        assert refused.status == 503
        assert refused.json()["error"]["code"] == "crash_loop"
        reset = served.ask("POST", "/admin/model-host/reset", {"deployment": "one"}, admin=True)
        assert reset.status == 200, reset.body
        assert "Paris" in text_of(ask(served, "one"))


def test_everybody_is_served_within_a_round_of_loads_and_work(tmp_path: Path) -> None:
    """Field report 26: three deployments, one slot, callers that ask again at once. Between a caller's question and
    its answer every other deployment has its turn at most twice: the one that runs, and the one before ours."""
    names, callers, questions = ("one", "two", "three"), 2, 3
    shape = "max_concurrency: 2, queue_timeout_ms: 120000, variant: "
    limits = {"one": shape + "q4_1", "two": shape + "q8_0", "three": shape + "q4_1"}
    with serving(tmp_path, limits, cache="max_resident_models: 1") as served:
        began = time.monotonic()
        text_of(ask(served, "one"))
        load_and_work_s = time.monotonic() - began
        turns: list[str] = []
        waited: list[tuple[float, int]] = []
        writing = threading.Lock()

        def caller(name: str) -> None:
            for _ in range(questions):
                with writing:
                    began, before = time.monotonic(), len(turns)
                assert text_of(ask(served, name))
                with writing:
                    if not turns or turns[-1] != name:
                        turns.append(name)
                    waited.append((time.monotonic() - began, len(turns) - before))

        with ThreadPoolExecutor(len(names) * callers) as pool:
            for done in [pool.submit(caller, name) for name in names for _ in range(callers)]:
                done.result()
        assert len(waited) == len(names) * callers * questions
        assert max(passed for _, passed in waited) <= 2 * len(names), turns
        work_of_a_turn = callers  # all of them may be due in it
        assert max(seconds for seconds, _ in waited) <= 3 * len(names) * (load_and_work_s + 1) * work_of_a_turn
        rows_now = [row for name in names for row in rows(served, name)]
        assert sum(row["pid"] is not None for row in rows_now) == 1
