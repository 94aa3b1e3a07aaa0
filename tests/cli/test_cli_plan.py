"""`plan`: the difference of two documents, what it does to engines and memory, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import fake_engine
from support.cli import Ran, sbproxy
from support.daemon import FAKE_ENGINE_CONFIG, tiny_catalog
from support.snapshot import check_snapshot

PASSWORD = {"SB_ADMIN_PASSWORD": "correct-horse-battery"}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    tiny_catalog(tmp_path)
    fake_engine.install(tmp_path)
    path = tmp_path / "base.yml"
    text = FAKE_ENGINE_CONFIG.replace("{port}", "8080").replace("{admin_port}", "9090").replace("{dir}", str(tmp_path))
    path.write_text(text)
    return path


@pytest.fixture
def edited(base: Path) -> Callable[..., Path]:
    def edit(*changes: tuple[str, str]) -> Path:
        text = base.read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path = base.with_name("sb.yml")
        path.write_text(text)
        return path

    return edit


def plan(*argv: str | Path) -> Ran:
    return sbproxy("plan", *map(str, argv), env=PASSWORD)


def body(*argv: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(plan(*argv, "--format", "json").out)
    return found


def test_no_change(base: Path, edited: Callable[..., Path]) -> None:
    # A comment, an order and a spelled-out default are no change.
    same = edited(
        ("proxy:\n", "# other words\nproxy:\n"), ("deployments:", "handoff_timeout_ms: 60000\n    deployments:")
    )
    ran = plan("-f", same, "--against", base)
    assert ran.code == 0
    assert ran.out.splitlines()[1] == "no change"
    found = body("-f", same, "--against", base)
    assert (found["command"], found["changed"], found["valid"]) == ("plan", False, True)
    assert found["baseline_revision"] == found["proposed_revision"]
    assert found["max_blast_radius"]["scope"] == "none"
    assert [(each["deployment"], each["action"]) for each in found["engines"]] == [("tiny", "stay")]


def test_a_route_alone_restarts_no_engine(base: Path, edited: Callable[..., Path]) -> None:
    path = edited(("models: [tiny,", "priority: 3\n          models: [tiny,"))
    found = body("-f", path, "--against", base)
    assert found["origins"]["changed"] == [{"name": "localhost", "fields": ["action.providers[0].priority"]}]
    assert found["deployments"] == {"added": [], "changed": [], "removed": [], "unchanged": ["tiny"]}
    assert [each["action"] for each in found["engines"]] == ["stay"]
    assert found["max_blast_radius"] == {
        "scope": "origin", "origins": ["localhost"], "origin_count": 1, "engines": [], "engine_count": 1,
    }  # fmt: skip


def test_a_changed_deployment_restarts_and_touches_its_origins(base: Path, edited: Callable[..., Path]) -> None:
    path = edited(
        ("max_queue_depth: 64", "max_queue_depth: 65, warm: true"),
        ("origins:", "      more: {model: tiny-model, replicas: 1}\norigins:"),
    )
    ran = plan("-f", path, "--against", base)
    assert ran.code == 2
    check_snapshot("cli/plan.txt", ran.out.replace(str(base.parent), "DIR"))
    found = body("-f", path, "--against", base)
    tiny = next(each for each in found["engines"] if each["deployment"] == "tiny")
    assert (tiny["action"], tiny["rollout"], tiny["warm"]) == ("restart", "rolling", True)
    memory = found["memory"]
    assert memory["after_bytes"] == 2 * memory["before_bytes"]
    # While the rolling replacement hands over, both generations are there.
    assert memory["peak_bytes"] == memory["after_bytes"] + tiny["bytes_before"]
    assert (found["max_blast_radius"]["scope"], found["max_blast_radius"]["engines"]) == ("engine", ["tiny"])
    path = edited(("max_queue_depth: 64", "max_queue_depth: 65, rollout: recreate"))
    assert body("-f", path, "--against", base)["memory"]["peak_bytes"] == memory["before_bytes"]


def test_removed_and_process_wide(base: Path, edited: Callable[..., Path]) -> None:
    path = edited(("http_bind_port: 8080", "http_bind_port: 8081"), ("localhost:", "other:"))
    ran = plan("-f", path, "--against", base)
    assert ran.code == 2
    assert "  + other\n  - localhost\n" in ran.out
    assert "max blast radius: process (1 of 1 origins, 0 of 1 deployments disturbed)" in ran.out
    assert "warning: proxy.http_bind_port: differs from the baseline and only a restart applies it" in ran.out


def test_a_foundation_change_is_told(base: Path, edited: Callable[..., Path]) -> None:
    path = edited(('/cache"', '/cache2"'))
    (finding,) = body("-f", path, "--against", base)["findings"]
    assert (finding["severity"], finding["path"]) == ("warning", "proxy.model_host.cache.directory")
    assert "while an engine is loaded" in finding["reason"]


def test_against_nothing_everything_is_new(base: Path) -> None:
    found = body("-f", base)
    assert (found["against"], found["baseline_revision"]) == (None, None)
    assert (found["origins"]["added"], found["deployments"]["added"]) == (["localhost"], ["tiny"])
    assert [each["action"] for each in found["engines"]] == ["start"]
    assert found["restart"] == []


def test_a_baseline_may_lie_anywhere(base: Path, edited: Callable[..., Path], tmp_path: Path) -> None:
    """Its relative paths (here the catalog) begin where the proposed document is."""
    elsewhere = tmp_path / "elsewhere" / "old.yml"
    elsewhere.parent.mkdir()
    elsewhere.write_text(base.read_text())
    assert plan("-f", edited(), "--against", elsewhere).code == 0
    elsewhere.write_text(base.read_text().replace("max_queue_depth: 64", "max_queue_depth: none"))
    ran = plan("-f", edited(), "--against", elsewhere)
    assert ran.code == 3
    assert f"{elsewhere}:" in ran.err


def test_a_changed_secret_is_named_and_not_shown(base: Path, edited: Callable[..., Path]) -> None:
    base.write_text(base.read_text().replace('"${SB_ADMIN_PASSWORD}"', "first-literal-secret"))
    path = edited(("first-literal-secret", "second-literal-secret"))
    ran = plan("-f", path, "--against", base, "--format", "json")
    assert ran.code == 2
    assert json.loads(ran.out)["restart"] == ["proxy.admin.password"]
    assert "literal-secret" not in ran.out + ran.err


def test_what_does_not_fit_this_machine_is_a_warning(base: Path, edited: Callable[..., Path]) -> None:
    path = edited(("model: tiny-model, max", "model: tiny-model, tensor_parallel: 64, max"))
    found = body("-f", path, "--against", base)
    assert [each["path"] for each in found["findings"]] == ["proxy.model_host.deployments.tiny"]
    assert found["memory"]["incomplete"] is True


def test_exit_codes(base: Path, edited: Callable[..., Path], tmp_path: Path) -> None:
    assert plan("-f", tmp_path / "none.yml").code == 1
    assert plan("-f", base, "--against", tmp_path / "none.yml").code == 1
    assert plan("-f", base, "--out", tmp_path / "no" / "p.json").code == 1
    bad = edited(("max_queue_depth: 64", "max_queue_depht: 64"), ("model: tiny-model", "model: tiny-modle"))
    ran = plan("-f", bad)
    assert (ran.code, ran.out) == (3, "")
    assert "max_queue_depht" in ran.err
    ran = plan("-f", bad, "--format", "json")
    answer = json.loads(ran.out)
    assert (ran.code, answer["valid"]) == (3, False)
    assert {each["path"].rsplit(".", 1)[1] for each in answer["findings"]} == {"max_queue_depht", "model"}
    assert sbproxy("plan").code == 1  # no configuration is named
    assert plan("-f", base, "--no-fetch").code == 2
    assert sbproxy("validate", str(base), "--no-fetch", env=PASSWORD).code == 0


def test_the_plan_file_is_the_envelope(base: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    ran = plan("-f", base, "--out", out, "--format", "json")
    assert json.loads(out.read_text()) == json.loads(ran.out)
