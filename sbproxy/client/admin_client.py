"""The typed client of the admin API: one method a route, answers as ``sbproxy.api`` messages.

Used by the CLI and the console only. Every failure is a leaf of ``sbproxy.errors.client``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Self
from urllib.parse import quote

from pydantic import TypeAdapter

from sbproxy.api.artifacts import (
    ClusterArtifacts,
    ClusterVram,
    GcAnswer,
    PullAccepted,
    PullRequest,
    RemovalAnswer,
)
from sbproxy.api.config import ConfigAnswer
from sbproxy.api.control import DriftAnswer, HealthAnswer, ReloadAnswer, RequestEntry, SessionAnswer
from sbproxy.api.model_host import (
    CatalogAnswer,
    DeploymentsAnswer,
    DeploymentsReplaced,
    FilesAnswer,
    HostStatus,
    Job,
    JobAnswer,
    JobsAnswer,
    LifecycleAccepted,
    LifecycleRequest,
    ReplaceDeployments,
    ResetAnswer,
)
from sbproxy.api.value import ValueAnswer
from sbproxy.client.core.feed import RECONNECT_DELAYS_S, JobUpdate, RequestSeen, StreamGap, job_event, request_event
from sbproxy.client.stream import follow
from sbproxy.client.transport import CONNECT_TIMEOUT_S, READ_TIMEOUT_S, AdminTransport

_JobItems = AsyncGenerator[JobUpdate | StreamGap, None]
_RequestItems = AsyncGenerator[RequestSeen | StreamGap, None]
_HOST = "/admin/model-host"
_ENTRIES: TypeAdapter[list[RequestEntry]] = TypeAdapter(list[RequestEntry])


class AdminClient:
    """``async with AdminClient(url, username, password) as client``. Time-outs are seconds.

    Raises AdminUrlInvalid for an address that cannot be one.
    """

    def __init__(
        self,
        url: str,
        username: str,
        password: str,
        *,
        timeout: float = READ_TIMEOUT_S,
        connect_timeout: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self._transport = AdminTransport(url, username, password, timeout=timeout, connect_timeout=connect_timeout)

    @property
    def url(self) -> str:
        return self._transport.url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()

    async def health(self) -> HealthAnswer:
        """Raises DaemonRefused when the daemon is unready (503)."""
        return await self._transport.call("GET", "/health", HealthAnswer)

    async def session(self) -> SessionAnswer:
        """Who the daemon takes this client for, and with which role."""
        return await self._transport.call("GET", "/admin/session", SessionAnswer)

    async def status(self) -> HostStatus:
        return await self._transport.call("GET", f"{_HOST}/status", HostStatus)

    async def catalog(self) -> CatalogAnswer:
        return await self._transport.call("GET", f"{_HOST}/catalog", CatalogAnswer)

    async def deployments(self) -> DeploymentsAnswer:
        return await self._transport.call("GET", f"{_HOST}/deployments", DeploymentsAnswer)

    async def replace_deployments(
        self, expected_revision: int | None, deployments: Mapping[str, Mapping[str, Any]]
    ) -> DeploymentsReplaced:
        """Replace the whole admin-managed map. ``expected_revision`` is what ``deployments()`` returned, null included.

        DaemonRefused with ``revision_conflict``: somebody else was faster, read again. With ``runtime_commit_failed``
        the new revision is stored all the same. Pulls happen before the answer, so give the client time for them.
        """
        sent = ReplaceDeployments(
            expected_revision=expected_revision, deployments={name: dict(each) for name, each in deployments.items()}
        )
        return await self._transport.call(
            "PUT", f"{_HOST}/deployments", DeploymentsReplaced, body=sent.model_dump_json().encode()
        )

    async def files(self) -> FilesAnswer:
        return await self._transport.call("GET", f"{_HOST}/files", FilesAnswer)

    async def pull(self, model: str, variant: str | None = None, engine: str | None = None) -> PullAccepted:
        """Bring a model into the daemon's cache; follow or cancel the job that is named in the answer."""
        asked = {"model": model, "variant": variant, "engine": engine}
        body = PullRequest.model_validate({name: value for name, value in asked.items() if value is not None})
        return await self._transport.call(
            "POST", f"{_HOST}/pull", PullAccepted, body=body.model_dump_json(exclude_none=True).encode()
        )

    async def remove_artifact(self, digest: str) -> RemovalAnswer:
        """DaemonRefused (404): it is not in the cache; (409): it is protected, and why."""
        return await self._transport.call("DELETE", f"{_HOST}/artifacts/{quote(digest, safe='')}", RemovalAnswer)

    async def collect(self) -> GcAnswer:
        """Bring the daemon's cache down to its budget. DaemonRefused (409): none is configured."""
        return await self._transport.call("POST", f"{_HOST}/gc", GcAnswer)

    async def cluster_artifacts(self) -> ClusterArtifacts:
        return await self._transport.call("GET", "/admin/cluster/artifacts", ClusterArtifacts)

    async def cluster_vram(self) -> ClusterVram:
        return await self._transport.call("GET", "/admin/cluster/vram", ClusterVram)

    async def value(self) -> ValueAnswer:
        """What local serving has saved, and what spilled requests have cost."""
        return await self._transport.call("GET", f"{_HOST}/value", ValueAnswer)

    async def load(self, deployment: str) -> LifecycleAccepted:
        return await self._lifecycle("load", deployment)

    async def stop(self, deployment: str) -> LifecycleAccepted:
        """Drain, then stop; the artifact stays in the cache."""
        return await self._lifecycle("stop", deployment)

    async def reset(self, deployment: str) -> ResetAnswer:
        """Clear a failed or crash-looping generation. Synchronous in the daemon."""
        return await self._transport.call("POST", f"{_HOST}/reset", ResetAnswer, body=_deployment_body(deployment))

    async def jobs(self) -> list[Job]:
        """Oldest first."""
        return (await self._transport.call("GET", f"{_HOST}/jobs", JobsAnswer)).jobs

    async def job(self, job_id: str) -> Job:
        return (await self._transport.call("GET", f"{_HOST}/jobs/{quote(job_id, safe='')}", JobAnswer)).job

    async def cancel_job(self, job_id: str) -> Job:
        """Ask a job to end; the answer is the job before it has. DaemonRefused (409): it can't be taken back."""
        path = f"{_HOST}/jobs/{quote(job_id, safe='')}/cancel"
        return (await self._transport.call("POST", path, JobAnswer)).job

    async def follow_job(self, job_id: str, *, last_event_id: str | None = None) -> _JobItems:
        """Updates of one job; ends with its terminal state, which is always yielded.

        Resumes over lost connections. Where the stream ends without a terminal event (the daemon restarted, or its
        replay window has passed) the job itself is read.
        """
        path = f"{_HOST}/jobs/{quote(job_id, safe='')}/stream"
        resume = last_event_id
        while True:
            updates: _JobItems = follow(self._transport, path, job_event, last_event_id=resume)
            # Closed here and now: a stream left to the garbage collector outlives its connection.
            async with aclosing(updates):
                async for item in updates:
                    resume = item.sequence or resume
                    yield item
                    if isinstance(item, JobUpdate) and item.job.terminal:
                        return
            job = await self.job(job_id)
            if job.terminal:
                yield JobUpdate(resume, job)
                return
            await asyncio.sleep(RECONNECT_DELAYS_S[0])

    async def follow_jobs(self, *, last_event_id: str | None = None) -> _JobItems:
        """Updates of all jobs, until the caller stops or the daemon ends the stream."""
        path = f"{_HOST}/jobs/stream"
        updates: _JobItems = follow(self._transport, path, job_event, last_event_id=last_event_id)
        async with aclosing(updates):
            async for item in updates:
                yield item

    async def requests(
        self,
        *,
        status: int | None = None,
        method: str | None = None,
        path: str | None = None,
        offset: int | None = None,
        limit: int | None = None,
    ) -> list[RequestEntry]:
        """Newest first. ``path`` is a substring; the filters are the daemon's."""
        asked = {"status": status, "method": method, "path": path, "offset": offset, "limit": limit}
        params = {name: str(value) for name, value in asked.items() if value is not None}
        return await self._transport.call("GET", "/api/requests", _ENTRIES, params=params)

    async def follow_requests(self, *, last_event_id: str | None = None) -> _RequestItems:
        """Requests as they finish."""
        path = "/api/requests/stream"
        seen: _RequestItems = follow(self._transport, path, request_event, last_event_id=last_event_id)
        async with aclosing(seen):
            async for item in seen:
                yield item

    async def reload(self) -> ReloadAnswer:
        """Load the configuration file again. DaemonRefused (400): the candidate is invalid and nothing changed."""
        return await self._transport.call("POST", "/admin/reload", ReloadAnswer)

    async def config(self) -> ConfigAnswer:
        """The daemon's sb.yml as text with secrets masked, and the loaded revision."""
        return await self._transport.call("GET", "/admin/config", ConfigAnswer)

    async def replace_config(self, text: bytes, *, if_match: str | None = None) -> ReloadAnswer:
        """Put a whole sb.yml in the place of the daemon's and apply it. DaemonRefused (400): it is wrong and nothing
        changed; (409) without a code: ``if_match`` is not the loaded revision any more."""
        return await self._transport.call(
            "PUT",
            "/admin/config",
            ReloadAnswer,
            body=text,
            params=None if if_match is None else {"if_match": if_match},
            headers={"content-type": "application/yaml"},
        )

    async def drift(self) -> DriftAnswer:
        return await self._transport.call("GET", "/admin/drift", DriftAnswer)

    async def _lifecycle(self, operation: str, deployment: str) -> LifecycleAccepted:
        return await self._transport.call(
            "POST", f"{_HOST}/{operation}", LifecycleAccepted, body=_deployment_body(deployment)
        )


def _deployment_body(deployment: str) -> bytes:
    return LifecycleRequest(deployment=deployment).model_dump_json().encode()
