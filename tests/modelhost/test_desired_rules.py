"""What keeps a deployment map from this node before anything is prepared (document 1, local deployment API)."""

from __future__ import annotations

from typing import Any

import pytest

from sbproxy.config.core.origins import OriginConfig
from sbproxy.errors.catalog import UnknownModel, UnknownVariant
from sbproxy.errors.modelhost import InvalidDesired
from sbproxy.modelhost.core.desired_document import DeploymentDraft
from sbproxy.modelhost.core.draft_rules import (
    configs_of,
    refuse_beyond_node,
    refuse_orphaned_routes,
    refuse_unknown,
)
from support.model_host_parts import catalog


def draft(**fields: Any) -> DeploymentDraft:
    return DeploymentDraft(**({"model": "one", "cold_start": "wait"} | fields))


@pytest.mark.parametrize(
    ("name", "fields", "field"),
    [
        ("a b", {}, "deployments"),
        ("", {}, "deployments"),
        ("a" * 129, {}, "deployments"),
        ("a\ud800", {}, "deployments"),
        ("ok", {"model": ""}, "model"),
        ("ok", {"model": "a/b"}, "model"),
        ("ok", {"variant": "q 4"}, "variant"),
        ("ok", {"replicas": 0}, "replicas"),
        ("ok", {"replicas": 2}, "replicas"),
        ("ok", {"tensor_parallel": 0}, "tensor_parallel"),
        ("ok", {"max_concurrency": 0}, "max_concurrency"),
        ("ok", {"max_concurrency": 1_000_001}, "max_concurrency"),
        ("ok", {"max_queue_depth": 1_000_001}, "max_queue_depth"),
        ("ok", {"queue_timeout_ms": 0}, "queue_timeout_ms"),
        ("ok", {"queue_timeout_ms": 86_400_001}, "queue_timeout_ms"),
        ("ok", {"keep_alive_secs": 31_536_001}, "keep_alive_secs"),
        ("ok", {"required_labels": {"": "x"}}, 'required_labels.""'),
        ("ok", {"spread_by": ["zone", "zone"]}, "spread_by[1]"),
    ],
)
def test_semantics(name: str, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidDesired) as caught:
        configs_of({name: draft(**fields)})
    assert caught.value.field == field
    assert len(str(caught.value).encode()) < 400


def test_the_limits_themselves_are_accepted() -> None:
    most = draft(
        variant="q4",
        replicas=3,
        max_concurrency=1_000_000,
        max_queue_depth=1_000_000,
        queue_timeout_ms=86_400_000,
        keep_alive_secs=31_536_000,
    )
    assert configs_of({"a" * 128: most, "b": draft(max_queue_depth=0)})["b"].max_queue_depth == 0


def test_a_map_is_bounded() -> None:
    assert len(configs_of({f"d{number}": draft() for number in range(1024)})) == 1024
    with pytest.raises(InvalidDesired, match="at most 1024"):
        configs_of({f"d{number}": draft() for number in range(1025)})


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"heterogeneous_variants": True}, "heterogeneous_variants"),
        ({"required_labels": {"zone": "a"}}, "required_labels"),
        ({"spread_by": ["zone"]}, "spread_by"),
    ],
)
def test_what_needs_several_nodes_is_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidDesired) as caught:
        refuse_beyond_node(configs_of({"a": draft(**fields)}), 8)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("replicas", "width", "accelerators", "short"),
    [
        (1, None, 0, None),
        (5, None, 0, None),
        (5, 1, 0, None),
        (1, 2, 0, 2),
        (2, 1, 2, None),
        (1, 2, 2, None),
        (3, None, 2, 1),
        (2, 2, 3, 1),
        (4, 4, 1, 15),
    ],
)
def test_replicas_need_devices_of_their_own(
    replicas: int, width: int | None, accelerators: int, short: int | None
) -> None:
    deployments = configs_of({"a": draft(variant="q4", replicas=replicas, tensor_parallel=width)})
    if short is None:
        refuse_beyond_node(deployments, accelerators)
    else:
        with pytest.raises(InvalidDesired, match=f"{short} short"):
            refuse_beyond_node(deployments, accelerators)


def test_names_of_the_catalog() -> None:
    refuse_unknown(configs_of({"a": draft(), "b": draft(model="two", variant="q4")}), catalog())
    with pytest.raises(UnknownModel, match="'thre'"):
        refuse_unknown(configs_of({"a": draft(model="thre")}), catalog())
    with pytest.raises(UnknownVariant, match="q9"):
        refuse_unknown(configs_of({"a": draft(variant="q9")}), catalog())


def origins(**fields: Any) -> dict[str, OriginConfig]:
    provider = {"name": "local", "provider_type": "managed_model", "deployment": "tiny"} | fields
    action = {"type": "ai_proxy", "providers": [provider]}
    return {"chat.example.com": OriginConfig.model_validate({"action": action})}


@pytest.mark.parametrize("enabled", [True, False])
def test_a_route_keeps_its_deployment(enabled: bool) -> None:
    with pytest.raises(InvalidDesired) as caught:
        refuse_orphaned_routes({"tiny": 1, "other": 1}, {"renamed": 1}, origins(enabled=enabled))
    assert caught.value.deployment == "tiny"
    assert '"local"' in str(caught.value)
    assert '"chat.example.com"' in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after"), [({"tiny": 1}, {"tiny": 2}), ({}, {}), ({}, {"other": 1}), ({"other": 1}, {})]
)
def test_a_route_may_wait_for_its_deployment(before: dict[str, int], after: dict[str, int]) -> None:
    refuse_orphaned_routes(before, after, origins())
