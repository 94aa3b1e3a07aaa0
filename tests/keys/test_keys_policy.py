"""What a key allows: one case a rule, on live traffic and in the preview, which have to agree."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbproxy.errors.admin import InvalidBody
from sbproxy.errors.keys import (
    KeyBlocked,
    KeyExpired,
    KeyRefused,
    KeyRevisionConflict,
    KeyRevoked,
    KeyTerminal,
    ModelNotAllowed,
    PiiRuleInactive,
    PrincipalNotAllowed,
    ProviderNotAllowed,
    TenantMismatch,
    ToolNotAllowed,
)
from sbproxy.keys.core.change import check_current, next_revision, patched, rotated, seeded, with_status
from sbproxy.keys.core.policy import Admission, Ask, Principal, admit, policy_version
from sbproxy.keys.core.policy_fields import FIELDS, UNENFORCED, policy_schema
from sbproxy.keys.core.preview import Sample, UsageSample, preview
from sbproxy.keys.core.record import CredentialRecord, Envelope, KeyBudget, KeyRecord, PrincipalSelector, VaultRef
from sbproxy.keys.core.times import parse_rfc3339, rfc3339
from sbproxy.keys.core.token import matches, mint, parse, verifier
from sbproxy.keys.core.written import decode_credential, decode_key, encode_credential, encode_key

NOW = 1_800_000_000.0
PEPPER = b"p" * 32


def key(**changes: Any) -> KeyRecord:
    return replace(KeyRecord(key_id="0123456789abcdef", secret_hash=verifier("s", PEPPER), created_at=NOW), **changes)


TEN = KeyBudget(max_tokens=10)


def _spent(total_tokens: int, *, estimated_tokens: int | None = None, **usage: int) -> Sample:
    return Sample(Ask(), estimated_tokens=estimated_tokens, usage=UsageSample(total_tokens=total_tokens, **usage))


CASES: list[tuple[dict[str, Any], Ask, type[KeyRefused] | None, str, str]] = [
    ({}, Ask(model="m"), None, "lifecycle", "active"),
    ({"status": "blocked"}, Ask(), KeyBlocked, "lifecycle", "blocked"),
    ({"status": "revoked"}, Ask(), KeyRevoked, "lifecycle", "revoked"),
    # Revoked is what it is for good, expired or not.
    ({"status": "revoked", "expires_at": NOW}, Ask(), KeyRevoked, "lifecycle", "revoked"),
    ({"expires_at": NOW}, Ask(), KeyExpired, "lifecycle", "expired"),
    ({"expires_at": NOW + 1}, Ask(), None, "lifecycle", "active"),
    ({"tenant_id": "a"}, Ask(origin_tenant_id="b"), TenantMismatch, "tenant", "mismatch"),
    ({"tenant_id": "a"}, Ask(origin_tenant_id="a"), None, "tenant", "match"),
    ({}, Ask(origin_tenant_id="b"), None, "tenant", "inherited"),
    ({"allowed_models": ("m",)}, Ask(model="x"), ModelNotAllowed, "model", "not_allowed"),
    ({"allowed_models": ("m",)}, Ask(model="m"), None, "model", "allowed"),
    ({"allowed_models": ()}, Ask(model="m"), None, "model", "allowed"),
    ({"allowed_models": ("m",), "blocked_models": ("m",)}, Ask(model="m"), ModelNotAllowed, "model", "blocked"),
    ({"allowed_models": ("m",)}, Ask(), None, "model", "not_sampled"),
    ({"route_to_model": "r", "blocked_models": ("m",)}, Ask(model="m"), None, "model", "allowed"),
    ({"route_to_model": "r", "blocked_models": ("r",)}, Ask(model="m"), ModelNotAllowed, "model", "blocked"),
    ({"allowed_providers": ("p",)}, Ask(provider="q"), ProviderNotAllowed, "provider", "not_allowed"),
    ({"blocked_providers": ("q",)}, Ask(provider="q"), ProviderNotAllowed, "provider", "blocked"),
    ({"allowed_tools": ()}, Ask(tools=("t",)), ToolNotAllowed, "tools", "not_allowed"),
    ({"allowed_tools": ()}, Ask(tools=()), None, "tools", "allowed"),
    ({"allowed_tools": ("t",)}, Ask(tools=("t", "u")), ToolNotAllowed, "tools", "not_allowed"),
    ({"allowed_tools": None}, Ask(tools=("t",)), None, "tools", "unrestricted"),
    (
        {"principal_selectors": (PrincipalSelector(team="red"),)},
        Ask(principal=Principal(team="blue")), PrincipalNotAllowed, "principal", "mismatch",
    ),
    (
        {"principal_selectors": (PrincipalSelector(team="red"), PrincipalSelector(role="ops"))},
        Ask(principal=Principal(team="blue", roles=("ops",))), None, "principal", "match",
    ),
    (
        {"principal_selectors": (PrincipalSelector(team="red", claims={"a": "1"}),)},
        Ask(principal=Principal(team="red", claims={"a": "2"})), PrincipalNotAllowed, "principal", "mismatch",
    ),
    (
        {"require_pii_redaction": ("email", "iban")}, Ask(active_pii_rules=("email",)), PiiRuleInactive,
        "pii", "rule_inactive",
    ),
    ({"require_pii_redaction": ("email",)}, Ask(active_pii_rules=("email",)), None, "pii", "active"),
]  # fmt: skip


@pytest.mark.parametrize(("policy", "ask", "refusal", "block", "reason"), CASES)
def test_live_and_preview_agree(
    policy: dict[str, Any], ask: Ask, refusal: type[KeyRefused] | None, block: str, reason: str
) -> None:
    record = key(**policy)
    verdict = admit(record, ask, NOW)
    decisions = preview(record, Sample(ask), NOW)["decisions"]
    shown = (decisions["guardrails"] if block == "pii" else decisions)[block]
    assert shown["reason_code"] == reason
    assert shown["allowed"] is (refusal is None)
    assert decisions["allowed"] is (refusal is None)
    assert isinstance(verdict, Admission) if refusal is None else type(verdict) is refusal


def test_admission_carries_what_the_record_decides() -> None:
    tool = {"type": "function", "function": {"name": "t"}}
    verdict = admit(key(route_to_model="r", priority="batch", inject_tools=(tool,)), Ask(model="m"), NOW)
    assert verdict == Admission("r", "batch", (tool,))
    assert admit(key(), Ask(model="m"), NOW) == Admission("m", "standard")


def test_a_caller_cannot_claim_to_be_another_key() -> None:
    record = key(principal_selectors=(PrincipalSelector(virtual_key="other"),))
    assert isinstance(admit(record, Ask(principal=Principal(virtual_key="other")), NOW), PrincipalNotAllowed)
    mine = key(principal_selectors=(PrincipalSelector(virtual_key="0123456789abcdef", team="red"),))
    assert isinstance(admit(mine, Ask(), NOW), PrincipalNotAllowed)
    assert isinstance(admit(replace(mine, metadata={"team": "red"}), Ask(), NOW), Admission)


@pytest.mark.parametrize(
    ("policy", "sample", "block", "reason"),
    [
        ({}, Sample(Ask()), "budget", "unrestricted"),
        ({"budget": KeyBudget(max_tokens=10)}, Sample(Ask()), "budget", "not_sampled"),
        ({"budget": TEN}, Sample(Ask(), usage=UsageSample(total_tokens=9)), "budget", "within_limit"),
        ({"budget": TEN}, Sample(Ask(), usage=UsageSample(total_tokens=10)), "budget", "budget_exhausted"),
        ({"budget": TEN}, _spent(6, estimated_tokens=5), "budget", "budget_exhausted"),
        ({"budget": TEN}, _spent(6, estimated_tokens=4), "budget", "within_limit"),
        ({"budget": KeyBudget(None, 0.5)}, _spent(0, total_micro_usd=500_000), "budget", "budget_exhausted"),
        ({"max_requests_per_minute": 2}, _spent(0, requests_in_window=1), "rate_limits", "within_limit"),
        ({"max_requests_per_minute": 2}, _spent(0, requests_in_window=2), "rate_limits", "rate_exceeded"),
    ],
)  # fmt: skip
def test_preview_judges_limits_from_the_sample(policy: dict[str, Any], sample: Sample, block: str, reason: str) -> None:
    decisions = preview(key(**policy), sample, NOW)["decisions"]
    assert decisions[block]["reason_code"] == reason
    assert decisions["allowed"] is (reason not in ("budget_exhausted", "rate_exceeded"))


def test_preview_of_an_empty_sample() -> None:
    body = preview(key(expires_at=NOW + 5, priority="batch"), Sample(Ask(active_pii_rules=None)), NOW)
    decisions = body["decisions"]
    assert decisions["allowed"] is True
    assert decisions["lifecycle"] == {
        "allowed": True, "reason_code": "active", "status": "active", "expires_at": "2027-01-15T08:00:05Z",
    }  # fmt: skip
    assert decisions["model"] == {
        "allowed": True, "reason_code": "not_sampled", "requested": None, "effective": None, "routed": False,
    }  # fmt: skip
    assert decisions["tenant"]["effective_tenant_id"] == "__default__"
    assert decisions["priority"] == {"allowed": True, "reason_code": "configured", "priority": "batch"}
    assert body["policy_version"] == policy_version(key(expires_at=NOW + 5, priority="batch"), "__default__")
    assert "secret_hash" not in str(body)
    injected = preview(key(), Sample(Ask(), prompt_injection_detected=True), NOW)["decisions"]
    assert injected["guardrails"]["prompt_injection"]["reason_code"] == "detected"
    assert injected["allowed"] is False
    assert preview(key(bypass_prompt_injection=True), Sample(Ask(), True), NOW)["decisions"]["allowed"] is True


def test_the_version_names_policy_tenant_and_revision() -> None:
    record = key()
    versions = {
        policy_version(record, "a"), policy_version(record, "b"),
        policy_version(replace(record, policy_revision=2), "a"),
        policy_version(replace(record, blocked_models=("m",)), "a"),
    }  # fmt: skip
    assert len(versions) == 4
    assert policy_version(replace(record, secret_hash="other"), "a") == policy_version(record, "a")


def test_every_policy_field_is_in_the_schema_and_no_other() -> None:
    unpatched = {"key_id", "policy_revision", "secret_hash", "prev_secret_hash", "prev_hash_expires_at", "hash_alg",
                 "seed_hash", "created_at", "updated_at", "source"}  # fmt: skip
    named = {field.effective.partition(".")[0] for field in FIELDS}
    assert named == {field.name for field in fields(KeyRecord)} - unpatched
    schema = policy_schema()
    assert schema["schema_version"] == 1
    assert {field["patch_field"] for field in schema["fields"] if not field["supported"]} == UNENFORCED
    assert {"compression_profile", "inject_mcp"} == UNENFORCED


def test_tokens() -> None:
    token = mint("0" * 16, "f" * 64)
    assert token == f"sbp_{'0' * 16}_{'f' * 64}"
    assert parse(token) == parse(f" {token}".strip())
    legacy = parse("sk-my-seeded-key-abcdef0123456789")
    assert legacy is not None
    assert (legacy.key_id, legacy.secret) == ("my-seeded-key", "abcdef0123456789")
    assert "abcdef0123456789" not in repr(legacy)
    for damaged in (
        token[:-1],
        token + "0",
        token.upper(),
        token.replace("_", "-"),
        "sbp_",
        "",
        "sk-short",
        f"{token}\n",
    ):
        assert parse(damaged) is None, damaged
    with pytest.raises(ValueError, match="16"):
        mint("x", "f" * 64)


def test_the_prior_secret_opens_until_its_grace_is_over() -> None:
    old, new = verifier("old", PEPPER), verifier("new", PEPPER)
    record = rotated(key(secret_hash=old), new, 10, NOW)
    assert record.policy_revision == 2
    assert record.rotation_pending(NOW + 9)
    found = matches(record, old, NOW + 9)
    assert found is not None
    assert found.until == NOW + 10
    assert matches(record, old, NOW + 10) is None
    current = matches(record, new, NOW + 99)
    assert current is not None
    assert current.until is None
    assert matches(record, verifier("new", b"other pepper"), NOW) is None
    # A second rotation closes the first one's window; no grace closes it at once.
    assert matches(rotated(record, verifier("3", PEPPER), 10, NOW), old, NOW) is None
    assert matches(rotated(record, verifier("3", PEPPER), 0, NOW), new, NOW) is None


def test_patch_changes_what_it_says_and_nothing_else() -> None:
    record = key(name="a", budget=KeyBudget(10, 1.5), allowed_tools=("t",))
    after = patched(
        record, {"max_budget_usd": None, "allowed_tools": [], "tenant": "x", "expires_at": "2027-01-15T08:00:00Z"}
    )
    assert after == replace(record, budget=KeyBudget(10, None), allowed_tools=(), tenant_id="x", expires_at=NOW)
    assert patched(record, {"allowed_tools": None}).allowed_tools is None
    assert patched(record, {"compression_profile": None}) == record
    for wrong in ({"inject_mcp": {"ref": "x"}}, {"compression_profile": "p"}, {"expires_at": "tomorrow"},
                  {"expires_at": "2027-01-15T08:00:00"}, {"principal_selectors": [{}]}):  # fmt: skip
        with pytest.raises(InvalidBody):
            patched(record, wrong)


def test_a_revoked_key_is_terminal_and_revisions_are_compared() -> None:
    with pytest.raises(KeyTerminal):
        check_current(key(status="revoked"), None)
    with pytest.raises(KeyRevisionConflict) as conflict:
        check_current(key(policy_revision=3), 2)
    assert (conflict.value.expected_revision, conflict.value.current_revision) == (2, 3)
    check_current(key(policy_revision=3), 3)
    check_current(key(status="blocked"), None)
    assert with_status(key(), "blocked", NOW).policy_revision == 2


def test_a_seed_is_followed_but_brings_no_key_back_and_undoes_no_rotation() -> None:
    seed = key(source="config", seed_hash="first", secret_hash="first")
    stored = replace(seed, created_at=NOW - 9, policy_revision=4)
    assert seeded(stored, seed, NOW) is None
    revoked = replace(stored, status="revoked")
    changed = seeded(revoked, replace(seed, name="new"), NOW)
    assert changed is not None
    assert (changed.status, changed.name, changed.policy_revision, changed.created_at) == ("revoked", "new", 5, NOW - 9)
    turned = rotated(stored, "rotated", 60, NOW)
    assert seeded(turned, seed, NOW) is None
    renewed = seeded(turned, replace(seed, seed_hash="second", secret_hash="second"), NOW)
    assert renewed is not None
    assert (renewed.secret_hash, renewed.prev_secret_hash) == ("second", None)


_names = st.lists(st.text(min_size=1, max_size=6), max_size=3).map(tuple)
_records = st.builds(
    key,
    name=st.none() | st.text(max_size=9),
    policy_revision=st.integers(1, 1 << 50),
    budget=st.builds(KeyBudget, st.none() | st.integers(0, 1 << 50), st.none() | st.floats(0, 1e9)),
    allowed_models=_names,
    allowed_tools=st.none() | _names,
    principal_selectors=st.lists(
        st.builds(
            PrincipalSelector,
            team=st.none() | st.text(min_size=1),
            claims=st.dictionaries(st.text(), st.text(), max_size=2),
        ),
        max_size=2,
    ).map(tuple),
    inject_tools=st.just(({"type": "function", "function": {"name": "t", "parameters": {"a": [1]}}},)),
    metadata=st.dictionaries(st.text(), st.text(), max_size=2),
    expires_at=st.none() | st.floats(0, 1e10),
)  # fmt: skip


@given(_records)
def test_key_records_survive_writing(record: KeyRecord) -> None:
    assert decode_key(encode_key(record)) == record


def test_credential_records_survive_writing() -> None:
    for material in (VaultRef("env:X"), Envelope("aa", "bb")):
        record = CredentialRecord(id="c", provider="openai", material=material, scheme="", metadata={"a": "b"})
        assert decode_credential(encode_credential(record)) == record
    for damaged in ("[]", "{}", '{"id":"c"}', "no"):
        with pytest.raises(ValueError):
            decode_credential(damaged)
        with pytest.raises(ValueError):
            decode_key(damaged)


@given(st.integers(0, 253_402_300_799_000))
def test_times_survive_writing(milliseconds: int) -> None:
    text = rfc3339(milliseconds / 1000)
    assert round(parse_rfc3339(text) * 1000) == milliseconds


def test_next_revision_is_one_write() -> None:
    assert next_revision(key(policy_revision=7), NOW + 1) == key(policy_revision=8, updated_at=NOW + 1)
