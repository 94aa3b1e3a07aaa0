"""`sbproxy apply -f F | -p PLAN`: sends a configuration to a running daemon (contracts sections 9 and 13)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbproxy_cli import diagnostics, output
from sbproxy_cli.admin_args import DEFAULT_URL, PasswordStdinOption, UrlOption, UserOption, connect
from sbproxy_cli.boundary import verb
from sbproxy_cli.invocation import current
from sbproxy_cli.options import ArgvPassword, Format, FormatOption

if TYPE_CHECKING:
    from sbproxy.api.control import ReloadAnswer
    from sbproxy.client import AdminClient
    from sbproxy.config.load import Loaded

DEGRADED = 8
TIMEOUT_S = 60.0
CONFIG_VARIABLE = "SB_APPLY_CONFIG"
BASELINE_VARIABLE = "SB_APPLY_BASELINE"

PlanOption = Annotated[
    Path | None, typer.Option("-p", "--plan", help="A plan that plan --out wrote; the file is SB_APPLY_CONFIG's.")
]
ValidateOnly = Annotated[bool, typer.Option("--validate-only", help="Check everything here and send nothing.")]


@verb("apply")
def apply(
    context: typer.Context,
    plan: PlanOption = None,
    validate_only: ValidateOnly = False,
    admin_url: UrlOption = DEFAULT_URL,
    username: UserOption = "admin",
    password_stdin: PasswordStdinOption = False,
    output_format: FormatOption = Format.text,
    argv_password: ArgvPassword = None,
) -> None:
    """Put a configuration in the place of a running daemon's file, and make it serve it.

    Exit codes: 0 applied, 1 a file cannot be read, 3 it is invalid, 4 the daemon refused it, 5 the plan is stale,
    6 another apply holds the lock, 7 no daemon answers, 8 applied in part.
    """
    path = _path(context, plan)
    if validate_only:
        _validated(_checked(path, plan), output_format)
        return
    from sbproxy_cli.interruption import run_cancellable
    from sbproxy_cli.planning.apply_lock import apply_lock

    with apply_lock(path):
        loaded = _checked(path, plan)
        text = path.read_bytes()
        client = connect(admin_url, username, password_stdin=password_stdin, timeout_s=TIMEOUT_S)
        answer = run_cancellable("apply", _send(client, text))
    _tell(client.url, loaded, answer, output_format)


def _path(context: typer.Context, plan: Path | None) -> Path:
    invocation = current(context)
    if plan is None:
        return invocation.required_config(None)
    if "config" in invocation.typed:
        raise typer.BadParameter(f"give -f or -p, not both; the file of a plan is named by {CONFIG_VARIABLE}")
    named = os.environ.get(CONFIG_VARIABLE)
    if not named:
        raise typer.BadParameter(f"-p needs {CONFIG_VARIABLE}: the path of the configuration that was planned")
    return Path(named)


def _checked(path: Path, plan: Path | None) -> Loaded:
    """The document, valid, and as it was when ``plan`` was made. Raises ConfigError leaves, PlanUnusable, PlanStale."""
    from sbproxy.daemon.checks import load_checked

    loaded = load_checked(path, os.environ, resolve_secrets=False).loaded
    for warning in loaded.warnings:
        diagnostics.note(f"warning: {warning.text()}")
    if plan is not None:
        from sbproxy_cli.planning.plan_file import read_plan
        from sbproxy_cli.planning.proposal import read_baseline

        named = os.environ.get(BASELINE_VARIABLE)
        baseline = read_baseline(Path(named), path).loaded if named else None
        read_plan(plan).require_fresh(loaded, baseline)
    return loaded


def _validated(loaded: Loaded, output_format: Format) -> None:
    if output_format is Format.json:
        fields = {"config": str(loaded.path), "applied": False, "proposed_revision": loaded.revision}
        output.envelope("apply", fields)
    else:
        output.lines(f"apply: {loaded.path} is valid; nothing was sent")


async def _send(client: AdminClient, text: bytes) -> ReloadAnswer:
    async with client:
        return await client.replace_config(text)


def _tell(url: str, loaded: Loaded, answer: ReloadAnswer, output_format: Format) -> None:
    if output_format is Format.json:
        fields = {"config": str(loaded.path), "applied": True, "url": url, **answer.model_dump(mode="json")}
        output.envelope("apply", fields)
    else:
        output.lines(f"apply: applied to {url}, config revision {answer.config_revision}")
    if not answer.fully_applied:
        diagnostics.note(f"apply: did not take effect: {', '.join(answer.degraded)}")
        raise typer.Exit(DEGRADED)
