"""`doctor --strict`: the seven checks of contracts section 10, and `devices`."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbproxy_cli.checkup.strict import NAMES, CacheMount, Facts, strict_checks
from sbproxy_cli.checkup.text import blocks
from support.admin_world import ADMIN, admin_world, row
from support.cli import Ran, sbproxy, spawn
from support.daemon import tiny_catalog

GIB = 1 << 30
CACHE = CacheMount("/c", None, 10 * GIB, 0, None, 0)
NOTHING = Facts((), 0, None, None, None, (), None, 0, "/dev/shm", 8 * GIB, None, (), False)
CUDA = replace(
    NOTHING, cuda_engines=("vllm",), cuda_devices_needed=2, driver="570.1", cuda_version="12.8",
    device_capabilities=((9, 0), (9, 0)), wanted_capability=(8, 0), required_shm_bytes=2 * GIB, cache=CACHE,
)  # fmt: skip


def statuses(facts: Facts) -> dict[str, str]:
    return {each.check: each.status for each in strict_checks(facts)}


def test_seven_checks_in_order() -> None:
    assert [each.check for each in strict_checks(CUDA)] == list(NAMES)
    assert list(NAMES) == [
        "driver", "visible_devices", "cuda_compatibility", "shared_memory", "cache_mount", "model_plane_identity",
        "unpinned_weights",
    ]  # fmt: skip


def test_what_does_not_apply_is_skipped_and_never_passed() -> None:
    assert set(statuses(NOTHING).values()) == {"skip"}
    # Also on a machine that has it all: nobody asked for it.
    rich = replace(NOTHING, driver="570.1", cuda_version="12.8", device_capabilities=((9, 0),))
    assert set(statuses(rich).values()) == {"skip"}


def test_all_that_applies_passes() -> None:
    found = statuses(replace(CUDA, unpinned=("hf:a/b",), unpinned_allowed=True))
    assert found.pop("model_plane_identity") == "skip"
    assert set(found.values()) == {"pass"}


FAILURES: list[tuple[dict[str, Any], str, str]] = [
    ({"driver": None, "driver_reason": "NVML missing"}, "driver", "vllm needs the NVIDIA driver"),
    ({"device_capabilities": ((9, 0),)}, "visible_devices", "1 NVIDIA devices seen, 2 needed"),
    ({"cuda_version": None}, "cuda_compatibility", "no driver says which version"),
    ({"device_capabilities": ((7, 5), (7, 5))}, "cuda_compatibility", "8.0 is needed, the best device has 7.5"),
    ({"device_capabilities": (None, None)}, "cuda_compatibility", "the best device has none"),
    ({"shm_free_bytes": GIB}, "shared_memory", "1024 MiB free in /dev/shm, 2048 MiB needed"),
    ({"shm_free_bytes": None}, "shared_memory", "/dev/shm cannot be read"),
    ({"cache": replace(CACHE, problem="it is mounted read-only")}, "cache_mount", "mounted read-only"),
    ({"cache": replace(CACHE, free_bytes=None)}, "cache_mount", "cannot be read"),
    (
        {"cache": replace(CACHE, budget_bytes=11 * GIB)},
        "cache_mount",
        "the budget is 11264 MiB, the mount can hold 10240",
    ),
    ({"cache": replace(CACHE, missing_bytes=11 * GIB)}, "cache_mount", "11264 MiB are still to be fetched"),
    ({"unpinned": ("hf:a/b",)}, "unpinned_weights", "hf:a/b: without digests"),
]


@pytest.mark.parametrize(
    ("change", "check", "words"), FAILURES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_blocker_is_named(change: dict[str, Any], check: str, words: str) -> None:
    checks = strict_checks(replace(CUDA, **change))
    (failed,) = [each for each in checks if each.status == "fail"]
    assert failed.check == check
    assert words in failed.detail


def test_what_is_cached_counts_towards_the_budget() -> None:
    cache = replace(CACHE, budget_bytes=11 * GIB, used_bytes=2 * GIB)
    assert statuses(replace(CUDA, cache=cache))["cache_mount"] == "pass"


CONFIG = """\
proxy:
  model_host:
    cache: {directory: DIR/cache, budget_gib: BUDGET}
    engines: ENGINES
    deployments: {starter: {model: smollm2-135m-instruct}}
"""


def doctor(tmp_path: Path, *argv: str, budget: str = "0.1", engines: str = "{}") -> Ran:
    path = tmp_path / "sb.yml"
    text = CONFIG.replace("DIR", str(tmp_path)).replace("BUDGET", budget).replace("ENGINES", engines)
    path.write_text(text)
    return sbproxy("doctor", str(path), *argv)


def test_strict_text(tmp_path: Path) -> None:
    ran = doctor(tmp_path, "--strict")
    assert ran.code == 0, ran.out
    lines = ran.out.splitlines()
    at = lines.index("startup gate")
    assert [line.split()[:2] for line in lines[at + 1 : at + 8]] == [
        ["driver", "skip"], ["visible_devices", "skip"], ["cuda_compatibility", "skip"], ["shared_memory", "skip"],
        ["cache_mount", "pass"], ["model_plane_identity", "skip"], ["unpinned_weights", "skip"],
    ]  # fmt: skip
    assert lines[-1] == "verdict: pass"
    assert "startup gate" not in doctor(tmp_path).out


def test_strict_blockers_are_exit_3(tmp_path: Path) -> None:
    ran = doctor(tmp_path, "--strict", budget="1000000000")
    assert (ran.code, ran.out.splitlines()[-1]) == (3, "verdict: FAIL (1 startup blocker(s))")
    assert doctor(tmp_path, budget="1000000000").code == 0
    report = json.loads(doctor(tmp_path, "--strict", "--format", "json", budget="1000000000").out)
    assert report["cache_budget_check"]["sufficient"] is False
    assert {"check", "status", "detail"} == set(report["strict_checks"][0])
    assert "strict_checks" not in json.loads(doctor(tmp_path, "--format", "json").out)


def test_a_file_in_the_place_of_the_cache(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    report = json.loads(doctor(tmp_path, "--strict", "--format", "json").out)
    (mount,) = [each for each in report["strict_checks"] if each["check"] == "cache_mount"]
    assert mount["status"] == "fail"
    assert "is no folder" in mount["detail"]


def test_the_fit_names_the_context_that_it_is_for(tmp_path: Path) -> None:
    (entry,) = json.loads(doctor(tmp_path, "--format", "json").out)["serve_entries"]
    assert entry["fit"]["detail"] == "context of 8192 tokens"
    path = tmp_path / "sb.yml"
    path.write_text(path.read_text().replace("instruct}", "instruct, max_context: 512}"))
    (smaller,) = json.loads(sbproxy("doctor", str(path), "--format", "json").out)["serve_entries"]
    assert smaller["fit"]["detail"] == "context of 512 tokens"
    assert smaller["fit"]["estimated_vram_gib"] < entry["fit"]["estimated_vram_gib"]


@pytest.mark.parametrize(
    ("runtime", "answers", "line"),
    [
        (None, False, "  runtime none"),
        ("podman", False, "  runtime podman"),
        ("docker", True, "  runtime docker, its daemon answers"),
        ("docker", False, "  runtime docker, its daemon does not answer"),
    ],
)
def test_a_docker_without_its_daemon_is_told(tmp_path: Path, runtime: str | None, answers: bool, line: str) -> None:
    report = json.loads(doctor(tmp_path, "--format", "json").out)
    report |= {"container_runtime": runtime, "containers": {"daemon_reachable": answers}}
    lines = blocks(report)
    assert lines[lines.index("containers") + 1] == line


def test_cuda_is_demanded_by_acceleration(tmp_path: Path) -> None:
    ran = doctor(tmp_path, "--strict", "--format", "json", engines="{llama_cpp: {acceleration: cuda}}")
    report = json.loads(ran.out)
    assert (report["serve_demand"]["requires_cuda"], report["serve_demand"]["cuda_engines"]) == (True, ["llama_cpp"])
    assert report["serve_demand"]["required_shm_bytes"] == 0
    states = {each["check"]: each["status"] for each in report["strict_checks"]}
    gpu = bool(report["gpus"])
    assert states["driver"] == ("pass" if gpu else "fail")
    assert ran.code == (0 if gpu else 3)


def test_foreign_caches_are_summed_up(tmp_path: Path) -> None:
    from sbproxy.catalog.document import builtin_catalog

    (file,) = (
        next(each for each in builtin_catalog().models.values() if each.id == "smollm2-135m-instruct").variants[0].files
    )
    folder = tmp_path / ".lmstudio" / "models"
    folder.mkdir(parents=True)
    with (folder / "some.gguf").open("wb") as sparse:
        sparse.truncate(file.size_bytes)
    path = tmp_path / "sb.yml"
    path.write_text(CONFIG.replace("DIR", str(tmp_path)).replace("BUDGET", "1").replace("ENGINES", "{}"))
    env: dict[str, str | None] = {"HOME": str(tmp_path), "OLLAMA_MODELS": None, "XDG_CACHE_HOME": None}
    report = json.loads(sbproxy("doctor", str(path), "--format", "json", env=env).out)
    assert report["foreign_model_caches"] == [
        {"source": "lm-studio", "path": str(folder), "paths": [str(folder)], "importable": ["smollm2-135m-instruct"]}
    ]
    text = sbproxy("doctor", str(path), env=env).out
    assert f"foreign cache lm-studio: {folder}, holds smollm2-135m-instruct" in text


def test_stored_deployments_are_looked_at_too(tmp_path: Path) -> None:
    """Under ``admin_managed`` the file names none; nothing is stored yet, so nothing is asked for."""
    tiny_catalog(tmp_path)
    path = tmp_path / "sb.yml"
    path.write_text(
        "proxy:\n  model_host: {authority: admin_managed, store_path: d.sqlite3, catalog_file: catalog.yml}\n"
    )
    report = json.loads(sbproxy("doctor", str(path), "--format", "json").out)
    assert report["serve_entries"] == []


def test_devices_without_a_daemon() -> None:
    ran = sbproxy("devices")
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0].split() == ["INDEX", "KIND", "NAME", "TOTAL", "FREE", "COMPUTE", "RESERVED", "BY"]
    assert lines[1].split()[:2] == ["-", "cpu"]
    assert lines[-1] == "reservations: unknown, SB_ADMIN_PASSWORD is not set"
    body = json.loads(sbproxy("devices", "--format", "json").out)
    assert (body["schema_version"], body["command"]) == (1, "devices")
    cpu = body["devices"][0]
    assert (cpu["index"], cpu["kind"], cpu["reserved"]) == (-1, "cpu", None)
    assert 0 < cpu["free_bytes"] <= cpu["total_bytes"]


def test_devices_of_another_machine_are_not_mixed_with_ours() -> None:
    url = "http://node.example.com:9090"
    body = json.loads(sbproxy("devices", "--format", "json", "--admin-url", url).out)
    assert body["daemon"] == {"url": url, "answered": False, "reason": f"{url} is not on this machine"}
    assert sbproxy("devices", "--admin-url", "nonsense").code == 2


@pytest.mark.e2e
async def test_devices_tell_what_a_daemon_has_reserved() -> None:
    async with admin_world() as world:
        world.host.rows = [
            row(),
            row("second", replica=1, state="draining", selected_devices=()),
            row("gone", state="stopped"),
            row("other", selected_devices=(0,)),
        ]
        env = {"SB_ADMIN_URL": str(world.server.make_url("/")), "SB_ADMIN_PASSWORD": ADMIN[1]}
        text, as_json, wrong = await asyncio.gather(
            spawn("devices", env=env),
            spawn("devices", "--format", "json", env=env),
            spawn("devices", env={**env, "SB_ADMIN_PASSWORD": "no"}),
        )
    assert text.out.splitlines()[1].rstrip().endswith("local-qwen 849.9 MiB, second/1 849.9 MiB")
    reserved = json.loads(as_json.out)["devices"][0]["reserved"]
    assert [(each["deployment"], each["state"]) for each in reserved] == [
        ("local-qwen", "ready"),
        ("second", "draining"),
    ]
    assert reserved[0]["estimated_bytes"] == 891_183_850
    assert wrong.code == 0
    assert "reservations: unknown, http" in wrong.out
    assert "does not accept the password" in wrong.out
