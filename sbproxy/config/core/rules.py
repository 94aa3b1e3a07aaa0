"""Rules that look at more than one value of sb.yml (contracts sections 3, 14 and 47), for listeners and model host.

Pure: yields findings. The rules of origins stand in ``core.origin_rules``; what this version lacks in ``core.limits``.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from sbproxy.config.core.document import AdminConfig, OperatorConfig, ProxyConfig, SbConfig
from sbproxy.config.core.findings import Finding
from sbproxy.config.core.key_rules import key_management_findings, static_key_findings
from sbproxy.config.core.limits import limit_findings
from sbproxy.config.core.model_host import DeploymentConfig, EngineConfig, ModelHostConfig
from sbproxy.config.core.origin_rules import origin_findings
from sbproxy.config.core.tree import KeyPath, quoted, render

DEFAULT_PASSWORD = AdminConfig().password.get_secret_value()

_PINNED_IMAGE = re.compile(r"(?P<name>[^\s@]+)@sha256:[0-9a-f]{64}")
_TAGGED = re.compile(r".*:[^/]*")
_MANY_WAYS = ("vllm", "sglang")
"""Engines that run in containers and uv environments; the others are one program."""
_SPREAD_KEY = re.compile(r"[A-Za-z0-9._/-]{1,128}")
_ADMIN: KeyPath = ("proxy", "admin")
_HOST: KeyPath = ("proxy", "model_host")


@dataclass(frozen=True, slots=True)
class Declared:
    """Names that the document declares, also where the entry behind one is wrong. None: cannot be told."""

    deployments: frozenset[str] | None
    hosts: tuple[str, ...]


def rule_findings(config: SbConfig, declared: Declared) -> Iterator[Finding]:
    """Everything that the cross-field rules refuse in a document whose single values are right."""
    yield from _listeners(config.proxy)
    if config.proxy.admin.enabled:
        yield from _default_password(config.proxy.admin)
    yield from _admin(config.proxy.admin)
    yield from host_findings(config.proxy.model_host)
    # The store may define what the file does not.
    stored = config.proxy.model_host.authority == "admin_managed"
    yield from origin_findings(config, declared.hosts, None if stored else declared.deployments)
    yield from key_management_findings(config.proxy.key_management)
    for host, origin in config.origins.items():
        yield from static_key_findings(origin.credentials, ("origins", host, "credentials"))
    yield from limit_findings(config)


def _listeners(proxy: ProxyConfig) -> Iterator[Finding]:
    admin = proxy.admin
    if not admin.enabled or admin.port != proxy.http_bind_port:
        return
    first, second = ipaddress.ip_address(admin.bind), ipaddress.ip_address(proxy.bind_address)
    if first == second or first.is_unspecified or second.is_unspecified:
        others: tuple[KeyPath, ...] = (
            ("proxy", "http_bind_port"),
            ("proxy", "bind_address"),
            (*_ADMIN, "bind"),
            (*_ADMIN, "enabled"),
        )
        yield Finding((*_ADMIN, "port"), f"port {admin.port} is taken by proxy.http_bind_port", depends_on=others)


def _default_password(admin: AdminConfig) -> Iterator[Finding]:
    if admin.password.get_secret_value() != DEFAULT_PASSWORD:
        return
    networks = [_network(entry) for entry in admin.allow_ips]
    outside = [index for index, network in enumerate(networks) if network and not network.is_loopback]
    if not ipaddress.ip_address(admin.bind).is_loopback:
        where, cause = f"bind {admin.bind} is not loopback", (*_ADMIN, "bind")
    elif outside:
        where = f"allow_ips holds {admin.allow_ips[outside[0]]}, which is not loopback"
        cause = (*_ADMIN, "allow_ips", outside[0])
    else:
        return
    reason = f"the default password is refused when {where}; set a password of your own"
    yield Finding((*_ADMIN, "password"), reason, depends_on=(cause, (*_ADMIN, "enabled")))


def _network(entry: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(entry)
    except ValueError:
        return None


def _admin(admin: AdminConfig) -> Iterator[Finding]:
    for index, entry in enumerate(admin.allow_ips):
        if _network(entry) is None:
            reason = "must be an IP address or a network such as 10.0.0.0/8 (no bits set after the prefix)"
            yield Finding((*_ADMIN, "allow_ips", index), reason)
    for index, origin in enumerate(admin.cors_origins):
        if not _is_browser_origin(origin):
            reason = "must be a browser origin such as https://console.example.com, without a path"
            yield Finding((*_ADMIN, "cors_origins", index), reason)
    yield from _operators(admin)


def _is_browser_origin(text: str) -> bool:
    try:
        url = urlsplit(text)
        _ = url.port
    except ValueError:
        return False
    return url.scheme in ("http", "https") and bool(url.hostname) and text == f"{url.scheme}://{url.netloc}"


def _operators(admin: AdminConfig) -> Iterator[Finding]:
    seen: dict[str, KeyPath] = {admin.username: (*_ADMIN, "username")}
    for index, operator in enumerate(admin.operators):
        path = (*_ADMIN, "operators", index)
        yield from _one_password(operator, path)
        before = seen.setdefault(operator.username, (*path, "username"))
        if before != (*path, "username"):
            reason = f"{quoted(operator.username)} is already {render(before[1:])}; usernames must differ"
            yield Finding((*path, "username"), reason, depends_on=(before,))


def _one_password(operator: OperatorConfig, path: KeyPath) -> Iterator[Finding]:
    password, hashed = (*path, "password"), (*path, "password_hash")
    if operator.password is None and operator.password_hash is None:
        yield Finding(password, "an operator needs a password or a password_hash", depends_on=(hashed,))
    if operator.password is not None and operator.password_hash is not None:
        reason = "an operator has either a password or a password_hash, not both"
        yield Finding(hashed, reason, depends_on=(password,))


def host_findings(host: ModelHostConfig) -> Iterator[Finding]:
    """What is wrong between the values of ``proxy.model_host``, also once ``serve:`` blocks were lowered into it."""
    if host.authority == "admin_managed" and host.store_path is None:
        authority = (*_HOST, "authority")
        yield Finding((*_HOST, "store_path"), "authority admin_managed needs a store_path", depends_on=(authority,))
    if host.authority == "admin_managed" and host.deployments:
        reason = (
            "under authority admin_managed the store at store_path owns the deployments; remove this block and send"
            " them with PUT /admin/model-host/deployments"
        )
        yield Finding((*_HOST, "deployments"), reason, depends_on=((*_HOST, "authority"),))
    for name, engine in host.engines.items():
        yield from _engine(name, engine, (*_HOST, "engines", name))
    for deployment_id, deployment in host.deployments.items():
        yield from deployment_findings(deployment, (*_HOST, "deployments", deployment_id))
        yield from _contradiction(host, deployment, (*_HOST, "deployments", deployment_id))


def _engine(name: str, engine: EngineConfig, path: KeyPath) -> Iterator[Finding]:
    container = engine.launch == "container"
    image, launch = (*path, "image"), (*path, "launch")
    if container and engine.image is None:
        reason = "launch: container needs an image pinned by digest (name@sha256:...)"
        yield Finding(image, reason, depends_on=(launch,))
    if engine.image is not None and not container:
        yield Finding(image, "an image is only used with launch: container", depends_on=(launch,))
    if engine.image is not None:
        yield from _pinned(engine.image, image)
    if engine.launch != "binary" and name not in _MANY_WAYS:
        yield Finding(launch, f"{engine.launch} is only for {' and '.join(_MANY_WAYS)}")
    if engine.version is not None:
        yield from _exact(engine.version, (*path, "version"))
    if engine.shm_size_gib is not None and not container:
        reason = "shared memory is only set with launch: container"
        yield Finding((*path, "shm_size_gib"), reason, depends_on=(launch,))
    if engine.path is not None and engine.launch != "binary":
        yield Finding((*path, "path"), "a path is only used with launch: binary", depends_on=(launch,))
    if engine.sha256 is not None and engine.launch == "uv":
        reason = "a uv environment is pinned by its version alone; remove sha256"
        yield Finding((*path, "sha256"), reason, depends_on=(launch,))


def _pinned(image: str, path: KeyPath) -> Iterator[Finding]:
    match = _PINNED_IMAGE.fullmatch(image)
    if match is None:
        yield Finding(path, "must be pinned by digest: name@sha256:<64 hex>, not by a tag")
    elif _TAGGED.fullmatch(match["name"].rpartition("/")[2]):
        yield Finding(path, "has a tag beside its digest; write name@sha256:<64 hex>")


def _exact(version: str, path: KeyPath) -> Iterator[Finding]:
    if version.lower() == "latest":
        yield Finding(path, "must be an exact version, never 'latest'")


def deployment_findings(deployment: DeploymentConfig, path: KeyPath) -> Iterator[Finding]:
    """What is wrong between the values of one deployment, wherever it was written."""
    if deployment.replicas > 1 and deployment.variant is None and not deployment.heterogeneous_variants:
        reason = "more than one replica needs a variant, the one that all of them run; 'sbproxy models show' lists them"
        others = ((*path, "variant"), (*path, "heterogeneous_variants"))
        yield Finding((*path, "replicas"), reason, depends_on=others)
    for key, value in deployment.required_labels.items():
        if not key or not value:
            yield Finding((*path, "required_labels", key), "a label's key and value must not be empty")
    yield from _spread(deployment, (*path, "spread_by"))
    yield from _own_engine(deployment, path)


def _own_engine(deployment: DeploymentConfig, path: KeyPath) -> Iterator[Finding]:
    """An engine build for this deployment alone."""
    if deployment.engine_version is not None:
        yield from _exact(deployment.engine_version, (*path, "engine_version"))
    image = deployment.engine_image
    if image is None:
        return
    yield from _pinned(image, (*path, "engine_image"))
    if deployment.engine not in ("auto", *_MANY_WAYS):
        reason = f"{deployment.engine} runs in no container; engine_image is for {' and '.join(_MANY_WAYS)}"
        yield Finding((*path, "engine_image"), reason, depends_on=((*path, "engine"),))


def _spread(deployment: DeploymentConfig, path: KeyPath) -> Iterator[Finding]:
    keys = deployment.spread_by
    if len(keys) > 8:
        yield Finding(path, f"at most 8 labels, found {len(keys)}")
    for index, key in enumerate(keys):
        if not _SPREAD_KEY.fullmatch(key):
            reason = "a label is 1 to 128 letters, digits, '.', '-', '_' and '/'"
            yield Finding((*path, index), reason)
        elif key in keys[:index]:
            first = (*path, keys.index(key))
            yield Finding((*path, index), f"{quoted(key)} stands twice in the list", depends_on=(first,))


def _contradiction(host: ModelHostConfig, deployment: DeploymentConfig, path: KeyPath) -> Iterator[Finding]:
    """A build of its own that is not the one which the host's block pins. With ``engine: auto`` the start tells."""
    if deployment.engine == "auto" or deployment.engine not in host.engines:
        return
    block = host.engines[deployment.engine]
    own_image = deployment.engine_image is not None
    pairs = (
        ("version", deployment.engine_version, block.version),
        ("sha256", deployment.engine_sha256, None if own_image else block.sha256),
    )
    for name, wanted, pinned in pairs:
        if wanted is not None and pinned is not None and wanted != pinned:
            key = (*_HOST, "engines", deployment.engine, name)
            reason = f"contradicts {render(key)}, which is {pinned}"
            yield Finding((*path, f"engine_{name}"), reason, depends_on=(key, (*path, "engine")))
