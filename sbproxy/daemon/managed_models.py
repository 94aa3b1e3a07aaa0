"""The model host as the gateway sees it: a route may name a deployment that the store does not define yet.

Such a model is listed as unavailable; asking for it stays the host's refusal.
"""

from __future__ import annotations

from sbproxy.errors.modelhost import UnknownDeployment
from sbproxy.modelhost.core.status import Availability
from sbproxy.modelhost.host import ModelHost

_UNDEFINED = Availability("unavailable", ready_replicas=0, desired_replicas=0)


class ListedModels:
    """Implements ``sbproxy.gateway.ports.ManagedModels``."""

    def __init__(self, host: ModelHost) -> None:
        self._host = host
        # The hot path is the host's own method, without a call in between.
        self.try_acquire = host.try_acquire
        self.acquire = host.acquire

    def availability(self, deployment: str) -> Availability:
        try:
            return self._host.availability(deployment)
        except UnknownDeployment:
            return _UNDEFINED
