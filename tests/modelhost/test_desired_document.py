"""The strict body of a replacement, and the revision document with its digest (contracts sections 0 and 14)."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbproxy.config.core.model_host import DeploymentConfig
from sbproxy.errors.admin import InvalidBody
from sbproxy.modelhost.core.desired import Desired, plan
from sbproxy.modelhost.core.desired_document import DeploymentDraft, RevisionDocument, parse_replacement

LEAST = {"model": "one", "cold_start": "wait"}


def body(**deployment: Any) -> bytes:
    return json.dumps({"expected_revision": None, "deployments": {"tiny": LEAST | deployment}}).encode()


def refusal(raw: bytes) -> str:
    with pytest.raises(InvalidBody) as caught:
        parse_replacement(raw)
    return str(caught.value)


def test_the_accepted_keys_are_exactly_those_of_the_contract() -> None:
    assert set(DeploymentDraft.model_fields) == {
        "model", "variant", "heterogeneous_variants", "replicas", "tensor_parallel", "required_labels", "spread_by",
        "pull", "warm", "cold_start", "keep_alive_secs", "max_concurrency", "max_queue_depth", "queue_timeout_ms",
        "engine", "rollout",
    }  # fmt: skip
    assert set(DeploymentDraft.model_fields) <= set(DeploymentConfig.model_fields)


def test_defaults_are_those_of_sb_yml() -> None:
    draft = parse_replacement(body()).deployments["tiny"]
    written = DeploymentConfig.model_validate(draft.model_dump()).model_dump()
    assert written == DeploymentConfig(model="one", cold_start="wait").model_dump()


@pytest.mark.parametrize("given_revision", [None, 0, 7, (1 << 53) - 1])
def test_the_revision_is_taken_as_sent(given_revision: int | None) -> None:
    raw = json.dumps({"expected_revision": given_revision, "deployments": {}}).encode()
    assert parse_replacement(raw).expected_revision == given_revision


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (b"", "missing"),
        (b"  \n", "missing"),
        (b"{", "line 1"),
        (b"\xff\xfe", "UTF-8"),
        (b"[]", "expected"),
        (b"null", "expected"),
        (b"[" * 200_000, "deep"),
        (b'{"deployments": {}}', "expected_revision: this key is required"),
        (b'{"expected_revision": null}', "deployments: this key is required"),
        (b'{"expected_revision": "1", "deployments": {}}', "expected_revision"),
        (b'{"expected_revision": true, "deployments": {}}', "expected_revision"),
        (b'{"expected_revision": 1.0, "deployments": {}}', "expected_revision"),
        (b'{"expected_revision": -1, "deployments": {}}', "expected_revision"),
        (b'{"expected_revision": 9007199254740992, "deployments": {}}', "9007199254740991"),
        (b'{"expected_revision": 1' + b"0" * 5000 + b', "deployments": {}}', "9007199254740991"),
        (b'{"expected_revision": NaN, "deployments": {}}', "NaN"),
        (b'{"expected_revision": null, "expected_revision": 1, "deployments": {}}', '"expected_revision" stands twice'),
        (b'{"expected_revision": null, "deployments": {"a": {}, "a": {}}}', '"a" stands twice'),
        (
            b'{"expected_revision": null, "deployments": {"a": {"required_labels": {"x": "1", "x": "2"}}}}',
            '"x" stands twice',
        ),
        (b'{"expected_revision": null, "deployments": [], "extra": 1}', "deployments"),
        (b'{"expected_revision": null, "deployments": {}, "deploymens": {}}', "did you mean 'deployments'"),
        (b'{"expected_revision": null, "deployments": {"a\\ud800": 1}}', "deployments"),
        (body(cold_start=None), "deployments.tiny.cold_start"),
        (body(extra_args=["--x"]), "deployments.tiny.extra_args: only sb.yml takes this key"),
        (body(pinned=True), "pinned: only sb.yml"),
        (body(replica=2), "did you mean 'replicas'"),
        (body(replicas="2"), "deployments.tiny.replicas"),
        (body(replicas=-1), "deployments.tiny.replicas"),
        (body(replicas=1.5), "deployments.tiny.replicas"),
        (body(replicas=1 << 32), "deployments.tiny.replicas"),
        (body(warm="yes"), "deployments.tiny.warm"),
        (body(pull="always"), "must be 'on_boot'"),
        (body(engine="tgi"), "deployments.tiny.engine"),
        (body(rollout="bluegreen"), "must be 'rolling' or 'recreate'"),
        (body(spread_by="zone"), "deployments.tiny.spread_by"),
        (body(required_labels={"zone": 1}), "required_labels"),
        (body(model=None), "deployments.tiny.model"),
    ],
)
def test_what_is_not_the_shape_is_refused_by_name(raw: bytes, named: str) -> None:
    said = refusal(raw)
    assert named in said
    assert len(said) < 400
    said.encode()  # also a lone surrogate of the caller's can be answered


def test_a_missing_cold_start_says_what_to_write() -> None:
    said = refusal(b'{"expected_revision": null, "deployments": {"tiny": {"model": "one"}}}')
    assert said == "deployments.tiny.cold_start: this key is required and missing; write wait, reject or fallback"


def test_the_map_is_looked_at_before_the_revision() -> None:
    assert "replicas" in refusal(b'{"deployments": {"a": {"model": "m", "cold_start": "wait", "replicas": "x"}}}')


# --- the document -----------------------------------------------------------------------------------------------------

DRAFTS = st.builds(
    DeploymentDraft,
    model=st.sampled_from(["one", "two", "m.3-x"]),
    variant=st.none() | st.sampled_from(["q4", "q8"]),
    replicas=st.integers(1, 4),
    warm=st.booleans(),
    cold_start=st.sampled_from(["wait", "reject", "fallback"]),
    keep_alive_secs=st.none() | st.integers(0, 31_536_000),
    max_queue_depth=st.integers(0, 1_000_000),
    rollout=st.sampled_from(["rolling", "recreate"]),
)
MAPS = st.dictionaries(st.text("abcdefgh.-_XYZ09", min_size=1, max_size=12), DRAFTS, max_size=6)


def test_the_digest_is_that_of_the_first_six_members() -> None:
    document = RevisionDocument.of(3, "cat-1", parse_replacement(body(keep_alive_secs=5)).deployments)
    kept = (
        '{"catalog_revision":"cat-1","deployments":{"tiny":{"cold_start":"wait","engine":"auto",'
        '"heterogeneous_variants":false,"keep_alive_secs":5,"max_queue_depth":128,"model":"one","pull":"on_demand",'
        '"queue_timeout_ms":30000,"replicas":1,"required_labels":{},"rollout":"rolling","spread_by":[],"warm":false}},'
        '"revision":3,"schema_version":1,"source_mode":"admin_managed","source_revision":"admin-api"}'
    )
    assert document.content_digest == hashlib.sha256(kept.encode()).hexdigest()
    assert json.loads(document.encoded()) == json.loads(kept) | {"content_digest": document.content_digest}


@given(MAPS, st.randoms(use_true_random=False), st.integers(1, (1 << 53) - 1))
def test_the_digest_knows_no_order(drafts: dict[str, DeploymentDraft], random: Any, revision: int) -> None:
    items = list(drafts.items())
    random.shuffle(items)
    document = RevisionDocument.of(revision, "c", drafts)
    assert RevisionDocument.of(revision, "c", dict(items)) == document
    assert RevisionDocument.decoded(document.encoded()) == document


@given(MAPS, MAPS)
def test_different_maps_have_different_digests(
    first: dict[str, DeploymentDraft], second: dict[str, DeploymentDraft]
) -> None:
    digests = {RevisionDocument.of(1, "c", each).content_digest for each in (first, second)}
    assert len(digests) == (1 if first == second else 2)


@given(MAPS)
def test_what_get_shows_may_be_put_back(drafts: dict[str, DeploymentDraft]) -> None:
    document = RevisionDocument.of(1, "c", drafts)
    raw = json.dumps({"expected_revision": 1, "deployments": document.shown}).encode()
    assert parse_replacement(raw).deployments == drafts


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace(b'"one"', b'"two"'),
        lambda text: text.replace(b'"schema_version":1', b'"schema_version":2'),
        lambda text: text[:-1],
        lambda _: b"[]",
        lambda text: text.replace(b'"revision":3', b'"revision":4'),
    ],
)
def test_a_damaged_document_is_not_read(damage: Any) -> None:
    document = RevisionDocument.of(3, "c", parse_replacement(body()).deployments)
    with pytest.raises(ValueError):
        RevisionDocument.decoded(damage(document.encoded()))


def test_a_document_of_a_version_that_knew_fewer_keys_is_read() -> None:
    members = {
        "schema_version": 1,
        "revision": 3,
        "source_mode": "admin_managed",
        "source_revision": "admin-api",
        "catalog_revision": "c",
        "deployments": {"tiny": {"model": "one", "cold_start": "wait"}},
    }
    digest = hashlib.sha256(json.dumps(members, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    document = RevisionDocument.decoded(json.dumps(members | {"content_digest": digest}).encode())
    assert document.content_digest == digest
    assert document.deployments["tiny"].queue_timeout_ms == 30_000


# --- the difference of two maps ---------------------------------------------------------------------------------------


def desired(drafts: dict[str, DeploymentDraft]) -> dict[str, Desired]:
    return {
        name: Desired(DeploymentConfig.model_validate(draft.model_dump()), draft.model, "llama_cpp")  # type: ignore[arg-type]
        for name, draft in drafts.items()
    }


@given(MAPS, MAPS)
def test_a_plan_puts_every_deployment_in_one_place(
    old: dict[str, DeploymentDraft], new: dict[str, DeploymentDraft]
) -> None:
    changes = plan(desired(old), desired(new))
    parts = [changes.added, changes.changed, changes.removed, changes.preserved]
    assert sorted(name for part in parts for name in part) == sorted(old.keys() | new.keys())
    assert set(changes.added) == new.keys() - old.keys()
    assert set(changes.removed) == old.keys() - new.keys()
    assert all(old[name] == new[name] for name in changes.preserved)
    assert all(old[name] != new[name] for name in changes.changed)
    back = plan(desired(new), desired(old))
    assert (back.added, back.removed) == (changes.removed, changes.added)
    assert (back.changed, back.preserved) == (changes.changed, changes.preserved)


@given(MAPS)
def test_the_same_map_changes_nothing(drafts: dict[str, DeploymentDraft]) -> None:
    changes = plan(desired(drafts), desired(dict(reversed(drafts.items()))))
    assert (changes.added, changes.changed, changes.removed) == ((), (), ())
