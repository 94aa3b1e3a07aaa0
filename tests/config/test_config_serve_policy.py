"""One host policy: what `proxy.model_host` and all `serve:` blocks say together, and what they may not say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbproxy.config.core.document import SbConfig
from sbproxy.config.core.findings import Finding
from sbproxy.config.load import Loaded, load_text
from sbproxy.errors.config import ConfigInvalid

A = "origins.a.action.providers[0].serve"
B = "origins.b.action.providers[0].serve"


def load(text: str) -> Loaded:
    return load_text(text, path=Path("/etc/sb.yml"), environ={})


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigInvalid) as caught:
        load(text)
    return [problem.text().removeprefix("/etc/sb.yml:") for problem in caught.value.problems]


def document(host: str = "", a: str = "", b: str | None = None) -> str:
    """proxy.model_host on line 2, the block of origin a on line 4, that of b on line 5; each with models of its own."""
    lines = ["proxy:", f"  model_host: {{{host}}}", "origins:", row("a", a)]
    return "\n".join([*lines, *([row("b", b)] if b is not None else [])]) + "\n"


def row(name: str, settings: str) -> str:
    models = "" if "models:" in settings else f"models: [{{model: m-{name}}}]"
    block = ", ".join(each for each in (models, settings) if each)
    return f"  {name}: {{action: {{type: ai_proxy, providers: [{{name: local, serve: {{{block}}}}}]}}}}"


def test_host_settings_become_those_of_the_model_host() -> None:
    host = load(
        document(
            a="catalog_file: c.yml, cache_dir: /cache, cache_budget_gib: 50, eviction: never,"
            " engines: {llama_cpp: {path: bin/llama-server}}"
        )
    ).config.proxy.model_host
    assert host.catalog_file == "/etc/c.yml"
    assert host.cache.directory == "/cache"
    assert host.cache.budget_gib == 50
    assert host.cache.eviction == "never"
    assert host.engines["llama_cpp"].path == "/etc/bin/llama-server"


def test_a_setting_may_stand_in_one_place_or_equally_in_several() -> None:
    text = document(
        "cache: {directory: /c, max_resident_models: 2}, safety_margin: 0.2", "cache_dir: /c", "eviction: never"
    )
    host = load(text).config.proxy.model_host
    assert (host.cache.directory, host.cache.eviction, host.cache.max_resident_models) == ("/c", "never", 2)
    assert host.safety_margin == 0.2
    assert len(host.deployments) == 2


CONFLICTS = [
    ("", "cache_dir: /x", "cache_dir: /y", f"5: {B}.cache_dir", f'"/y" here, "/x" at {A}.cache_dir'),
    ("cache: {directory: /z}", "cache_dir: /x", None, f"4: {A}.cache_dir", '"/z" at proxy.model_host.cache.directory'),
    ("", "eviction: lru", "eviction: never", f"5: {B}.eviction", f'"never" here, "lru" at {A}.eviction'),
    ("", "cache_budget_gib: 5", "cache_budget_gib: 6", f"5: {B}.cache_budget_gib", f"6.0 here, 5.0 at {A}"),
    ("", "catalog_file: a.yml", "catalog_file: b.yml", f"5: {B}.catalog_file", f'"/etc/a.yml" at {A}.catalog_file'),
    (
        "",
        "allow_unpinned_refs: true",
        "allow_unpinned_refs: false",
        f"5: {B}.allow_unpinned_refs",
        "false here, true at",
    ),
    ("", "max_concurrent_requests: 4", "max_concurrent_requests: 5", f"5: {B}.max_concurrent_requests", "5 here, 4 at"),
    (
        "engines: {llama_cpp: {version: b1}}",
        "engines: {llama_cpp: {version: b2}}",
        None,
        f"4: {A}.engines.llama_cpp",
        'version "b2" here, version "b1" at proxy.model_host.engines.llama_cpp',
    ),
]


@pytest.mark.parametrize(("host", "a", "b", "place", "reason"), CONFLICTS, ids=[each[3] for each in CONFLICTS])
def test_conflicting_host_policies_name_both_places(host: str, a: str, b: str | None, place: str, reason: str) -> None:
    (problem,) = problems(document(host, a, b))
    assert problem.startswith(f"{place}: ")
    assert reason in problem
    assert "share one host policy" in problem


def test_a_value_that_is_wrong_by_itself_is_no_conflict() -> None:
    assert problems(document(a="cache_dir: /x", b="cache_dir: x")) == [
        f"5: {B}.cache_dir: must be an absolute path ('~' is not expanded; use ${{HOME}})"
    ]


@pytest.mark.parametrize(
    ("engines", "path", "reason"),
    [
        ("{vllm: {launch: container, image: 'vllm:latest'}}", "vllm.image", "must be pinned by digest"),
        ("{llama_cpp: {launch: uv}}", "llama_cpp.launch", "uv is only for vllm and sglang"),
        ("{vllm: {shm_size_gib: 8}}", "vllm.shm_size_gib", "only set with launch: container"),
        ("{llama_cpp: {acquire: true}}", "llama_cpp.acquire", "it is not carried over; write path, or the version"),
        ("{ollama: {}}", "ollama", "is not an engine"),
    ],
)
def test_engines_of_a_block_follow_the_rules_of_the_host(engines: str, path: str, reason: str) -> None:
    found = problems(document(a=f"engines: {engines}"))
    assert len(found) == 1
    assert found[0].startswith(f"4: {A}.engines.{path}: ")
    assert reason in found[0]


# --- the cap on all served requests --------------------------------------------------------------------------------


def shares(cap: int, models: int) -> list[int | None]:
    names = ", ".join(f"{{model: m{index}}}" for index in range(models))
    text = document(a=f"models: [{names}], max_concurrent_requests: {cap}")
    return [each.max_concurrency for each in load(text).config.proxy.model_host.deployments.values()]


def test_a_cap_is_shared_out_with_the_remainder_first() -> None:
    assert shares(4, 1) == [4]
    assert shares(8, 3) == [3, 3, 2]


@given(st.integers(1, 12), st.integers(0, 40))
def test_all_served_models_together_never_exceed_the_cap(models: int, more: int) -> None:
    shared = [share or 0 for share in shares(models + more, models)]
    assert sum(shared) == models + more
    assert min(shared) >= 1
    assert max(shared) - min(shared) <= 1


def test_a_cap_that_leaves_a_model_without_any_is_refused() -> None:
    (problem,) = problems(document(a="max_concurrent_requests: 1", b=""))
    assert problem == (
        f"4: {A}.max_concurrent_requests: 1 for 2 served models leaves one without any; give each at least 1"
    )


def test_the_time_in_the_queue_counts_only_beside_a_cap() -> None:
    loaded = load(document(a="queue_timeout_ms: 5"))
    assert [(each.line, each.path, each.reason) for each in loaded.warnings] == [
        (4, f"{A}.queue_timeout_ms", "has no effect without max_concurrent_requests")
    ]
    assert [each.queue_timeout_ms for each in loaded.config.proxy.model_host.deployments.values()] == [30_000]
    capped = load(document(a="queue_timeout_ms: 5, max_concurrent_requests: 2", b=""))
    assert capped.warnings == ()
    assert [each.queue_timeout_ms for each in capped.config.proxy.model_host.deployments.values()] == [5, 5]


def test_ids_do_not_depend_on_the_host_policy() -> None:
    plain = load(document(a=""))
    capped = load(document("safety_margin: 0.3", a="max_concurrent_requests: 3, eviction: never"))
    assert list(plain.served) == list(capped.served)


# --- beside canonical deployments -----------------------------------------------------------------------------------


def test_canonical_and_served_deployments_live_together() -> None:
    loaded = load(document("deployments: {own: {model: x}}", a=""))
    deployments = loaded.config.proxy.model_host.deployments
    assert list(deployments) == ["own", *loaded.served]


def test_the_id_of_a_lowered_deployment_is_taken_once() -> None:
    (name,) = load(document(a="")).served
    (problem,) = problems(document(f"deployments: {{{name}: {{model: x}}}}", a=""))
    assert problem.startswith(f"4: {A}.models[0]: this block is lowered to deployment {name}, which")


def test_the_store_owns_deployments_under_admin_managed() -> None:
    found = problems(document("authority: admin_managed, store_path: /s", a=""))
    assert len(found) == 1
    assert found[0].startswith(f"4: {A}: under authority admin_managed the store at store_path owns the deployments")


def test_further_rules_are_reported_where_the_block_is_written() -> None:
    """A rule of another room looks at what was lowered; its findings name the written places."""

    def further(config: SbConfig) -> Iterator[Finding]:
        (name,) = config.proxy.model_host.deployments
        at = ("proxy", "model_host", "deployments", name)
        for field in ("model", "keep_alive_secs", "max_concurrency", "extra_args"):
            yield Finding((*at, field), "wrong")
        yield Finding((*at, "extra_args", 0), "wrong", depends_on=((*at, "engine"),))
        for field in (("catalog_file",), ("cache", "directory"), ("engines", "vllm", "version"), ("safety_margin",)):
            yield Finding(("proxy", "model_host", *field), "wrong")

    text = document(
        a="models: [{model: m, keep_alive: 3s, extra_args: [-x]}], max_concurrent_requests: 2, catalog_file: c,"
        " cache_dir: /c, engines: {vllm: {version: v1}}"
    )
    with pytest.raises(ConfigInvalid) as caught:
        load_text(text, path=Path("/etc/sb.yml"), environ={}, further=further)
    assert {problem.path for problem in caught.value.problems} == {
        f"{A}.models[0].model",
        f"{A}.models[0].keep_alive",
        f"{A}.models[0].extra_args",
        f"{A}.models[0].extra_args[0]",
        f"{A}.max_concurrent_requests",
        f"{A}.catalog_file",
        f"{A}.cache_dir",
        f"{A}.engines.vllm.version",
        "proxy.model_host.safety_margin",
    }


@given(st.permutations(["a", "b", "c"]))
def test_lowering_is_deterministic_over_the_order_of_origins(order: list[str]) -> None:
    """Order decides which place is named first, never what a deployment is."""
    text = "origins:\n" + "\n".join(row(name, "models: [{model: m}, {model: n, pinned: true}]") for name in order)
    loaded = load(text)
    assert set(loaded.served) == set(
        load("origins:\n" + row("a", "models: [{model: m}, {model: n, pinned: true}]")).served
    )
    first, second, third = (
        [provider.deployment for provider in origin.action.providers] for origin in loaded.config.origins.values()
    )
    assert first == second == third
    assert len(set(first)) == 2
