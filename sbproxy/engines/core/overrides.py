"""What a deployment asks of its engine beside the host's block: a version, an image or a digest of its own.

A wish that contradicts the host's block is refused; what the host leaves open is the deployment's. Contracts
section 14.
"""

from __future__ import annotations

from sbproxy.config.core.model_host import DeploymentConfig, EngineConfig
from sbproxy.engines.core.container import pinned_image
from sbproxy.errors.engines import EngineBlocked

IN_CONTAINERS = ("vllm", "sglang")


def overridden(engine: str, host: EngineConfig | None, deployment: DeploymentConfig) -> EngineConfig | None:
    """The engine block of this deployment; None when it is the host's. Raises EngineBlocked for a contradiction."""
    block = host or EngineConfig()
    changes: dict[str, str | None] = {}
    for name, wanted in (("version", deployment.engine_version), ("sha256", deployment.engine_sha256)):
        own = getattr(block, name)
        if wanted is None or wanted == own:
            continue
        # The digest of the host's image says nothing of the deployment's own one.
        if own is not None and not (name == "sha256" and deployment.engine_image is not None):
            reason = f"engine_{name} {wanted} of the deployment contradicts engines.{engine}.{name} {own}"
            raise EngineBlocked(engine, reason)
        changes[name] = wanted
    if deployment.engine_image not in (None, block.image):
        changes |= _image(engine, block, deployment)
    return block.model_copy(update=changes) if changes else None


def _image(engine: str, block: EngineConfig, deployment: DeploymentConfig) -> dict[str, str | None]:
    if engine not in IN_CONTAINERS:
        raise EngineBlocked(engine, "engine_image is for vllm and sglang; it runs in no container")
    if block.launch != "container" and "launch" in block.model_fields_set:
        reason = f"engine_image of the deployment contradicts engines.{engine}.launch {block.launch}"
        raise EngineBlocked(engine, reason)
    image = pinned_image(engine, deployment.engine_image)
    return {"launch": "container", "image": image.reference, "sha256": deployment.engine_sha256}
