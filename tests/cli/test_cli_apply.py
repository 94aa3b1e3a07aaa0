"""`apply` and `/admin/config` against a real daemon with the stand-in engine: what is applied, refused, and kept."""

from __future__ import annotations

import fcntl
import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sbproxy_cli.planning.plan_file import read_plan
from support import fake_engine
from support.cli import Ran, sbproxy
from support.daemon import FAKE_ENGINE_CONFIG, PASSWORD, Daemon, daemon, free_port, tiny_catalog

YAML = {"Content-Type": "application/yaml"}


def apply(*argv: str | Path, url: str = "http://127.0.0.1:1", **env: str) -> Ran:
    return sbproxy("apply", *map(str, argv), env={"SB_ADMIN_PASSWORD": PASSWORD, "SB_ADMIN_URL": url, **env})


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Daemon]:
    tiny_catalog(tmp_path)
    fake_engine.install(tmp_path)
    with daemon(tmp_path, FAKE_ENGINE_CONFIG) as handle:
        handle.config.chmod(0o640)
        handle.start()
        assert handle.chat().status == 200
        yield handle


@pytest.fixture
def document(tmp_path: Path) -> Path:
    tiny_catalog(tmp_path)
    fake_engine.install(tmp_path)
    path = tmp_path / "sb.yml"
    text = FAKE_ENGINE_CONFIG.replace("{port}", "8080").replace("{admin_port}", "9090").replace("{dir}", str(tmp_path))
    path.write_text(text)
    return path


def url(served: Daemon) -> str:
    return f"http://127.0.0.1:{served.admin_port}"


def proposed(served: Daemon, old: str, new: str) -> Path:
    """A copy beside the daemon's file, so that relative paths mean the same."""
    text = served.config.read_text()
    assert old in text
    path = served.config.with_name("proposed.yml")
    path.write_text(text.replace(old, new))
    return path


@pytest.mark.e2e
def test_apply_replaces_the_file_and_what_runs(served: Daemon) -> None:
    before = served.status_row()
    path = proposed(served, "models: [tiny,", "# more\n          models: [tiny, more,")
    ran = apply("-f", path, url=url(served))
    revision = served.ask("GET", "/admin/drift", admin=True).json()["loaded_revision"]
    assert (ran.code, ran.out) == (0, f"apply: applied to {url(served)}, config revision {revision}\n"), ran.err
    assert served.config.read_bytes() == path.read_bytes()
    assert stat.S_IMODE(served.config.stat().st_mode) == 0o640
    assert served.chat("more").status == 200
    assert served.status_row()["pid"] == before["pid"], "the engine is not touched"
    assert served.ask("GET", "/admin/drift", admin=True).json()["drift"] is False
    ran = apply("-f", path, "--format", "json", url=url(served))
    answer = json.loads(ran.out)
    assert (answer["command"], answer["applied"], answer["fully_applied"], answer["degraded"]) == (
        "apply", True, True, [],
    )  # fmt: skip
    assert answer["config_revision"] == revision
    # The watcher has seen a new file and found what it holds applied already.
    assert served.log.count("config_reloaded") == 2
    assert [path.name for path in served.directory.glob(".sb.yml*")] == []


BROKEN = [
    ("max_concurrency: 4", "max_concurrency: 0", 3, "max_concurrency"),
    ("http_bind_port: ", "bind_address: 127.0.0.2\n  http_bind_port: ", 3, "bind_address"),
    ("rate_limit_per_minute: 100000", "rate_limit_per_minute: 99999", 4, "proxy.admin.rate_limit_per_minute"),
    ("max_queue_depth: 64", "max_queue_depth: 65, tensor_parallel: 64, warm: true", 4, "tiny"),
]


@pytest.mark.e2e
@pytest.mark.parametrize(("old", "new", "code", "named"), BROKEN, ids=["range", "duplicate", "restart", "capacity"])
def test_a_refused_document_changes_neither_file_nor_runtime(
    served: Daemon, old: str, new: str, code: int, named: str
) -> None:
    before, row = served.config.read_bytes(), served.status_row()
    ran = apply("-f", proposed(served, old, new), url=url(served))
    assert (ran.code, ran.out) == (code, ""), ran.err
    assert named in ran.err
    assert served.config.read_bytes() == before
    assert [each.name for each in served.directory.glob(".sb.yml*")] == []
    after = served.status_row()
    assert (after["pid"], after["generation"], after["state"]) == (row["pid"], row["generation"], "ready")
    assert served.chat().status == 200
    assert served.ask("GET", "/admin/drift", admin=True).json()["drift"] is False


def put(served: Daemon, text: str, query: str = "") -> tuple[int, dict[str, Any]]:
    answer = served.ask("PUT", f"/admin/config{query}", text.encode(), admin=True, headers=YAML)
    return answer.status, answer.json()


@pytest.mark.e2e
def test_the_editor_reads_redacts_and_writes(served: Daemon) -> None:
    literal = served.config.read_text()
    far = '        - {name: far, base_url: "https://api.example.com/v1", api_key: sk-live-0123456789abcdef}  # old\n'
    status, body = put(served, literal + far)
    assert status == 200, body
    read = served.ask("GET", "/admin/config", admin=True).json()
    assert read["revision"] == body["config_revision"]
    assert read["yaml"] == (literal + far).replace("sk-live-0123456789abcdef", '"[REDACTED]"')
    assert "${SB_ADMIN_PASSWORD}" in read["yaml"]
    # What was read is no base for an edit as long as it holds a mask.
    before = served.config.read_bytes()
    status, refused = put(served, read["yaml"].replace("name: far", "name: farther"))
    assert status == 400
    assert "GET /admin/config" in refused["error"]
    assert (refused["problems"][0]["path"], refused["problems"][0]["line"]) == (
        "origins.localhost.action.providers[1].api_key", len((literal + far).splitlines()),
    )  # fmt: skip
    status, refused = put(served, literal.replace("models: [tiny,", 'models: [tiny, "x [REDACTED]",'))
    assert status == 400
    assert "stands for a secret" in refused["error"]
    assert served.config.read_bytes() == before
    assert str(served.directory) not in refused["error"]


@pytest.mark.e2e
def test_a_write_for_an_older_revision_is_a_conflict(served: Daemon) -> None:
    text = served.config.read_text()
    first = served.ask("GET", "/admin/config", admin=True).json()["revision"]
    status, body = put(served, text.replace("models: [tiny,", "models: [tiny, more,"), f"?if_match={first}")
    assert status == 200
    status, conflict = put(served, text, f"?if_match={first}")
    assert (status, "code" in conflict) == (409, False)
    assert first in conflict["error"]
    assert body["config_revision"] in conflict["error"]
    assert "more" in served.config.read_text()
    assert put(served, text, f"?if_match={body['config_revision']}")[0] == 200


@pytest.mark.e2e
def test_a_link_stays_a_link_and_a_folder_that_cannot_be_written_refuses(served: Daemon) -> None:
    real = served.directory / "real" / "sb.yml"
    real.parent.mkdir()
    text = served.config.read_text()
    served.config.replace(real)
    served.config.symlink_to(real)
    assert put(served, text.replace("models: [tiny,", "models: [tiny, more,"))[0] == 200
    assert served.config.is_symlink()
    assert "more" in real.read_text()
    (real.parent / ".sb.yml.sbproxy-new").mkdir()
    status, body = put(served, text)
    assert (status, body["code"]) == (500, "config_not_written")
    assert "nothing has changed" in body["error"]
    assert "more" in real.read_text()
    assert served.chat("more").status == 200


def test_validate_only_sends_nothing(document: Path) -> None:
    ran = apply("-f", document, "--validate-only")
    assert (ran.code, ran.out) == (0, f"apply: {document} is valid; nothing was sent\n")
    answer = json.loads(apply("-f", document, "--validate-only", "--format", "json").out)
    assert (answer["command"], answer["applied"]) == ("apply", False)
    assert not document.with_name("sb.yml.applylock").exists()
    document.write_text(document.read_text().replace("tiny-model", "tiny-modle"))
    assert apply("-f", document, "--validate-only").code == 3


def test_exit_codes_without_a_daemon(document: Path, tmp_path: Path) -> None:
    ran = apply("-f", document, url=f"http://127.0.0.1:{free_port()}")
    assert ran.code == 7
    assert "no SBproxy admin API answers" in ran.err
    assert apply("-f", tmp_path / "none.yml").code == 1
    assert apply("-f", document, "-p", tmp_path / "p").code == 2
    assert apply("-p", tmp_path / "p").code == 2
    assert apply("-p", tmp_path / "p", SB_APPLY_CONFIG=str(document)).code == 1
    assert apply("-f", document, "--password", "hunter2").code == 2


def test_one_apply_of_a_file_at_a_time(document: Path) -> None:
    lock = document.with_name("sb.yml.applylock")
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        ran = apply("-f", document)
        assert ran.code == 6
        assert f"another apply holds {lock}" in ran.err
        assert apply("-f", document, "--validate-only").code == 0
    assert apply("-f", document, url=f"http://127.0.0.1:{free_port()}").code == 7


def planned(document: Path, baseline: Path | None, out: Path) -> None:
    against = ["--against", str(baseline)] if baseline else []
    ran = sbproxy("plan", "-f", str(document), *against, "--out", str(out), env={"SB_ADMIN_PASSWORD": PASSWORD})
    assert ran.code in (0, 2), ran.err


def test_a_stale_plan_is_not_applied(document: Path, tmp_path: Path) -> None:
    baseline, out = tmp_path / "base.yml", tmp_path / "plan.json"
    baseline.write_text(document.read_text().replace("max_queue_depth: 64", "max_queue_depth: 1"))
    planned(document, baseline, out)
    env = {"SB_APPLY_CONFIG": str(document), "SB_APPLY_BASELINE": str(baseline)}
    assert apply("-p", out, "--validate-only", **env).code == 0
    ran = apply("-p", out, "--validate-only", SB_APPLY_CONFIG=str(document))
    assert (ran.code, "the baseline is empty" in ran.err) == (5, True)
    text = document.read_text()
    document.write_text(text + "# a word\n")
    ran = apply("-p", out, "--validate-only", **env)
    assert (ran.code, "the configuration's text is" in ran.err) == (5, True)
    document.write_text(text)
    baseline.write_text(text)
    assert apply("-p", out, "--validate-only", **env).code == 5
    planned(document, None, out)
    assert apply("-p", out, "--validate-only", SB_APPLY_CONFIG=str(document)).code == 0


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema_version": 2, "command": "plan"}', "\x00"])
def test_a_file_that_is_no_plan(text: str, document: Path, tmp_path: Path) -> None:
    from sbproxy.errors.cli import PlanUnusable

    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(PlanUnusable, match="is no plan"):
        read_plan(path)


@pytest.mark.e2e
def test_a_fresh_plan_is_applied(served: Daemon, tmp_path: Path) -> None:
    path = proposed(served, "models: [tiny,", "models: [tiny, more,")
    baseline, out = tmp_path / "base.yml", tmp_path / "plan.json"
    baseline.write_bytes(served.config.read_bytes())
    planned(path, baseline, out)
    ran = apply("-p", out, url=url(served), SB_APPLY_CONFIG=str(path), SB_APPLY_BASELINE=str(baseline))
    assert ran.code == 0, ran.err
    assert served.chat("more").status == 200
    ran = apply("-f", path, url=url(served), SB_ADMIN_USERNAME="nobody")
    assert ran.code == 4
    assert Path(f"{path}.applylock").exists()


def test_a_misspelt_name_leaves_no_lock_behind(tmp_path: Path) -> None:
    ran = apply("-f", tmp_path / "missing.yml")
    assert (ran.code, ran.err) == (1, f"sbproxy apply: {tmp_path}/missing.yml: there is no such file\n")
    assert list(tmp_path.iterdir()) == []
