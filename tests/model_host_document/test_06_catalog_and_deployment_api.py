# ruff: noqa: E501 - one row of a table is one line
"""Document 1, "Authenticated catalog and local deployment API"."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support import fake_engine
from support.daemon import FAKE_ENGINE_CONFIG, Answer, Daemon, daemon
from support.document_world import HOST, TINY_DEPLOYMENT, admin

pytestmark = pytest.mark.e2e

PATH = f"{HOST}/deployments"
STORED = FAKE_ENGINE_CONFIG.replace(
    f"    deployments:\n{TINY_DEPLOYMENT}",
    '    authority: admin_managed\n    store_path: "{dir}/state/desired.sqlite3"\n',
)
CONFIG = STORED
BUILT_IN = STORED.replace("    catalog_file: catalog.yml\n", "").replace("deployment: tiny", "deployment: local-qwen")
LARGEST = 9_007_199_254_740_991

PROVED_ELSEWHERE = {
    "sessions must echo their CSRF token to change anything": "tests/admin/test_admin_gate.py::test_a_session_must_echo_its_own_csrf_token_to_change_anything",
    "who may only read changes nothing": "tests/admin/test_admin_deployments.py::test_only_an_admin_replaces",
    "catalog texts are bounded, and no source or token is told": "tests/admin/test_admin_model_host.py::test_catalog_texts_are_cut_and_no_source_or_token_is_told",
    "rename is the new id without the old one; an omitted id is removed": "tests/modelhost/test_desired_document.py::test_a_plan_puts_every_deployment_in_one_place",
    "the accepted keys are those of the page and no others": "tests/modelhost/test_desired_document.py::test_the_accepted_keys_are_exactly_those_of_the_contract",
    "what GET shows may be sent back": "tests/modelhost/test_desired_document.py::test_what_get_shows_may_be_put_back",
    "body, meaning and catalog are checked before the revision": "tests/modelhost/test_desired_document.py::test_the_map_is_looked_at_before_the_revision",
    "the digest does not depend on any order": "tests/modelhost/test_desired_document.py::test_the_digest_knows_no_order",
    "placement over nodes has no place in a local map": "tests/modelhost/test_desired_rules.py::test_what_needs_several_nodes_is_refused",
    "replicas times degree beyond the devices is refused with the shortfall": "tests/modelhost/test_desired_rules.py::test_replicas_need_devices_of_their_own",
    "replicas claim disjoint device sets": "tests/modelhost/test_modelhost_placement.py::test_replicas_of_one_deployment_are_disjoint",
    "a wrong revision is a conflict with both revisions; refusals change nothing": "tests/e2e/test_admin_managed.py::test_what_is_refused_changes_nothing",
    "a failed preparation writes nothing": "tests/daemon/test_daemon_desired_state.py::test_a_pull_that_fails_writes_nothing",
    "a store that moved on during preparation fails the write and tears the staged work down": "tests/daemon/test_daemon_desired_state.py::test_another_process_that_is_faster_wins_and_the_staged_work_goes",
    "a failed activation is durable, told as that, and restores what a recreate stopped": "tests/daemon/test_daemon_desired_state.py::test_a_failed_activation_is_durable_and_restores_what_a_recreate_stopped",
    "after that, a corrected map goes in against the current revision": "tests/e2e/test_admin_managed.py::test_an_engine_that_fails_after_the_write_is_told_and_mended",
    "a daemon killed between write and activation starts on the stored revision": "tests/e2e/test_admin_managed.py::test_killed_between_the_durable_write_and_the_activation",
    "a route keeps its deployment from being removed or renamed": "tests/e2e/test_admin_managed.py::test_a_route_must_go_before_its_deployment",
    "every status and code pair": "tests/admin/test_admin_deployments.py::test_refusals",
    "failures of the machine keep their detail in the log": "tests/admin/test_admin_deployments.py::test_failures_of_the_machine_keep_their_detail_in_the_log",
    "a locked store is a bounded 502": "tests/e2e/test_admin_managed.py::test_a_store_held_by_another_process_is_a_502_in_time",
    "a body over 512 KiB is a 413": "tests/admin/test_admin_deployments.py::test_a_body_over_512_kib_is_refused",
    "every change leaves an audit line": "tests/admin/test_admin_gate.py::test_every_change_leaves_one_audit_line",
    "a publication that fails after the write is audited with the same cursor": "tests/admin/test_admin_deployments.py::test_what_became_durable_is_audited",
    "an old generation is drained after publication, within a bound": "tests/modelhost/test_modelhost_reload.py::test_a_removed_deployment_drains_in_the_background",
}
NOT_ON_ONE_MACHINE = {
    "placement over nodes in a signed bundle": "cluster",
    "the Model host page and its form": "M4",
    "publication by an authority node": "cluster",
}


@pytest.fixture(scope="module")
def built_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon on an empty store with the catalog that is built in."""
    folder = tmp_path_factory.mktemp("built-in")
    fake_engine.install(folder)
    with daemon(folder, BUILT_IN) as handle:
        handle.start()
        yield handle


def put(handle: Daemon, expected: Any, deployments: Any) -> Answer:
    return admin(handle, "PUT", PATH, {"expected_revision": expected, "deployments": deployments})


def shown(handle: Daemon) -> dict[str, Any]:
    document: dict[str, Any] = admin(handle, "GET", PATH).json()
    return document


@pytest.mark.parametrize(("method", "path"), [("GET", f"{HOST}/catalog"), ("GET", PATH), ("PUT", PATH)])
def test_nobody_sees_or_changes_anything_without_credentials(built_in: Daemon, method: str, path: str) -> None:
    """Catalog and map are behind the admin server's authentication."""
    assert built_in.ask(method, path, {} if method == "PUT" else None, admin=True, auth=False).status == 401


def test_the_catalog_tells_what_an_operator_chooses_by(built_in: Daemon) -> None:
    """The active catalog with its revision; the page's entry has the page's figures."""
    document = admin(built_in, "GET", f"{HOST}/catalog").json()
    assert (document["schema_version"], document["catalog_revision"]) == (1, "builtin-2026-07-10")
    entry = document["models"]["qwen2.5-0.5b-instruct"]
    about = {key: entry[key] for key in ("params", "license", "family", "context_length")}
    assert about == {"params": "0.5B", "license": "apache-2.0", "family": "qwen", "context_length": 32768}
    assert entry["variants"][0] == {
        "id": "q4_k_m",
        "format": "gguf",
        "quant": "Q4_K_M",
        "engines": ["llama_cpp"],
        "accelerators": ["cpu", "metal", "cuda"],
        "min_memory_bytes": 1_073_741_824,
        "download_size_bytes": 491_400_032,
        "certification": "bootstrap-metadata-2026-07-10",
        "stability": "preview",
    }


def test_the_first_map_of_an_empty_store(built_in: Daemon) -> None:
    """From nothing (no revision, no digest) to revision 1 with a plan, by the page's own body, which says cold_start too."""
    assert shown(built_in) == {
        "schema_version": 1, "authority": "admin_managed", "read_only": False, "revision": None, "content_digest": None,
        "deployments": {},
    }  # fmt: skip
    deployment = {
        "model": "qwen2.5-0.5b-instruct", "variant": "q4_k_m", "heterogeneous_variants": False, "replicas": 1,
        "required_labels": {}, "spread_by": [], "pull": "on_demand", "warm": False, "keep_alive_secs": 1800,
        "max_concurrency": 4, "max_queue_depth": 32, "queue_timeout_ms": 30000, "engine": "llama_cpp",
        "rollout": "rolling",
    }  # fmt: skip
    silent = put(built_in, None, {"local-qwen": deployment})
    assert (silent.status, silent.json()["code"]) == (400, "invalid_body")
    assert "cold_start" in silent.json()["error"]
    answer = put(built_in, None, {"local-qwen": {**deployment, "cold_start": "wait"}})
    assert answer.status == 200, answer.body
    body = answer.json()
    digest = body.pop("content_digest")
    assert len(digest) == 64
    assert int(digest, 16) >= 0
    assert body == {
        "schema_version": 1,
        "revision": 1,
        "plan": {"added": ["local-qwen"], "changed": [], "removed": [], "preserved": []},
    }
    document = shown(built_in)
    assert (document["revision"], document["content_digest"]) == (1, digest)
    assert deployment.items() <= document["deployments"]["local-qwen"].items()


TINY = {"model": "tiny-model", "cold_start": "wait"}


def test_a_map_replaces_the_whole_map_and_never_the_file(served: Daemon) -> None:
    """What is left out is removed; routes and sb.yml stay the operator's own; a stored map is audited with its cursor."""
    before = served.config.read_bytes()
    assert put(served, None, {"tiny": TINY, "old": TINY}).status == 200
    answer = put(served, 1, {"tiny": {**TINY, "max_concurrency": 2}, "new": TINY})
    assert answer.status == 200, answer.body
    assert answer.json()["plan"] == {"added": ["new"], "changed": ["tiny"], "removed": ["old"], "preserved": []}
    assert shown(served)["deployments"].keys() == {"tiny", "new"}
    assert served.config.read_bytes() == before
    assert served.chat().status == 200
    line = next(line for line in reversed(served.log.splitlines()) if "model_deployments_replace" in line)
    for told in (
        "admin_managed",
        "prior_revision=1",
        "next_revision=2",
        answer.json()["content_digest"],
        "deployment_count=2",
    ):
        assert told in line


MALFORMED = [
    (b"{", "invalid_body"),
    (b"[]", "invalid_body"),
    (b'{"expected_revision": 2}', "invalid_body"),
    (b'{"deployments": {}}', "invalid_body"),
    (b'{"expected_revision": 2, "deployments": {}, "more": 1}', "invalid_body"),
    (b'{"expected_revision": 2, "expected_revision": 2, "deployments": {}}', "invalid_body"),
    (
        b'{"expected_revision": 2, "deployments": {"a": {"model": "m", "cold_start": "wait", "what": 1}}}',
        "invalid_body",
    ),
    (
        b'{"expected_revision": 2, "deployments": {"a": {"model": "m", "model": "m", "cold_start": "wait"}}}',
        "invalid_body",
    ),
    (
        b'{"expected_revision": 2, "deployments": {"a": {"model": "m", "cold_start": "wait"}, "a": {"model": "m", "cold_start": "wait"}}}',
        "invalid_body",
    ),
    (b'{"expected_revision": 2.0, "deployments": {}}', "invalid_body"),
    (b'{"expected_revision": "2", "deployments": {}}', "invalid_body"),
    (b'{"expected_revision": -1, "deployments": {}}', "invalid_body"),
    (f'{{"expected_revision": {LARGEST + 1}, "deployments": {{}}}}'.encode(), "invalid_body"),
]


@pytest.mark.parametrize(("body", "code"), MALFORMED, ids=[str(index) for index in range(len(MALFORMED))])
def test_a_body_that_is_not_exactly_one_map_is_refused(served: Daemon, body: bytes, code: str) -> None:
    """No unknown, missing or doubled key, and no revision that is no exact unsigned integer, is guessed at."""
    before = shown(served)
    answer = admin(served, "PUT", PATH, body)
    assert (answer.status, answer.json()["code"]) == (400, code), answer.body
    assert shown(served) == before


def test_the_largest_exact_integer_is_a_revision_and_only_a_wrong_one(served: Daemon) -> None:
    """Cursors up to the largest exact JavaScript integer are compared, not rounded."""
    answer = put(served, LARGEST, shown(served)["deployments"])
    assert (answer.status, answer.json()["code"]) == (409, "revision_conflict")
    assert answer.json()["expected_revision"] == LARGEST


@pytest.mark.parametrize(
    ("deployment", "code"),
    [
        ({**TINY, "model": "tiny-modle"}, "unknown_catalog_model"),
        ({**TINY, "variant": "q9"}, "unknown_catalog_variant"),
        ({**TINY, "replicas": 2}, "invalid_desired"),
        ({**TINY, "variant": "q4", "tensor_parallel": 64}, "invalid_desired"),
        ({**TINY, "required_labels": {"zone": "a"}}, "invalid_desired"),
        ({**TINY, "spread_by": ["zone"]}, "invalid_desired"),
        ({**TINY, "heterogeneous_variants": True}, "invalid_desired"),
    ],
)
def test_a_map_that_this_node_cannot_mean_is_refused_by_its_code(
    served: Daemon, deployment: dict[str, Any], code: str
) -> None:
    """Unknown names, an unpinned set of replicas, more devices than there are, and placement over nodes."""
    document = shown(served)
    answer = put(served, document["revision"], {**document["deployments"], "wrong": deployment})
    assert (answer.status, answer.json()["code"]) == (400, code), answer.body
    assert shown(served) == document


def test_a_deployment_comes_before_its_route_and_goes_after_it(served: Daemon) -> None:
    """A provider of sb.yml fences the removal of what it names."""
    document = shown(served)
    answer = put(served, document["revision"], {"new": TINY})
    assert (answer.status, answer.json()["code"]) == (400, "invalid_desired")
    assert '"local"' in answer.json()["error"]
    assert shown(served) == document
