# ruff: noqa: E501 - one row of a table is one line
"""Document 1, "Serve model settings": the settings of an inline ``serve:`` block."""

from __future__ import annotations

import pytest

from support import fake_engine
from support.daemon import Daemon
from support.document_world import HOST, admin, rows

pytestmark = pytest.mark.e2e

PROVED_ELSEWHERE = {
    "every setting of an entry reaches its deployment": "tests/config/test_config_serve.py::test_every_setting_of_an_entry_reaches_its_deployment",
    "model is a catalog id or a raw reference": "tests/config/test_config_serve.py::test_references",
    "a raw reference needs a name": "tests/config/test_config_serve.py::test_raw_references_that_cannot_be_served",
    "durations such as 30m and 1h": "tests/config/test_config_serve.py::test_durations",
    "without keep_alive the engine stays": "tests/config/test_config_serve.py::test_without_keep_alive_the_engine_stays",
    "without a variant a compatible one is taken": "tests/catalog/test_catalog_resolve.py::test_the_first_compatible_variant_in_the_catalogs_order",
    "modality drives the task flag of the engine": "tests/engines/test_engine_vllm_argv.py::test_vllm_tasks_as_old_and_new_builds_say_them",
    "modality of a raw reference counts": "tests/catalog/test_catalog_raw.py::test_what_the_entry_says_of_the_task_and_the_context_counts",
    "another task than chat has no KV cache in the memory plan": "tests/modelhost/test_modelhost_memory.py::test_no_cache_term_without_chat_or_shape",
    "vLLM and SGLang have one small KV type": "tests/engines/test_engine_vllm_argv.py::test_vllm_has_one_small_kv_type",
    "mistral.rs gets no KV type and the plan books no saving": "tests/e2e/test_mistralrs.py::test_the_fit_books_no_saving_for_a_kv_type_that_is_not_passed",
    "the plan sizes the type that will run": "tests/modelhost/test_modelhost_memory.py::test_bytes_per_cache_element",
    "a substituted KV type is logged with the one asked for, the one that runs, and the engine": "tests/engines/test_engine_container_life.py::test_an_own_program",
    "prefix caching, parser, swap pool and offload are vLLM's flags": "tests/engines/test_engine_vllm_argv.py::test_vllm_settings",
    "an engine that lacks a setting refuses it by name": "tests/engines/test_engine_vllm_argv.py::test_a_setting_that_an_engine_lacks_is_named",
    "pinned models are never evicted": "tests/modelhost/test_modelhost_eviction.py::test_the_pinned_stay",
    "gguf_file names the file of a raw repository": "tests/catalog/test_catalog_raw.py::test_a_repository_is_for_its_engine_to_fetch",
    "gguf_file belongs to nothing else": "tests/config/test_config_serve.py::test_a_setting_that_does_not_survive_is_refused_by_name",
    "extra arguments pass an allow-list, one element each": "tests/engines/test_engine_argv.py::test_no_extra_args_ever_say_what_is_not_allowed",
    "reference prices the value report": "tests/e2e/test_jobs_and_value.py::test_the_value_of_local_completions_outlives_the_daemon",
    "host settings of the block become those of the model host": "tests/config/test_config_serve_policy.py::test_host_settings_become_those_of_the_model_host",
    "a budget is a threshold: a larger artifact is still downloaded": "tests/cli/test_cli_models_cache.py::test_a_collection_spares_what_is_configured_leased_and_just_pulled",
    "doctor compares budget and free space": "tests/cli/test_cli_doctor.py::test_what_is_cached_counts_towards_the_budget",
    "a strict doctor refuses a mount that cannot hold the budget": "tests/cli/test_cli_doctor.py::test_strict_blockers_are_exit_3",
    "raw references are warned of and need no permission on a workstation": "tests/cli/test_cli_serve_block.py::test_validate_accepts_it_and_warns_of_the_raw_reference",
    "a raw repository is fetched by its engine into a folder that it may write": "tests/e2e/test_serve_block.py::test_a_raw_repository_is_fetched_by_its_engine",
    "eviction never displaces nobody": "tests/modelhost/test_modelhost_eviction.py::test_eviction_never_displaces_nobody",
    "all served models together never exceed max_concurrent_requests": "tests/config/test_config_serve_policy.py::test_all_served_models_together_never_exceed_the_cap",
    "queue_timeout_ms counts only beside it": "tests/config/test_config_serve_policy.py::test_the_time_in_the_queue_counts_only_beside_a_cap",
}
NOT_ON_ONE_MACHINE = {"allow_unpinned_refs on a fleet worker": "cluster"}

CONFIG = """
proxy:
  http_bind_port: {port}
  bind_address: 127.0.0.1
  admin: {enabled: true, port: {admin_port}, password: "${SB_ADMIN_PASSWORD}"}
origins:
  localhost:
    action:
      type: ai_proxy
      providers:
        - name: local
          serve:
            catalog_file: catalog.yml
            cache_dir: "{dir}/cache"
            cache_budget_gib: 20
            eviction: never
            engines: {llama_cpp: {path: "{dir}/llama-server"}}
            max_concurrent_requests: 3
            queue_timeout_ms: 1500
            models:
              - {model: tiny-model}
              - model: tiny-model
                name: small
                variant: q4
                engine: llama_cpp
                max_context: 256
                keep_alive: 30m
                kv_quant: int8
                pinned: true
                extra_args: [--threads, "1"]
"""


def deployments(handle: Daemon) -> list[dict[str, object]]:
    found: dict[str, dict[str, object]] = admin(handle, "GET", f"{HOST}/deployments").json()["deployments"]
    return sorted(found.values(), key=lambda each: bool(each["pinned"]))


def test_a_name_is_what_clients_say_and_the_catalogs_id_without_one(served: Daemon) -> None:
    """Routing, lists and answers know the public name alone."""
    assert [each["id"] for each in served.ask("GET", "/v1/models").json()["data"]] == ["tiny-model", "small"]
    for name in ("tiny-model", "small"):
        answer = served.chat(name)
        assert (answer.status, answer.json()["model"]) == (200, name)


def test_the_entrys_settings_are_what_the_engine_runs_with(served: Daemon) -> None:
    """Context, KV type, further arguments and keep-alive of the entry, on the engine's own command line."""
    assert served.chat("small").status == 200
    (row,) = [row for row in rows(served) if row["keep_alive_secs"] == 1800]
    (engine,) = [each for each in fake_engine.instances(served.directory) if each.pid == row["pid"]]
    words = engine.argv
    assert words[words.index("--cache-type-k") + 1] == "q8_0"
    assert words[words.index("--threads") + 1] == "1"
    assert int(words[words.index("--ctx-size") + 1]) == 256 * row["max_concurrency"]
    assert (row["variant"], row["engine"]) == ("q4", "llama_cpp")


def test_the_blocks_own_settings_are_the_hosts(served: Daemon) -> None:
    """Places in the queue are shared out over the models of the block, and each waits as long as the block says."""
    plain, pinned = deployments(served)
    assert sorted([plain["max_concurrency"], pinned["max_concurrency"]]) == [1, 2]
    assert {plain["queue_timeout_ms"], pinned["queue_timeout_ms"]} == {1500}
    assert admin(served, "GET", f"{HOST}/files").json()["cache_root"] == str(served.directory / "cache")
