"""``authority: admin_managed`` with real daemons: the stored map is what runs, and no failure loses or invents one."""

from __future__ import annotations

import json
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sbproxy.modelhost.desired_store import SqliteDesiredStore
from support import fake_engine
from support.daemon import FAKE_ENGINE_CONFIG, Answer, Daemon, daemon, tiny_catalog
from support.hub import Hub

pytestmark = pytest.mark.e2e

PATH = "/admin/model-host/deployments"
_FILE_MANAGED = FAKE_ENGINE_CONFIG[FAKE_ENGINE_CONFIG.index("    deployments:") : FAKE_ENGINE_CONFIG.index("origins:")]
CONFIG = FAKE_ENGINE_CONFIG.replace(
    _FILE_MANAGED, '    authority: admin_managed\n    store_path: "{dir}/state/desired.sqlite3"\n'
)
assert CONFIG != FAKE_ENGINE_CONFIG
TINY = {"model": "tiny-model", "cold_start": "wait", "max_concurrency": 4}


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Daemon]:
    """Not started yet."""
    tiny_catalog(tmp_path)
    fake_engine.install(tmp_path)
    with daemon(tmp_path, CONFIG) as handle:
        yield handle


@pytest.fixture
def served(made: Daemon) -> Daemon:
    made.start()
    return made


def store_of(handle: Daemon) -> SqliteDesiredStore:
    return SqliteDesiredStore(handle.directory / "state" / "desired.sqlite3")


def put(handle: Daemon, expected: int | None, **deployments: dict[str, Any]) -> Answer:
    return handle.ask("PUT", PATH, {"expected_revision": expected, "deployments": deployments}, admin=True)


def shown(handle: Daemon) -> dict[str, Any]:
    answer = handle.ask("GET", PATH, admin=True)
    assert answer.status == 200, answer.body
    document: dict[str, Any] = answer.json()
    return document


def rows(handle: Daemon) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = handle.ask("GET", "/admin/model-host/status", admin=True).json()["deployments"]
    return found


def until(condition: Callable[[], Any], timeout_s: float = 15) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def in_background(work: Callable[[], Any]) -> Iterator[list[Any]]:
    """Runs ``work`` beside the body; what it returned or raised is in the list afterwards."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(work())
        except OSError as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield results
    finally:
        thread.join(40)
        assert not thread.is_alive()


def test_from_an_empty_store_to_a_served_model_and_over_a_restart(served: Daemon) -> None:
    assert shown(served) == {
        "schema_version": 1,
        "authority": "admin_managed",
        "read_only": False,
        "revision": None,
        "content_digest": None,
        "deployments": {},
    }
    early = served.chat()
    assert early.status == 503
    assert early.json()["error"]["type"] == "managed_model_error"
    listed = served.ask("GET", "/v1/models")
    assert listed.status == 200, listed.body
    assert {each["availability"]["state"] for each in listed.json()["data"]} == {"unavailable"}

    answer = put(served, None, tiny=TINY)
    assert answer.status == 200, answer.body
    first = answer.json()
    assert first["revision"] == 1
    assert first["plan"] == {"added": ["tiny"], "changed": [], "removed": [], "preserved": []}
    assert served.chat().status == 200
    engine = served.status_row()

    again = put(served, 1, tiny=shown(served)["deployments"]["tiny"]).json()
    assert (again["revision"], again["plan"]) == (
        2,
        {"added": [], "changed": [], "removed": [], "preserved": ["tiny"]},
    )
    assert again["content_digest"] != first["content_digest"], "the revision is part of what is digested"
    assert served.status_row()["pid"] == engine["pid"]

    document = shown(served)
    assert (document["revision"], document["content_digest"]) == (2, again["content_digest"])
    assert served.stop() == 0
    served.start()
    assert shown(served) == document
    assert served.chat().status == 200
    assert 'action="model_deployments_replace"' in served.log


REFUSED: list[tuple[int | None, dict[str, Any], int, str]] = [
    (1, {"tiny": {"model": "tiny-model"}}, 400, "invalid_body"),
    (1, {"tiny": TINY, "b": TINY | {"replicas": 2}}, 400, "invalid_desired"),
    (1, {"tiny": TINY, "b": TINY | {"spread_by": ["zone"]}}, 400, "invalid_desired"),
    (1, {"tiny": TINY, "b": TINY | {"tensor_parallel": 64, "variant": "q4"}}, 400, "invalid_desired"),
    (1, {"tiny": TINY, "b": TINY | {"model": "tiny-modle"}}, 400, "unknown_catalog_model"),
    (1, {"tiny": TINY | {"variant": "q9"}}, 400, "unknown_catalog_variant"),
    (1, {"renamed": TINY}, 400, "invalid_desired"),
    (None, {"tiny": TINY}, 409, "revision_conflict"),
    (7, {"tiny": TINY}, 409, "revision_conflict"),
    (1, {"tiny": TINY, "b": TINY | {"engine": "vllm"}}, 422, "engine_incompatible"),
    (1, {"tiny": TINY, "b": TINY | {"pull": "manual", "warm": True}}, 422, "prepare_failed"),
]


def test_what_is_refused_changes_nothing(served: Daemon) -> None:
    assert put(served, None, tiny=TINY).status == 200
    before = shown(served)
    for expected, deployments, status, code in REFUSED:
        answer = put(served, expected, **deployments)
        body = answer.json()
        assert (answer.status, body.get("code")) == (status, code), (deployments, body)
        assert shown(served) == before
        assert [row["deployment"] for row in rows(served)] == ["tiny"]
        if code == "revision_conflict":
            assert (body["expected_revision"], body["actual_revision"]) == (expected, 1)
        if "renamed" in deployments:
            assert '"local"' in body["error"]
            assert '"localhost"' in body["error"]


def test_a_route_must_go_before_its_deployment(served: Daemon) -> None:
    assert put(served, None, tiny=TINY, other=TINY).status == 200
    assert put(served, 1, other=TINY).status == 400
    served.config.write_text(served.config.read_text().replace("deployment: tiny", "deployment: other"))
    assert served.ask("POST", "/admin/reload", admin=True).status == 200
    answer = put(served, 1, other=TINY)
    assert answer.status == 200, answer.body
    assert answer.json()["plan"]["removed"] == ["tiny"]
    assert served.chat().status == 200


# --- killed at each step ----------------------------------------------------------------------------------------------


def test_killed_while_it_prepares(made: Daemon) -> None:
    data = (made.directory / "tiny.gguf").read_bytes()
    catalog = made.directory / "catalog.yml"
    with Hub({"Org/Repo/tiny.gguf": data}) as hub:
        catalog.write_text(catalog.read_text().replace(f"file:{made.directory}", hub.file_url("Org/Repo/tiny.gguf")))
        made.start()
        assert put(made, None, other=TINY).status == 200
        hub.fault("stall", at=100)
        with in_background(lambda: put(made, 1, other=TINY, tiny=TINY | {"pull": "on_boot"})):
            until(lambda: hub.requests)
            until(lambda: len(rows(made)) == 2)
            made.kill()
        stored = store_of(made).read()
        assert stored is not None
        assert (stored.revision, set(stored.deployments)) == (1, {"other"})
        made.start()
        assert [row["deployment"] for row in rows(made)] == ["other"]
        assert put(made, 1, other=TINY, tiny=TINY).status == 200


def test_killed_before_the_durable_write(served: Daemon) -> None:
    assert put(served, None, other=TINY).status == 200
    holder = sqlite3.connect(store_of(served).path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with in_background(lambda: put(served, 1, other=TINY, tiny=TINY)):
        until(lambda: len(rows(served)) == 2)
        served.kill()
    holder.execute("ROLLBACK")
    holder.close()
    served.start()
    assert shown(served)["revision"] == 1
    assert [row["deployment"] for row in rows(served)] == ["other"]


def test_killed_between_the_durable_write_and_the_activation(served: Daemon) -> None:
    fake_engine.configure(served.directory, ready_after_probes=1_000_000)
    with in_background(lambda: put(served, None, tiny=TINY | {"warm": True})):
        until(lambda: store_of(served).read() is not None)
        until(lambda: fake_engine.instances(served.directory))
        served.kill()
    fake_engine.configure(served.directory)
    served.start()
    assert shown(served)["revision"] == 1
    assert served.wait_state("ready")["deployment"] == "tiny"
    assert served.chat().status == 200
    assert put(served, 1, tiny=TINY).status == 200


def test_a_stop_during_the_activation_tells_that_the_map_is_durable(served: Daemon) -> None:
    fake_engine.configure(served.directory, ready_after_probes=1_000_000)
    with in_background(lambda: put(served, None, tiny=TINY | {"warm": True})) as answers:
        until(lambda: fake_engine.instances(served.directory))
        assert served.stop() == 0
    (answer,) = answers
    assert isinstance(answer, Answer), answer
    assert (answer.status, answer.json()["code"]) == (502, "runtime_commit_failed")
    assert answer.json()["durable_state_advanced"] is True
    assert fake_engine.instances(served.directory) == []


# --- two processes, one store -----------------------------------------------------------------------------------------


@pytest.fixture
def second(made: Daemon, tmp_path: Path) -> Iterator[Daemon]:
    """Another daemon on the store of the first, with everything else its own."""
    folder = tmp_path / "second"
    folder.mkdir()
    tiny_catalog(folder)
    fake_engine.install(folder)
    config = CONFIG.replace("{dir}/state", str(made.directory / "state"))
    with daemon(folder, config) as handle:
        yield handle


def test_two_daemons_on_one_store_lose_no_update(made: Daemon, second: Daemon) -> None:
    for handle in (made, second):
        handle.start()

    def worked(handle: Daemon, own: str) -> int:
        """Adds a deployment a step, as an operator would: read, change, write, and again when somebody was faster."""
        conflicts = 0
        for step in range(5):
            while True:
                document = shown(handle)
                wanted = document["deployments"] | {f"{own}{step}": TINY}
                answer = put(handle, document["revision"], **wanted)
                if answer.status == 200:
                    break
                assert answer.status == 409, answer.body
                assert answer.json()["code"] == "revision_conflict"
                conflicts += 1
        return conflicts

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(worked, (made, second), ("a", "b")))
    document = shown(made)
    assert document == shown(second)
    assert document["revision"] == 10
    assert sorted(document["deployments"]) == sorted(f"{own}{step}" for own in "ab" for step in range(5))
    # The one that wrote last runs it already; the other takes it on with a reload.
    for handle in (made, second):
        assert handle.ask("POST", "/admin/reload", admin=True).status == 200
        assert sorted({row["deployment"] for row in rows(handle)}) == sorted(document["deployments"])


def test_of_two_replacements_of_one_revision_one_wins(made: Daemon, second: Daemon) -> None:
    handles = (made, second)
    for handle in handles:
        handle.start()
    for revision in (None, 1, 2):
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(put, handle, revision, tiny=TINY) for handle in (*handles, *handles)]
            answers = [each.result() for each in asked]
        assert sorted(answer.status for answer in answers) == [200, 409, 409, 409]
        assert shown(made)["revision"] == (revision or 0) + 1


def test_a_store_held_by_another_process_is_a_502_in_time(served: Daemon) -> None:
    assert put(served, None, tiny=TINY).status == 200
    before = rows(served)
    holder = sqlite3.connect(store_of(served).path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    answer = put(served, 1, tiny=TINY | {"max_concurrency": 2})
    assert (answer.status, answer.json()["code"]) == (502, "store_failed")
    assert time.monotonic() - began < 8
    assert str(served.directory) not in answer.json()["error"]
    assert rows(served) == before
    holder.execute("ROLLBACK")
    holder.close()
    assert put(served, 1, tiny=TINY | {"max_concurrency": 2}).status == 200


def test_a_full_disk_changes_nothing(served: Daemon) -> None:
    assert put(served, None, tiny=TINY).status == 200
    assert served.process is not None
    many = {f"d{number:03}": TINY for number in range(400)}
    limits = resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE)
    # A bound on the size of files stands in for a full disk: the store's write fails in the same place.
    resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE, (65_536, limits[1]))
    answer = put(served, 1, tiny=TINY, **many)
    assert (answer.status, answer.json()["code"]) == (502, "store_failed"), answer.body
    resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE, limits)
    assert shown(served)["revision"] == 1
    assert served.chat().status == 200
    assert [row["deployment"] for row in rows(served)] == ["tiny"]
    answer = put(served, 1, tiny=TINY, **many)
    assert answer.status == 200, answer.body
    assert len(answer.json()["plan"]["added"]) == 400


# --- stored, but not running ------------------------------------------------------------------------------------------


def test_an_engine_that_fails_after_the_write_is_told_and_mended(served: Daemon) -> None:
    assert put(served, None, tiny=TINY).status == 200
    fake_engine.configure(served.directory, mode="crash_on_start")
    answer = put(served, 1, tiny=TINY, bad=TINY | {"warm": True})
    body = answer.json()
    assert (answer.status, body["code"]) == (502, "runtime_commit_failed")
    assert (body["durable_state_advanced"], body["revision"]) == (True, 2)
    document = shown(served)
    assert (document["revision"], document["content_digest"]) == (2, body["content_digest"])
    assert [row["deployment"] for row in rows(served)] == ["tiny"], "what ran goes on"
    assert 'outcome="runtime_commit_failed"' in served.log
    # The map is durable and its engine still crashes: the next start comes up all the same, so that it can be mended.
    served.stop()
    served.start()
    assert served.status_row("bad")["state"] == "failed"
    fake_engine.configure(served.directory)
    assert put(served, 1, tiny=TINY).status == 409
    assert put(served, 2, tiny=TINY).status == 200
    assert served.chat().status == 200


# --- catalogs and configuration ---------------------------------------------------------------------------------------


def change_catalog(
    handle: Daemon, old: str = "catalog_revision: test-1", new: str = "catalog_revision: test-2"
) -> None:
    path = handle.directory / "catalog.yml"
    path.write_text(path.read_text().replace(old, new))


def test_a_catalog_does_not_change_under_a_stored_map(served: Daemon) -> None:
    assert put(served, None, tiny=TINY).status == 200
    change_catalog(served)
    answer = served.ask("POST", "/admin/reload", admin=True)
    assert (answer.status, answer.json()["code"]) == (400, "catalog_fenced")
    assert "PUT /admin/model-host/deployments" in answer.json()["error"]
    assert served.chat().status == 200
    assert shown(served)["revision"] == 1


def test_an_empty_store_adopts_a_new_catalog(served: Daemon) -> None:
    change_catalog(served)
    assert served.ask("POST", "/admin/reload", admin=True).status == 200
    assert shown(served)["revision"] is None, "what was never written has no catalog to change"
    assert put(served, None, other=TINY).status == 200
    assert put(served, 1).status == 200
    change_catalog(served, "test-2", "test-3")
    answer = served.ask("POST", "/admin/reload", admin=True)
    assert answer.status == 200, answer.body
    stored = store_of(served).read()
    assert stored is not None
    assert (stored.revision, stored.catalog_revision, stored.deployments) == (3, "test-3", {})
    assert put(served, 2, tiny=TINY).status == 409
    assert put(served, 3, tiny=TINY).status == 200


def test_a_start_takes_a_stored_map_to_a_catalog_that_knows_its_names(served: Daemon) -> None:
    assert put(served, None, tiny=TINY).status == 200
    served.stop()
    change_catalog(served)
    served.start()
    assert shown(served)["revision"] == 2
    assert served.chat().status == 200
    served.stop()
    change_catalog(served, "tiny-model", "renamed-model")
    change_catalog(served, "test-2", "test-3")
    served.start(wait=False)
    assert served.process is not None
    assert served.process.wait(30) not in (0, -signal.SIGABRT)
    assert "put the old catalog back" in served.log


def test_validate_opens_nothing_and_the_file_defines_no_deployments(made: Daemon) -> None:
    def validate() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "sbproxy_cli", "validate", str(made.config)],
            capture_output=True, text=True, env=made.environ, timeout=60, check=False,
        )  # fmt: skip

    good = validate()
    assert good.returncode == 0, good.stdout + good.stderr
    assert not (made.directory / "state").exists()
    made.config.write_text(
        made.config.read_text().replace(
            "    authority:", "    deployments: {tiny: {model: tiny-model}}\n    authority:"
        )
    )
    bad = validate()
    assert bad.returncode != 0
    said = bad.stdout + bad.stderr
    assert "proxy.model_host.deployments" in said
    assert "PUT /admin/model-host/deployments" in said


def test_a_broken_store_refuses_the_start_by_name(made: Daemon) -> None:
    store = made.directory / "state" / "desired.sqlite3"
    store.parent.mkdir()
    store.write_text("this is no database, however long it is" * 100)
    made.start(wait=False)
    assert made.process is not None
    assert made.process.wait(30) != 0
    assert "proxy.model_host.store_path" in made.log
    assert json.dumps(str(store))[1:-1] in made.log
