"""Lowers every ``serve:`` block to deployments of ``proxy.model_host`` and managed providers (document 1, "Migrating").

Pure and deterministic: equal documents give equal results. Rules inside one block stand in ``core.serve_rules``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from sbproxy.config.core.document import SbConfig
from sbproxy.config.core.findings import Finding
from sbproxy.config.core.model_host import DeploymentConfig
from sbproxy.config.core.origins import ProviderConfig
from sbproxy.config.core.serve import ServeConfig
from sbproxy.config.core.serve_deployment import deployment_id, deployment_of
from sbproxy.config.core.serve_notes import Served, served_warnings
from sbproxy.config.core.serve_policy import HOST, HostPolicy, host_policy
from sbproxy.config.core.serve_providers import lowered_origins, name_clashes
from sbproxy.config.core.tree import KeyPath

_DEPLOYMENTS: Final[KeyPath] = (*HOST, "deployments")
_RENAMED: Final = {"keep_alive_secs": "keep_alive"}
_OF_THE_BLOCK: Final = {"max_concurrency": "max_concurrent_requests", "queue_timeout_ms": "queue_timeout_ms"}


@dataclass(frozen=True, slots=True)
class Lowering:
    """``config`` holds no serve block any more. ``served`` tells by deployment id where each lowered one is from."""

    config: SbConfig
    served: Mapping[str, Served] = field(default_factory=dict)
    policy: HostPolicy = field(default_factory=lambda: HostPolicy({}, ()))
    providers: Mapping[KeyPath, KeyPath] = field(default_factory=dict)
    """Path of each provider of the written document to its first one in ``config``, where the two differ."""
    findings: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = ()

    def references(self, written: Mapping[KeyPath, str]) -> dict[KeyPath, str]:
        """Secret positions of the written document as positions of ``config``."""
        return {self._moved(path): text for path, text in written.items()}

    def as_written(self, finding: Finding) -> Finding | None:
        """A finding about ``config`` with the paths of the written document. None for one that is not the writer's:
        the catalog does not have the stand-ins of raw references, and need not."""
        path = finding.path
        if path[:3] == _DEPLOYMENTS and path[4:] == ("model",):
            served = self.served.get(str(path[3]))
            if served is not None and served.raw is not None:
                return None
        depends = tuple(map(self._written, finding.depends_on))
        return replace(finding, path=self._written(path), depends_on=depends)

    def _moved(self, path: KeyPath) -> KeyPath:
        return (*self.providers.get(path[:5], path[:5]), *path[5:])

    def _written(self, path: KeyPath) -> KeyPath:
        if path[:3] == _DEPLOYMENTS and len(path) > 3 and (served := self.served.get(str(path[3]))) is not None:
            entry = served.places[0]
            if len(path) > 4 and path[4] in _OF_THE_BLOCK:
                return (*entry[:-2], _OF_THE_BLOCK[str(path[4])])
            return (*entry, *(_RENAMED.get(str(step), step) for step in path[4:5]), *path[5:])
        if path == _DEPLOYMENTS and self.served and len(self.served) == len(self.config.proxy.model_host.deployments):
            return next(iter(self.served.values())).places[0][:-2]
        return self.policy.written_at(path) if path[:2] == HOST else path


def lower(config: SbConfig) -> Lowering:
    """The document without serve blocks, and everything that is wrong between them. Without any: ``config`` itself."""
    blocks = tuple(_blocks(config))
    if not blocks:
        return Lowering(config)
    host = config.proxy.model_host
    policy = host_policy(host, [(path, serve) for path, _, serve in blocks])
    served = _served(blocks)
    deployments = dict(
        zip(served, _bounded([deployment_of(each.entry) for each in served.values()], policy), strict=True)
    )
    lowered_host = policy.applied(host).model_copy(update={"deployments": {**host.deployments, **deployments}})
    origins, providers = lowered_origins(config.origins)
    findings = [
        *policy.findings,
        *_taken(served, host.deployments),
        *_too_few(served, policy),
        *name_clashes(config.origins, origins),
    ]
    return Lowering(
        config=config.model_copy(
            update={"proxy": config.proxy.model_copy(update={"model_host": lowered_host}), "origins": origins}
        ),
        served=served,
        policy=policy,
        providers=providers,
        findings=tuple(findings),
        warnings=tuple(served_warnings(served, policy)),
    )


def _blocks(config: SbConfig) -> Iterator[tuple[KeyPath, ProviderConfig, ServeConfig]]:
    for host, origin in config.origins.items():
        for index, provider in enumerate(origin.action.providers):
            if provider.serve is not None:
                yield ("origins", host, "action", "providers", index, "serve"), provider, provider.serve


def _served(blocks: tuple[tuple[KeyPath, ProviderConfig, ServeConfig], ...]) -> dict[str, Served]:
    found: dict[str, Served] = {}
    for path, provider, serve in blocks:
        for index, entry in enumerate(serve.models):
            name, place = deployment_id(provider.name, entry), (*path, "models", index)
            before = found.get(name, Served(name, provider.name, entry, ()))
            found[name] = replace(before, places=(*before.places, place))
    return found


def _bounded(deployments: list[DeploymentConfig], policy: HostPolicy) -> Iterator[DeploymentConfig]:
    """Share the cap on all served requests out, the remainder to the first ones, so that the sum is never above it."""
    cap = policy.value("max_concurrent_requests")
    if cap is None:
        yield from deployments
        return
    share, rest = divmod(cap, len(deployments))
    timeout = policy.value("queue_timeout_ms")
    for index, deployment in enumerate(deployments):
        update = {"max_concurrency": max(1, share + (index < rest))}
        if timeout is not None:
            update["queue_timeout_ms"] = timeout
        yield deployment.model_copy(update=update)


def _taken(served: Mapping[str, Served], canonical: Mapping[str, DeploymentConfig]) -> Iterator[Finding]:
    for name in served:
        if name in canonical:
            reason = f"this block is lowered to deployment {name}, which proxy.model_host.deployments has already"
            yield Finding(served[name].places[0], f"{reason}; write one of the two")


def _too_few(served: Mapping[str, Served], policy: HostPolicy) -> Iterator[Finding]:
    said = policy.settled.get(("max_concurrent_requests",))
    if said is not None and said.value < len(served):
        reason = f"{said.value} for {len(served)} served models leaves one without any; give each at least 1"
        yield Finding(said.path, reason, depends_on=tuple(each.places[0] for each in served.values()))
