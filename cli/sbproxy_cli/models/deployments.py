"""`models ps|load|stop|reset`: deployments of a running daemon, through its admin API."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbproxy.errors import SbproxyError
from sbproxy_cli import output
from sbproxy_cli.admin_args import DEFAULT_URL, PasswordStdinOption, UrlOption, UserOption, connect
from sbproxy_cli.boundary import verb
from sbproxy_cli.interruption import run_cancellable
from sbproxy_cli.options import ArgvPassword, Format, FormatOption, NoWaitOption

if TYPE_CHECKING:
    from sbproxy.api.model_host import DeploymentStatus, Job
    from sbproxy.client import AdminClient

Ask = Callable[["AdminClient"], Coroutine[Any, Any, dict[str, Any]]]
PS_HEADER = ("DEPLOYMENT", "STATE", "PORT", "ACTIVE", "QUEUED", "DEVICES", "REASON")
DeploymentArgument = Annotated[str, typer.Argument(help="A deployment id of the daemon's configuration.")]


@verb("models ps")
def ps(
    context: typer.Context,
    admin_url: UrlOption = DEFAULT_URL,
    username: UserOption = "admin",
    password_stdin: PasswordStdinOption = False,
    output_format: FormatOption = Format.text,
    argv_password: ArgvPassword = None,
) -> None:
    """Show what runs: state, port, requests and devices of every replica."""

    async def ask(client: AdminClient) -> dict[str, Any]:
        status = await client.status()
        if output_format is Format.text:
            _print_rows(status.deployments)
        return status.model_dump(mode="json", exclude={"schema_version"})

    body = _with_client("ps", ask, admin_url, username, password_stdin)
    if output_format is Format.json:
        output.envelope("models.ps", body)


@verb("models load")
def load(
    context: typer.Context,
    deployment: DeploymentArgument,
    no_wait: NoWaitOption = False,
    admin_url: UrlOption = DEFAULT_URL,
    username: UserOption = "admin",
    password_stdin: PasswordStdinOption = False,
    output_format: FormatOption = Format.text,
    argv_password: ArgvPassword = None,
) -> None:
    """Start a deployment, or confirm that it is ready."""
    _lifecycle("load", "loaded", deployment, admin_url, username, password_stdin, no_wait, output_format)


@verb("models stop")
def stop(
    context: typer.Context,
    deployment: DeploymentArgument,
    no_wait: NoWaitOption = False,
    admin_url: UrlOption = DEFAULT_URL,
    username: UserOption = "admin",
    password_stdin: PasswordStdinOption = False,
    output_format: FormatOption = Format.text,
    argv_password: ArgvPassword = None,
) -> None:
    """Drain a deployment and stop it; its files stay in the cache."""
    _lifecycle("stop", "stopped", deployment, admin_url, username, password_stdin, no_wait, output_format)


@verb("models reset")
def reset(
    context: typer.Context,
    deployment: DeploymentArgument,
    no_wait: NoWaitOption = False,
    admin_url: UrlOption = DEFAULT_URL,
    username: UserOption = "admin",
    password_stdin: PasswordStdinOption = False,
    output_format: FormatOption = Format.text,
    argv_password: ArgvPassword = None,
) -> None:
    """Clear a failed or crash-looping deployment so that it can start again."""

    async def ask(client: AdminClient) -> dict[str, Any]:
        answer = (await client.reset(deployment)).model_dump(mode="json")
        return answer if no_wait or not answer["job_id"] else {**answer, "job": await _finish(client, answer["job_id"])}

    body = _with_client("reset", ask, admin_url, username, password_stdin)
    _answer("reset", f"{deployment}: reset, now {body['state']}", body, output_format)


def _lifecycle(
    operation: str,
    done: str,
    deployment: str,
    admin_url: str,
    username: str,
    password_stdin: bool,
    no_wait: bool,
    output_format: Format,
) -> None:
    async def ask(client: AdminClient) -> dict[str, Any]:
        call = client.load if operation == "load" else client.stop
        answer = (await call(deployment)).model_dump(mode="json", exclude={"schema_version"})
        return answer if no_wait else {**answer, "job": await _finish(client, answer["job_id"])}

    body = _with_client(operation, ask, admin_url, username, password_stdin)
    told = f"{deployment}: {operation} queued as job {body['job_id']}" if no_wait else f"{deployment}: {done}"
    _answer(operation, told, body, output_format)


async def _finish(client: AdminClient, job_id: str) -> dict[str, Any]:
    """Follow a job to its end and return its last record; JobFailed when it ended badly."""
    from sbproxy.client import JobUpdate
    from sbproxy.errors.client import JobFailed
    from sbproxy_cli.progress import TransferProgress

    last: Job | None = None
    with TransferProgress() as progress:
        async for update in client.follow_job(job_id):
            if isinstance(update, JobUpdate):
                last = update.job
                progress.update(
                    f"{last.kind} {last.subject}",
                    last.state,
                    last.progress.completed_bytes,
                    last.progress.total_bytes,
                )
    if last is None:
        last = await client.job(job_id)
    if last.state == "failed":
        raise JobFailed(last.id, last.kind, last.subject, await _why(client, last))
    return last.model_dump(mode="json")


async def _why(client: AdminClient, job: Job) -> str:
    """A lifecycle job's error is only a code (contracts section 17); the replica that failed knows the cause."""
    told = job.error or job.error_code or "no reason was recorded"
    try:
        rows = (await client.status()).deployments
    except SbproxyError:
        return told
    causes = [row.last_error for row in rows if row.deployment == job.subject and row.state == "failed"]
    cause = next((cause for cause in causes if cause), None)
    return told if cause is None else f"{cause} ({job.error_code})"


def _with_client(operation: str, ask: Ask, url: str, username: str, password_stdin: bool) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        async with connect(url, username, password_stdin=password_stdin) as client:
            return await ask(client)

    return run_cancellable(f"models {operation}", run())


def _answer(operation: str, told: str, body: dict[str, Any], output_format: Format) -> None:
    if output_format is Format.json:
        output.envelope(f"models.{operation}", body)
    else:
        output.lines(told)


def _print_rows(rows: list[DeploymentStatus]) -> None:
    if not rows:
        output.lines("no deployments are configured")
        return
    output.table(PS_HEADER, [_row(row) for row in rows], right=frozenset({"PORT", "ACTIVE", "QUEUED"}))


def _row(row: DeploymentStatus) -> tuple[str, ...]:
    devices = ",".join("cpu" if index < 0 else str(index) for index in row.selected_devices)
    if len(row.selected_devices) > 1:
        devices += f" tp{len(row.selected_devices)}"
    name = row.deployment if row.replica == 0 else f"{row.deployment}/{row.replica}"
    port = "-" if row.port is None else str(row.port)
    reason = row.reason_code or "-"
    if row.last_error:
        reason = f"{row.reason_code}: {row.last_error}" if row.reason_code else row.last_error
    return (name, row.state, port, str(row.active_requests), str(row.queued_requests), devices or "-", reason)
