"""Waits until the one model of a run answers a request, and tells meanwhile what is being done and for how long."""

from __future__ import annotations

import asyncio
import time

import httpx

from sbproxy.api.envelope import ApiAnswer
from sbproxy.api.model_host import DeploymentStatus, Job
from sbproxy.client import AdminClient, JobUpdate
from sbproxy.errors.cli import ModelNotReady
from sbproxy.errors.client import DaemonUnreachable
from sbproxy_cli.local_run.plan import DEPLOYMENT, USERNAME, RunPlan
from sbproxy_cli.progress import TransferProgress

POLL_S = 0.5
PROBE_TIMEOUT_S = 120.0
MAX_REASON_CHARS = 500


class _OpenAiError(ApiAnswer):
    """The part of an OpenAI error body that is for people."""

    class Detail(ApiAnswer):
        message: str

    error: Detail


async def until_answering(plan: RunPlan) -> None:
    """Return when the gateway has relayed one answer of the model. Raises ModelNotReady with the daemon's reason."""
    async with AdminClient(plan.admin_url, USERNAME, plan.password) as client:
        with TransferProgress() as progress:
            story = _Story(plan, progress)
            jobs = asyncio.create_task(_tell_jobs(client, story), name="job progress")
            try:
                await _until_ready(client, plan, story)
            finally:
                jobs.cancel()
                await asyncio.gather(jobs, return_exceptions=True)
    await _probe(plan)


class _Story:
    """Turns jobs and states into lines. Seconds are the daemon's own where a job tells them."""

    def __init__(self, plan: RunPlan, progress: TransferProgress) -> None:
        self._plan = plan
        self._progress = progress
        self._done: set[str] = set()
        self._began = time.monotonic()

    def job(self, job: Job) -> None:
        if job.kind not in ("pull", "provision") or job.id in self._done:
            return
        subject = f"engine {job.subject}" if job.kind == "provision" else job.subject
        if not job.terminal:
            word = "fetching" if job.kind == "provision" else job.state
            self._progress.update(subject, word, job.progress.completed_bytes, job.progress.total_bytes)
            return
        self._done.add(job.id)
        if job.state == "ready":
            seconds = ((job.terminal_at_ms or job.updated_at_ms) - job.created_at_ms) / 1000
            what = "verified and ready" if job.kind == "pull" else "ready"
            self._progress.finish(subject, f"{subject}: {what} after {seconds:.1f} s")
        self._began = time.monotonic()

    def started(self, row: DeploymentStatus) -> None:
        engine = f"{row.engine} {row.engine_version}" if row.engine_version else row.engine
        seconds = time.monotonic() - self._began
        self._progress.say(f"{self._plan.subject}: started with {engine} after {seconds:.1f} s")


async def _tell_jobs(client: AdminClient, story: _Story) -> None:
    while True:
        try:
            async for update in client.follow_jobs():
                if isinstance(update, JobUpdate):
                    story.job(update.job)
        except DaemonUnreachable:
            pass  # the listener is not up yet, or the daemon is on its way down
        await asyncio.sleep(POLL_S)


async def _until_ready(client: AdminClient, plan: RunPlan, story: _Story) -> None:
    """Poll as section 11 says; the job stream only illustrates."""
    while True:
        try:
            rows = (await client.status()).deployments
        except DaemonUnreachable:
            rows = []
        for row in rows:
            if row.deployment != DEPLOYMENT:
                continue
            if row.state == "ready":
                story.started(row)
                return
            if row.state == "failed":
                raise ModelNotReady(plan.subject, row.last_error or row.reason_code or "no reason was recorded")
        await asyncio.sleep(POLL_S)


async def _probe(plan: RunPlan) -> None:
    """One tiny request through the gateway, as a user would send it."""
    path, body = plan.probe()
    async with httpx.AsyncClient(trust_env=False, timeout=PROBE_TIMEOUT_S) as http:
        try:
            answer = await http.post(plan.endpoint + path, json=body)
        except httpx.HTTPError as error:
            raise ModelNotReady(plan.subject, f"it does not answer: {str(error) or type(error).__name__}") from None
    if not answer.is_success:
        raise ModelNotReady(plan.subject, f"a first request got HTTP {answer.status_code}: {_message(answer)}")


def _message(answer: httpx.Response) -> str:
    try:
        return _OpenAiError.model_validate_json(answer.content).error.message[:MAX_REASON_CHARS]
    except ValueError:
        return answer.text[:MAX_REASON_CHARS]
