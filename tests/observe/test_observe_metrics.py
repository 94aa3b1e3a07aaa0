"""Series, labels and their bounds (contracts section 40)."""

from __future__ import annotations

import re
import threading
import time

from prometheus_client.parser import text_string_to_metric_families

from sbproxy.devices.core.model import Device
from sbproxy.modelhost.ports import HostMetrics
from sbproxy.observe.metrics import Metrics
from sbproxy.observe.request_log import RequestLog
from sbproxy.observe.request_totals import MAX_CELLS
from sbproxy.observe.series import LATENCY_BUCKETS, OTHER
from sbproxy.observe.sink import RequestObserver
from sbproxy.observe.value_ledger import ValueLedger
from support.admin_world import MemoryLanes, request_record, row

Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


def scrape(metrics: Metrics) -> Samples:
    """Name → sorted labels → value, read back with the library's own parser."""
    found: Samples = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get(name, {}).get(tuple(sorted(labels.items())))


def test_a_request_counts_in_every_series_that_it_belongs_to() -> None:
    metrics = Metrics()
    for _ in range(3):
        metrics.requests.finished(request_record())
    metrics.requests.finished(
        request_record(status=502, error_class="upstream_5xx", tokens_in=None, tokens_out=None, streamed=False)
    )
    metrics.requests.finished(request_record(streamed=True, error_class="upstream_broken"))
    seen = scrape(metrics)
    owner = {
        "origin": "localhost",
        "provider": "local",
        "model": "qwen",
        "surface": "chat_completions",
        "tenant_id": "__default__",
        "api_key_id": "",
    }
    http = {"method": "POST", "status": "200"}
    assert value(seen, "sbproxy_requests_total", hostname="localhost", **http) == 4
    assert value(seen, "sbproxy_origin_requests_total", origin="localhost", **http) == 4
    assert value(seen, "sbproxy_errors_total", hostname="localhost", error_type="upstream_5xx") == 1
    assert value(seen, "sbproxy_bytes_total", origin="localhost", direction="out") == 4500
    assert value(seen, "sbproxy_ai_requests_attributed_total", outcome="success", **owner) == 3
    assert value(seen, "sbproxy_ai_requests_attributed_total", outcome="error", **owner) == 2
    assert value(seen, "sbproxy_ai_tokens_attributed_total", direction="input", **owner) == 4 * 315
    assert value(seen, "sbproxy_ai_tokens_attributed_total", direction="output", **owner) == 4 * 82
    assert value(seen, "sbproxy_ai_surface_requests_total", surface="chat_completions") == 5
    assert value(seen, "sbproxy_ai_stream_post_commit_failures_total") == 1
    attempt = {"provider": "local", "deployment": "local-qwen", "route_class": "local"}
    assert value(seen, "sbproxy_managed_replica_attempts_total", outcome="success", **attempt) == 3
    assert value(seen, "sbproxy_managed_replica_attempts_total", outcome="error", **attempt) == 2
    assert value(seen, "sbproxy_request_duration_seconds_count", hostname="localhost") == 5
    assert value(seen, "sbproxy_request_duration_seconds_bucket", hostname="localhost", le="0.025") == 0
    assert value(seen, "sbproxy_request_duration_seconds_bucket", hostname="localhost", le="0.05") == 5
    assert value(seen, "sbproxy_ai_request_duration_attributed_seconds_count", **owner) == 5


def test_a_request_that_reached_no_provider_names_no_model() -> None:
    metrics = Metrics()
    metrics.requests.finished(request_record(provider=None, deployment=None, model="whatever-i-like", status=404))
    assert "whatever-i-like" not in metrics.text().decode()
    assert "sbproxy_ai_requests_attributed_total{" not in metrics.text().decode()


def test_the_load_queue_counts_those_who_wait_for_an_engine_and_not_for_a_permit() -> None:
    metrics = Metrics()
    metrics.watch(
        host_rows=lambda: [
            row("a", model="m", state="preparing", queued_requests=3),
            row("b", model="m", state="assigned", queued_requests=2),
            row("c", model="n", state="ready", queued_requests=7),
            row("d", model="o", state="failed", queued_requests=1),
        ]
    )
    assert scrape(metrics)["sbproxy_model_host_load_queue_depth"] == {
        (("model", "m"),): 5,
        (("model", "n"),): 0,
        (("model", "o"),): 1,
    }


def test_an_eviction_is_counted_by_its_reason() -> None:
    metrics = Metrics()
    assert "# TYPE sbproxy_model_host_evictions_total counter" in metrics.text().decode()
    metrics.evicted("memory")
    assert value(scrape(metrics), "sbproxy_model_host_evictions_total", reason="memory") == 1


def test_host_counters_and_gauges() -> None:
    metrics = Metrics()
    host: HostMetrics = metrics
    host.admission_rejected("d", "standard", "queue_full")
    host.launched("llama_cpp", "m", "ready", 1.5)
    host.launched("llama_cpp", "m", "failed", None)
    host.ensure_failed("digest_mismatch")
    host.artifact_error("digest_mismatch")
    host.placement_rejected("d", "insufficient_capacity")
    host.downloaded(100, 2.0, failed=False)
    host.downloaded(50, 1.0, failed=True)
    metrics.config_reloaded("success")
    gpu = Device(0, "cuda", "gpu", 1000, 250, compute_utilization=None)
    busy = Device(1, "cuda", "gpu", 1000, 1000, compute_utilization=0.5)
    metrics.watch(
        host_rows=lambda: [
            row("a"),
            row("a", replica=1, state="failed", pid=None),
            row("b", state="stopped", pid=None),
        ],
        devices=lambda: [Device(-1, "cpu", "cpu", 10, 5), gpu, busy],
        active_connections=lambda: 7,
    )
    seen, prefix = scrape(metrics), "sbproxy_model_host_"
    rejected = {"deployment": "d", "priority": "standard", "reason": "queue_full"}
    assert value(seen, prefix + "admission_rejections_total", **rejected) == 1
    assert value(seen, prefix + "launches_total", engine="llama_cpp", model="m", outcome="failed") == 1
    assert value(seen, prefix + "time_to_ready_seconds_count", engine="llama_cpp", model="m") == 1
    assert value(seen, prefix + "time_to_ready_seconds_sum", engine="llama_cpp", model="m") == 1.5
    assert value(seen, prefix + "ensure_failures_total", reason="digest_mismatch") == 1
    assert value(seen, prefix + "artifact_errors_total", artifact_error_kind="digest_mismatch") == 1
    rejected = {"deployment": "d", "placement_reason": "insufficient_capacity"}
    assert value(seen, prefix + "placement_rejections_total", **rejected) == 1
    assert prefix + "evictions_total" not in seen
    assert value(seen, prefix + "weight_download_bytes_total") == 150
    assert value(seen, prefix + "weight_download_failures_total") == 1
    assert value(seen, prefix + "weight_download_seconds_count") == 2
    assert value(seen, "sbproxy_config_reload_total", result="success") == 1
    assert value(seen, prefix + "active_requests", deployment="a") == 2
    assert value(seen, prefix + "queued_requests", deployment="b") == 2
    state = {"deployment": "a", "engine": "llama_cpp"}
    states = {
        name: value(seen, prefix + "deployment_state", state=name, **state) for name in ("ready", "failed", "stopped")
    }
    assert states == {"ready": 1, "failed": 1, "stopped": 0}
    assert sum(seen[prefix + "deployment_state"].values()) == 3
    assert value(seen, prefix + "resident_models") == 1
    assert value(seen, prefix + "gpu_vram_bytes", device="0", kind="used") == 750
    assert value(seen, prefix + "gpu_memory_occupancy", device="0") == 0.75
    # Unknown stays absent, and memory never stands in for activity.
    assert value(seen, prefix + "gpu_utilization", device="0") is None
    assert value(seen, prefix + "gpu_utilization", device="1") == 0.5
    assert value(seen, prefix + "gpu_vram_bytes", device="-1", kind="used") is None
    assert value(seen, "sbproxy_active_connections") == 7


def test_gauges_follow_their_owner() -> None:
    metrics, rows = Metrics(), [row("a")]
    metrics.watch(host_rows=lambda: rows)
    assert value(scrape(metrics), "sbproxy_model_host_active_requests", deployment="a") == 1
    rows.clear()
    assert value(scrape(metrics), "sbproxy_model_host_active_requests", deployment="a") is None


def test_host_names_beyond_the_cap_are_folded() -> None:
    metrics = Metrics(hostname_cap=5)
    for number in range(50):
        metrics.requests.finished(request_record(origin=f"host-{number}.example"))
    seen = scrape(metrics)
    http = {"method": "POST", "status": "200"}
    hosts = {dict(labels)["hostname"] for labels in seen["sbproxy_requests_total"]}
    assert len(hosts) == 6
    assert value(seen, "sbproxy_requests_total", hostname=OTHER, **http) == 45
    overflow = seen["sbproxy_label_cardinality_overflow_total"]
    assert overflow[(("label", "hostname"), ("metric", "sbproxy_requests"))] == 45


def test_methods_statuses_and_long_or_hostile_values_are_bounded() -> None:
    metrics = Metrics()
    metrics.requests.finished(request_record(method="BREW", status=0, origin='a"\n\x1b[31m' + "x" * 500))
    (labels,) = scrape(metrics)["sbproxy_requests_total"]
    assert dict(labels)["method"] == OTHER
    assert dict(labels)["status"] == OTHER
    assert len(dict(labels)["hostname"]) <= 128
    assert "\x1b" not in metrics.text().decode()


def test_combinations_are_bounded_and_no_request_is_lost() -> None:
    metrics = Metrics()
    total = 3 * MAX_CELLS
    for number in range(total):
        record = request_record(
            origin=f"h{number % 150}", status=100 + number % 500, model=f"m{number % 199}", error_class=f"e{number % 7}"
        )
        metrics.requests.finished(record)
    started = time.process_time()
    text = metrics.text().decode()
    assert time.process_time() - started < 2
    counts = re.findall(r"^sbproxy_requests_total{.*} ([\d.]+)$", text, re.MULTILINE)
    assert sum(map(float, counts)) == total
    assert len(counts) <= MAX_CELLS + 1


def test_the_text_names_no_creation_times_and_only_our_names() -> None:
    metrics = Metrics()
    metrics.admission_rejected("d", "p", "r")
    names = set(re.findall(r"^# TYPE (\S+)", metrics.text().decode(), re.MULTILINE))
    assert not [name for name in names if name.endswith("_created")]
    assert {name.split("_")[0] for name in names} <= {"sbproxy", "process"}


def test_counters_are_safe_from_threads() -> None:
    metrics = Metrics()

    def work() -> None:
        for _ in range(2000):
            metrics.downloaded(1, 0.1, failed=False)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value(scrape(metrics), "sbproxy_model_host_weight_download_bytes_total") == 8000


def test_recording_a_request_costs_at_most_four_microseconds() -> None:
    observer = RequestObserver(RequestLog(1000), Metrics(), ValueLedger(MemoryLanes()))
    records = [request_record(number, latency_ms=float(number)) for number in range(100)]
    best = float("inf")
    for _ in range(5):
        started = time.process_time_ns()
        for _ in range(20):
            for record in records:
                observer.finished(record)
        best = min(best, (time.process_time_ns() - started) / 2000)
    assert best <= 4000, f"{best / 1000:.2f} µs a request"


def test_buckets_are_sorted() -> None:
    assert list(LATENCY_BUCKETS) == sorted(set(LATENCY_BUCKETS))
