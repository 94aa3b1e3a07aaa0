# ruff: noqa: E501 - one row of a table is one line
"""Document 1, "Managed engines": availability, acquisition, and what each engine is given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from support import fake_engine
from support.cli import sbproxy
from support.daemon import tiny_catalog

STATES = {"available", "acquirable", "incompatible", "blocked"}

PROVED_ELSEWHERE = {
    "every known engine says in which of the states it is": "tests/engines/test_engine_acquisition.py::test_every_known_engine_has_a_driver_that_says_where_it_stands",
    "an incomplete pin is blocked and says what works": "tests/engines/test_engine_acquisition.py::test_an_incomplete_pin_says_what_works",
    "a worker that cannot run the engine is incompatible": "tests/engines/test_engine_mistralrs.py::test_a_machine_without_an_asset_is_incompatible",
    "llama.cpp: a configured path comes first": "tests/engines/test_engine_acquisition.py::test_a_configured_path_comes_first",
    "llama.cpp: then a compatible program on PATH": "tests/engines/test_engine_acquisition.py::test_search_path",
    "llama.cpp: one on PATH that is not compatible is passed over": "tests/engines/test_engine_acquisition.py::test_an_incompatible_one_on_path_is_passed_over",
    "llama.cpp: then the pinned build, which is fetched once": "tests/engines/test_engine_acquisition.py::test_the_pinned_wheel_comes_through_pip_once",
    "llama.cpp: a wrong digest is discarded": "tests/engines/test_engine_acquisition.py::test_an_archive_of_another_digest_is_discarded",
    "llama.cpp: two at once fetch one, under a lock": "tests/engines/test_engine_acquisition.py::test_two_at_once_fetch_one",
    "llama.cpp: a release of one's own is pinned by version and digest": "tests/engines/test_engine_acquisition.py::test_a_release_archive",
    "llama.cpp: CPU uses system memory, Metal and CUDA their devices": "tests/engines/test_engine_argv.py::test_cpu_offloads_nothing_cuda_and_metal_everything",
    "vLLM: with a container runtime and nothing configured, only a container counts": "tests/engines/test_engine_container_life.py::test_unconfigured_with_a_runtime_is_the_container_alone",
    "vLLM: an image is pinned by digest or refused": "tests/engines/test_engine_container_argv.py::test_an_image_is_pinned_by_digest_or_refused",
    "vLLM: the network is internal and the container's own": "tests/engines/test_engine_container_argv.py::test_the_network_is_internal_and_the_containers_own",
    "vLLM: artifacts are read-only, the port is on loopback, shared memory is typed": "tests/engines/test_engine_container_argv.py::test_the_confinement_of_a_container",
    "vLLM: exactly the chosen devices": "tests/engines/test_engine_container_argv.py::test_exactly_the_chosen_devices",
    "vLLM: a container's life, against a stand-in that checks every flag": "tests/engines/test_engine_container_life.py::test_an_image_is_pulled_started_asked_and_stopped",
    "vLLM: without a runtime, PATH and then a uv environment": "tests/engines/test_engine_container_life.py::test_unconfigured_without_a_runtime_goes_on_to_path_and_uv",
    "vLLM: the environment has exactly the pinned version": "tests/engines/test_engine_uv_environments.py::test_exactly_one_version_is_asked_for",
    "vLLM: what the host lacks is named with its remedy": "tests/engines/test_engine_uv_environments.py::test_each_missing_tool_is_named_with_its_remedy",
    "vLLM: places and cache bytes come from the admitted plan": "tests/engines/test_engine_vllm_argv.py::test_vllm_identity_memory_and_defaults",
    "vLLM: it serves for real, on the CPU": "tests/vllm/test_vllm_real.py::test_a_chat_completion",
    "SGLang: the launch, its owned arguments and its published list": "tests/engines/test_engine_vllm_argv.py::test_sglang",
    "SGLang: the stable argument list": "tests/engines/test_engine_vllm_argv.py::test_the_published_list_of_sglang",
    "SGLang: what the host owns is refused": "tests/engines/test_engine_vllm_argv.py::test_what_the_model_host_owns_is_refused",
    "SGLang: CUDA alone": "tests/engines/test_engine_vllm_argv.py::test_sglang_runs_on_cuda_alone",
    "SGLang: by name only": "tests/engines/test_engine_sglang_choice.py::test_by_name_it_is_picked_and_only_by_name",
    "auto picks neither SGLang nor mistral.rs": "tests/engines/test_engine_sglang_choice.py::test_auto_never_picks_an_explicit_engine",
    "mistral.rs: an installed program wins": "tests/engines/test_engine_mistralrs.py::test_an_installed_program_on_path_wins",
    "mistral.rs: else a pinned release that is checked": "tests/engines/test_engine_mistralrs.py::test_a_pinned_archive_is_fetched_once_with_its_libraries",
    "mistral.rs: which asset a machine gets": "tests/engines/test_engine_mistralrs.py::test_the_archive_of_a_machine",
    "mistral.rs: machines without one": "tests/engines/test_engine_mistralrs.py::test_machines_without_an_archive",
    "mistral.rs: safetensors; GGUF stays llama.cpp's": "tests/engines/test_engine_mistralrs.py::test_it_serves_safetensors_and_leaves_gguf_to_llama_cpp",
    "mistral.rs: the stable argument list": "tests/engines/test_engine_mistralrs.py::test_the_allowed_extra_arguments",
    "mistral.rs: what the host owns is refused": "tests/engines/test_engine_mistralrs.py::test_refused_extra_arguments",
    "mistral.rs: no KV type is passed on": "tests/engines/test_engine_mistralrs.py::test_kv_quant_is_never_passed_through",
    "mistral.rs: it serves for real": "tests/e2e/test_mistralrs.py::test_chat_and_stream_under_the_public_name",
}
NOT_ON_ONE_MACHINE = {
    "live NVIDIA certification of containers, SGLang and mistral.rs": "GPU",
    "llama.cpp built from pinned source with CUDA": "GPU",
    "a macOS host picks the newest pinned build that it can load": "macOS",
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    tiny_catalog(tmp_path)
    return tmp_path / "sb.yml"


def written(config: Path, engines: object) -> str:
    host = {"catalog_file": "catalog.yml", "cache": {"directory": str(config.parent / "cache")}, "engines": engines}
    config.write_text(
        yaml.safe_dump({"proxy": {"model_host": {**host, "deployments": {"tiny": {"model": "tiny-model"}}}}})
    )
    return str(config)


def test_doctor_says_for_every_engine_where_it_stands(config: Path) -> None:
    """Before anything is provisioned: one of four states, and the ways there are with the reason for each."""
    program = fake_engine.install(config.parent)
    ran = sbproxy("doctor", written(config, {"llama_cpp": {"path": str(program)}}), "--format", "json")
    report = json.loads(ran.out)
    states = {each["engine"]: each["availability"] for each in report["engines"]}
    assert states.keys() == {"llama_cpp", "vllm", "sglang", "mistralrs"}
    assert set(states.values()) <= STATES
    assert states["llama_cpp"] == "available"
    assert all(each["reason"] for each in report["engines"])
    assert not (config.parent / "cache" / "blobs").exists()


REFUSED = [
    ({"vllm": {"launch": "container", "image": "vllm/vllm-openai:latest"}}, "engines.vllm.image", "digest"),
    ({"vllm": {"launch": "container", "image": f"vllm/vllm-openai:v1@sha256:{'0' * 64}"}}, "engines.vllm.image", "tag"),
    ({"vllm": {"launch": "uv", "version": "latest"}}, "engines.vllm.version", "exact version"),
    (
        {"vllm": {"launch": "container", "image": f"a@sha256:{'0' * 64}", "args": ["--privileged"]}},
        "engines.vllm.args",
        "unknown key",
    ),
    (
        {"vllm": {"launch": "container", "image": f"a@sha256:{'0' * 64}", "shm_size_gib": 0}},
        "engines.vllm.shm_size_gib",
        "greater than",
    ),
    ({"llama_cpp": {"launch": "container", "image": f"a@sha256:{'0' * 64}"}}, "engines.llama_cpp.launch", "only for"),
    ({"mistralrs": {"launch": "uv"}}, "engines.mistralrs.launch", "only for"),
]


@pytest.mark.parametrize(("engines", "key", "reason"), REFUSED, ids=[f"{each[1]}-{each[2]}" for each in REFUSED])
def test_what_cannot_be_provisioned_safely_is_refused_by_name(
    config: Path, engines: object, key: str, reason: str
) -> None:
    """Tags, moving versions, free container arguments, and ways that an engine does not have."""
    ran = sbproxy("validate", written(config, engines))
    assert ran.code != 0
    assert f"proxy.model_host.{key}" in ran.err
    assert reason in ran.err


@pytest.mark.parametrize(
    "engines",
    [
        {"llama_cpp": {"launch": "binary", "version": "b9905", "acceleration": "auto"}},
        {
            "vllm": {
                "launch": "container",
                "image": f"vllm/vllm-openai@sha256:{'0' * 64}",
                "acceleration": "cuda",
                "shm_size_gib": 8,
            }
        },
        {"vllm": {"launch": "uv", "version": "0.10.0", "acceleration": "cuda"}},
        {"sglang": {"launch": "uv", "version": "0.4.6.post1", "acceleration": "cuda"}},
        {"mistralrs": {"launch": "binary", "version": "v0.9.0"}},
    ],
    ids=lambda each: "-".join(each),
)
def test_the_pages_engine_blocks_are_accepted(config: Path, engines: object) -> None:
    """Each engine's block as the page writes it."""
    ran = sbproxy("validate", written(config, engines))
    assert (ran.code, ran.err) == (0, "")
