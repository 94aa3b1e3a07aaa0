# ruff: noqa: E501 - one row of a table is one line
"""Document 1, "Admission and residency"."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support import fake_engine
from support.daemon import FAKE_ENGINE_CONFIG, Answer, Daemon
from support.document_world import (
    TINY_DEPLOYMENT,
    act,
    admin,
    catalog_model,
    edit,
    in_background,
    managed,
    reload,
    until,
)

pytestmark = pytest.mark.e2e

PROVED_ELSEWHERE = {
    "interactive before standard before batch, FIFO within": "tests/modelhost/test_modelhost_admission.py::test_classes_in_order_and_fifo_within",
    "the order on a real engine": "tests/modelhost/test_modelhost_priority.py::test_classes_are_served_in_order_on_a_real_engine",
    "weights, KV cache, overhead and margin make the reservation": "tests/modelhost/test_modelhost_memory.py::test_the_terms_of_the_formula_each_truncated",
    "the chosen device counts, not the one with the most memory": "tests/modelhost/test_modelhost_residency.py::test_no_device_is_ever_given_more_than_it_has",
    "only idle generations are evicted": "tests/modelhost/test_modelhost_residency.py::test_only_idle_ones_are_evicted_and_none_needlessly",
    "the busy are waited for": "tests/modelhost/test_modelhost_eviction.py::test_an_active_deployment_is_waited_for",
    "pinned generations stay": "tests/modelhost/test_modelhost_residency.py::test_the_pinned_stay_and_the_refusal_names_them",
    "max_resident_models is one count over all devices": "tests/modelhost/test_modelhost_residency.py::test_the_number_of_models_is_one_count_over_all_devices",
    "eviction never rejects a load that would displace somebody": "tests/modelhost/test_modelhost_residency.py::test_eviction_never_refuses_instead",
    "insufficient_capacity prints every term": "tests/e2e/test_bad_input.py::test_no_memory_prints_every_term",
    "crash_loop holds until reset, after bounded retries": "tests/e2e/test_model_host_real.py::test_a_crash_loop_holds_until_reset",
    "the delay between retries is bounded": "tests/modelhost/test_modelhost_lifecycle.py::test_the_backoff_is_bounded",
    "keep-alive counts from the last release": "tests/modelhost/test_modelhost_host.py::test_keep_alive_counts_from_the_last_release",
    "keep-alive unloads a real engine and the next request wakes it": "tests/e2e/test_model_host_real.py::test_keep_alive_unloads_and_the_next_request_wakes",
    "two models on a budget for one lose no answer": "tests/e2e/test_model_host_real.py::test_two_models_on_a_budget_for_one_lose_no_answer",
    "a drain has a deadline": "tests/modelhost/test_modelhost_host.py::test_a_drain_ends_at_its_deadline_and_late_releases_count_nothing",
}
NOT_ON_ONE_MACHINE = {"the class of a request comes with its key": "M3"}

CONFIG = FAKE_ENGINE_CONFIG.replace('/cache"}', '/cache", max_resident_models: 2}').replace(
    TINY_DEPLOYMENT,
    "      tiny: {model: tiny-model, max_concurrency: 1, max_queue_depth: 1, queue_timeout_ms: 1000}\n"
    "      other: {model: other-model}\n"
    "      keeper: {model: tiny-model, pinned: true, max_context: 64}\n"
    "      brief: {model: other-model, max_context: 32, keep_alive_secs: 1}\n"
    "      anchor: {model: other-model, pinned: true, max_context: 16}\n",
) + "".join(managed(name, name, name) for name in ("other", "keeper", "brief", "anchor"))  # fmt: skip


def more_models(folder: Path) -> str:
    needs = {"accelerators": ["cpu", "cuda", "metal"], "min_memory_bytes": 1 << 50}
    return catalog_model(folder, "other-model") + catalog_model(folder, "huge-model", requirements=needs)


@pytest.fixture
def calm(served: Daemon) -> Iterator[Daemon]:
    """Nothing runs, and engines behave."""
    fake_engine.configure(served.directory)
    for name in ("tiny", "other", "keeper", "brief", "anchor"):
        act(served, "stop", name)
    yield served
    fake_engine.configure(served.directory)


def refused(answer: Answer, reason: str) -> dict[str, object]:
    """The body of a refusal, which carries its reason twice."""
    body: dict[str, object] = answer.json()
    error = body["error"]
    assert isinstance(error, dict)
    assert (body["sbproxy_reason"], error["code"], error["type"]) == (reason, reason, "managed_model_error")
    assert answer.status >= 400
    return error


def busy(handle: Daemon, stack: ExitStack) -> None:
    """One answer that takes its time has the only place of ``tiny``."""
    fake_engine.configure(handle.directory, mode="slow_tokens", token_interval_ms=400)
    stack.enter_context(in_background(lambda: handle.chat()))
    until(lambda: handle.status_row()["active_requests"] == 1)


def test_a_deployment_has_a_cap_and_a_bounded_queue_of_its_own(calm: Daemon) -> None:
    """Beyond both a caller is refused as queue_full; whoever waits too long as queue_timeout; another deployment serves."""
    with ExitStack() as stack:
        busy(calm, stack)
        waiting = stack.enter_context(in_background(lambda: calm.chat()))
        until(lambda: calm.status_row()["queued_requests"] == 1)
        full = calm.chat()
        assert refused(full, "queue_full")["retryable"] is True
        assert int(full.headers["retry-after"]) >= 1
        fake_engine.configure(calm.directory)
        assert calm.chat("other").status == 200
    assert refused(waiting[0], "queue_timeout")["retryable"] is True
    row = calm.status_row()
    assert (row["active_requests"], row["queued_requests"]) == (0, 0)


def test_a_clients_header_gives_nobody_a_better_place(calm: Daemon) -> None:
    """What a client says of its priority is not looked at: the queue is full for it too."""
    with ExitStack() as stack:
        busy(calm, stack)
        stack.enter_context(in_background(lambda: calm.chat()))
        until(lambda: calm.status_row()["queued_requests"] == 1)
        body = {"model": "tiny", "priority": "interactive", "messages": [{"role": "user", "content": "x"}]}
        headers = {"x-priority": "interactive", "x-sbproxy-priority": "interactive", "priority": "u=0"}
        refused(calm.ask("POST", "/v1/chat/completions", body, headers=headers), "queue_full")


def test_a_drain_refuses_newcomers_and_lets_the_active_finish(calm: Daemon) -> None:
    """Who waits is told draining, who is being answered is answered, and then the engine is gone."""
    with ExitStack() as stack:
        busy(calm, stack)
        waiting = stack.enter_context(in_background(lambda: calm.chat()))
        until(lambda: calm.status_row()["queued_requests"] == 1)
        assert admin(calm, "POST", "/admin/model-host/drain", {"deployment": "tiny"}).status == 202
        until(lambda: waiting)
        refused(waiting[0], "draining")
        refused(calm.chat(), "draining")
    calm.wait_state("stopped")
    assert calm.status_row()["pid"] is None


def test_an_unhealthy_engine_is_kept_for_inspection_until_reset(calm: Daemon) -> None:
    """What would fail the same way again is refused with its reason and its retained error; reset clears it."""
    fake_engine.configure(calm.directory, mode="oom_exit")
    assert calm.chat().status >= 500
    refused(calm.chat(), "engine_unhealthy")
    row = calm.status_row()
    assert (row["state"], row["reason_code"]) == ("failed", "engine_unhealthy")
    assert row["last_error"].startswith("out_of_memory: ")
    fake_engine.configure(calm.directory)
    assert act(calm, "reset")["state"] == "ready"
    assert calm.chat().status == 200


def test_a_load_without_room_is_refused_and_displaces_nobody(calm: Daemon) -> None:
    """insufficient_capacity names what holds the room when all of it is pinned, and both go on running."""
    held = ("keeper", "anchor")
    assert [calm.chat(name).status for name in held] == [200, 200]
    pids = [calm.status_row(name)["pid"] for name in held]
    refused(calm.chat(), "insufficient_capacity")
    told = calm.status_row()["last_error"]
    assert "max_resident_models is 2" in told
    assert "held by anchor (0 MiB), keeper (0 MiB)" in told
    assert [calm.status_row(name)["pid"] for name in held] == pids


def test_a_model_that_fits_no_device_is_refused_before_it_becomes_desired(calm: Daemon) -> None:
    """With both figures, and nothing that runs is touched."""
    assert calm.chat().status == 200
    pid, good = calm.status_row()["pid"], calm.config.read_text()
    edit(calm, "      brief:", "      huge: {model: huge-model}\n      brief:")
    answer = reload(calm)
    calm.config.write_text(good)
    assert (answer.status, answer.json()["code"]) == (500, "no_compatible_variant")
    assert "needs 1073741824 MiB of memory" in answer.json()["error"]
    assert (calm.status_row()["pid"], calm.chat().status) == (pid, 200)


def test_the_least_recently_used_idle_model_makes_room_and_the_pinned_one_stays(calm: Daemon) -> None:
    """With room for two, the third load stops the older of the idle ones, as a process."""
    for name in ("keeper", "tiny"):
        assert calm.chat(name).status == 200
    keeper, tiny = calm.status_row("keeper"), calm.status_row()
    assert calm.chat("other").status == 200
    assert calm.status_row("keeper")["pid"] == keeper["pid"]
    row = calm.wait_state("stopped")
    assert row["stop_cause"] == "capacity"
    assert not fake_engine.alive(tiny["pid"])


def test_keep_alive_starts_after_the_last_answer(calm: Daemon) -> None:
    """An answer that takes longer than the keep-alive is not cut; after it the engine stops by itself."""
    fake_engine.configure(calm.directory, mode="slow_tokens", token_interval_ms=200)
    answer = calm.chat("brief")
    assert answer.status == 200
    row = calm.wait_state("stopped", "brief", timeout_s=10)
    assert row["stop_cause"] == "keep_alive"
