"""What keeps an admin-managed deployment map from being taken on by this node, before anything is prepared.

Semantics, limits of one node, catalog names and provider routes, in the order of contracts section 14.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import ValidationError

from sbproxy.catalog.core.model import Catalog
from sbproxy.catalog.core.resolve import find_model
from sbproxy.config.core.checks import identifier
from sbproxy.config.core.model_host import DeploymentConfig
from sbproxy.config.core.origins import OriginConfig
from sbproxy.config.core.rules import deployment_findings
from sbproxy.config.core.tree import quoted, render
from sbproxy.errors.catalog import UnknownVariant
from sbproxy.errors.modelhost import InvalidDesired
from sbproxy.modelhost.core.desired_document import DeploymentDraft, worded

MOST_DEPLOYMENTS = 1024
MOST_ID_CHARACTERS = 128
_MOST = {
    "keep_alive_secs": 365 * 24 * 3600,
    "max_concurrency": 1_000_000,
    "max_queue_depth": 1_000_000,
    "queue_timeout_ms": 24 * 3600 * 1000,
}
"""Upper limits of the admin path, which sb.yml does not have."""


def configs_of(drafts: Mapping[str, DeploymentDraft]) -> dict[str, DeploymentConfig]:
    """The map as deployments. Raises InvalidDesired for the first that no node could take on."""
    if len(drafts) > MOST_DEPLOYMENTS:
        raise InvalidDesired("", "deployments", f"at most {MOST_DEPLOYMENTS} of them, found {len(drafts)}")
    return {name: _config(name, draft) for name, draft in drafts.items()}


def refuse_beyond_node(deployments: Mapping[str, DeploymentConfig], accelerators: int) -> None:
    """``accelerators``: how many devices besides the CPU this node serves with. Raises InvalidDesired."""
    for name, config in deployments.items():
        for field, written in (
            ("heterogeneous_variants", config.heterogeneous_variants),
            ("required_labels", bool(config.required_labels)),
            ("spread_by", bool(config.spread_by)),
        ):
            if written:
                reason = (
                    "places replicas on several nodes, and an admin_managed map is for this node alone; leave it out"
                )
                raise InvalidDesired(name, field, reason)
        width = config.tensor_parallel or 1
        needed = config.replicas * width
        # The CPU is one pool that any number of replicas share; it cannot be split over.
        if needed > accelerators and (accelerators > 0 or width > 1):
            raise InvalidDesired(name, "replicas", _shortfall(config.replicas, width, accelerators))


def refuse_unknown(deployments: Mapping[str, DeploymentConfig], catalog: Catalog) -> None:
    """Raises UnknownModel or UnknownVariant."""
    for config in deployments.values():
        model = find_model(catalog, config.model)
        variants = tuple(str(each.id) for each in model.variants)
        if config.variant is not None and config.variant not in variants:
            raise UnknownVariant(model.id, config.variant, variants)


def refuse_orphaned_routes(
    before: Mapping[str, object], after: Mapping[str, object], origins: Mapping[str, OriginConfig]
) -> None:
    """A provider of sb.yml keeps the deployment that it names. Raises InvalidDesired with the provider."""
    vanishing = before.keys() - after.keys()
    for deployment, host, provider in routes_to(origins):
        if deployment in vanishing:
            reason = (
                f"provider {quoted(provider)} of origin {quoted(host)} still names it;"
                " remove or retarget that provider in sb.yml and reload, then send this map again"
            )
            raise InvalidDesired(deployment, "route", reason)


def routes_to(origins: Mapping[str, OriginConfig]) -> Iterator[tuple[str, str, str]]:
    """(deployment, host, provider name) of every managed provider; a disabled one names its deployment too."""
    for host, origin in origins.items():
        for provider in origin.action.providers:
            if provider.managed and provider.deployment is not None:
                yield provider.deployment, host, provider.name


def _config(name: str, draft: DeploymentDraft) -> DeploymentConfig:
    try:
        identifier(name)
    except ValueError as error:
        raise InvalidDesired("", "deployments", f"the id {quoted(name)} {error}") from None
    if len(name) > MOST_ID_CHARACTERS:
        raise InvalidDesired("", "deployments", f"the id {quoted(name)} is longer than {MOST_ID_CHARACTERS} characters")
    for field, most in _MOST.items():
        value = getattr(draft, field)
        if value is not None and value > most:
            raise InvalidDesired(name, field, f"must be at most {most}")
    try:
        config = DeploymentConfig.model_validate(draft.model_dump())
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise InvalidDesired(name, render(first["loc"]), worded(first["msg"])) from None
    for finding in deployment_findings(config, ()):
        raise InvalidDesired(name, render(finding.path), finding.reason)
    return config


def _shortfall(replicas: int, width: int, accelerators: int) -> str:
    needed = replicas * width
    return (
        f"{replicas} x tensor_parallel {width} needs {needed} devices and this node has {accelerators}:"
        f" {needed - accelerators} short"
    )
