"""The doctor's report for people: blocks in the order of contracts section 10."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sbproxy_cli.checkup.report import startup_blockers
from sbproxy_cli.sizes import human_size


def blocks(report: Mapping[str, Any]) -> list[str]:
    """Lines; a block begins at the left margin, its facts are indented."""
    return [
        *_block("host", _host(report)),
        *_block("build capabilities", [_yes(name, on) for name, on in report["features"].items()]),
        *_block("extensions", [f"scope {report['extensions']['scope']['mode']}"]),
        *_block("devices", [_gpu(each) for each in report["gpus"]] or ["no accelerator; models run on the CPU"]),
        *_block("drivers", [f"{name} {value or 'absent'}" for name, value in report["drivers"].items()]),
        *_block("engines", [line for each in report["engines"] for line in _engine(each)]),
        *_block("containers", _containers(report)),
        *_block("cache", _cache(report)),
        *_block("verdict", _verdict(report)),
        *_startup_gate(report),
    ]


def _startup_gate(report: Mapping[str, Any]) -> list[str]:
    """Only with --strict."""
    checks = report.get("strict_checks")
    if checks is None:
        return []
    failed = startup_blockers(report)
    verdict = f"FAIL ({failed} startup blocker(s))" if failed else "pass"
    lines = [f"{each['check']} {each['status']} {each['detail']}" for each in checks]
    return [*_block("startup gate", lines), f"verdict: {verdict}"]


def _block(title: str, facts: list[str]) -> list[str]:
    return [title, *[f"  {fact}" for fact in facts]]


def _yes(name: str, on: bool) -> str:
    return f"{name} {'yes' if on else 'no'}"


def _host(report: Mapping[str, Any]) -> list[str]:
    host, shared = report["host"], report["shared_memory"]
    facts = [
        f"{host['os']} {host['arch']}, {host['cpu_count']} CPUs, {human_size(host['total_ram_bytes'])} memory",
        f"python {report['python']['version']}",
    ]
    if shared["total_bytes"]:
        facts.append(f"shared memory {human_size(shared['available_bytes'])} free in {shared['path']}")
    return facts


def _gpu(gpu: Mapping[str, Any]) -> str:
    room = f"{human_size(gpu['free_bytes'])} of {human_size(gpu['total_bytes'])} free"
    capability = f", compute {gpu['compute_capability']}" if gpu["compute_capability"] else ""
    return f"{gpu['index']} {gpu['vendor']} {gpu['name']}, {room}{capability}"


def _engine(engine: Mapping[str, Any]) -> list[str]:
    version = f" {engine['version']}" if engine["version"] else ""
    lines = [f"{engine['engine']}{version}: {engine['availability']} - {engine['reason']}"]
    return [*lines, *[f"  {way['method']}: {way['detail']}" for way in engine["acquisition"]]]


def _containers(report: Mapping[str, Any]) -> list[str]:
    runtime = report["container_runtime"]
    if runtime != "docker":  # Podman needs no daemon.
        return [f"runtime {runtime or 'none'}"]
    answers = report["containers"]["daemon_reachable"]
    return [f"runtime docker, its daemon {'answers' if answers else 'does not answer'}"]


def _cache(report: Mapping[str, Any]) -> list[str]:
    exists = "exists" if report["model_cache_exists"] else "will be made at the first pull"
    free = report["model_cache_free_bytes"]
    facts = [f"{report['model_cache_dir']} ({exists})"]
    if free is not None:
        facts.append(f"{human_size(free)} free")
    budget = report["cache_budget_check"]
    if budget is not None:
        facts.append(f"budget {budget['budget_gib']} GiB: {'enough' if budget['sufficient'] else 'not enough'} room")
    hub = report["huggingface"]
    token = "a token is set" if hub["token_present"] else "no token"
    words = {True: "reachable", False: f"not reachable ({hub['reason']})", None: hub["reason"]}
    facts.append(f"model hub {hub['endpoint']}: {words[hub['reachable']]}, {token}")
    return [*facts, *[_foreign(each) for each in report["foreign_model_caches"]]]


def _foreign(cache: Mapping[str, Any]) -> str:
    models = ", ".join(cache["importable"]) or "nothing of the catalog"
    return f"foreign cache {cache['source']}: {cache['path']}, holds {models}"


def _verdict(report: Mapping[str, Any]) -> list[str]:
    serving = report["local_serving"]
    lines = [_model(entry) for entry in report["serve_entries"]]
    lines.append("ready to serve models" if serving["ready"] else "not ready")
    lines += [f"blocker: {each}" for each in serving["blockers"]]
    return [*lines, serving["recommendation"]] if serving["recommendation"] else lines


def _model(entry: Mapping[str, Any]) -> str:
    if not entry["runnable"]:
        return f"{entry['reference']}: cannot run - {entry['blocker']}"
    return f"{entry['reference']}: {entry['fit']['verdict']}, engine {entry['engine']}"
