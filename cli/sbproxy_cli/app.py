"""The root of the commands: global flags and the table of nouns. Each noun imports what it needs when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sbproxy_cli import (
    admin,
    apply,
    completions,
    config,
    devices,
    diagnostics,
    doctor,
    plan,
    run,
    serve,
    tui,
    validate,
    version_command,
)
from sbproxy_cli.invocation import Invocation, LogFormat, LogLevel
from sbproxy_cli.models import app as models
from sbproxy_cli.service import app as service

_GLOBAL_FLAGS = ("config", "log_level", "log_format", "shutdown_grace_ms", "grace_time", "check")

app = typer.Typer(
    name="sbproxy",
    help="Serve, host and watch language models. The global options may stand anywhere on the line.",
    epilog="Without a command, sbproxy [PATH] serves that configuration.",
    add_completion=False,
    no_args_is_help=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(
    context: typer.Context,
    config_file: Annotated[
        Path | None, typer.Option("--config", "-f", envvar="SB_CONFIG_FILE", help="The configuration (sb.yml).")
    ] = None,
    log_level: Annotated[
        LogLevel | None, typer.Option("--log-level", envvar="SB_LOG_LEVEL", help="info when serving, else warn.")
    ] = None,
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", envvar="SB_LOG_FORMAT", help="Shape of the daemon's log lines.")
    ] = LogFormat.compact,
    shutdown_grace_ms: Annotated[
        int | None,
        typer.Option(
            "--shutdown-grace-ms",
            envvar="SBPROXY_SHUTDOWN_GRACE_MS",
            min=0,
            help="How long a stopping daemon waits for requests in flight.",
        ),
    ] = None,
    grace_time: Annotated[
        int | None,
        typer.Option(
            "--grace-time",
            envvar="SB_GRACE_TIME",
            min=0,
            help="The same in seconds, as older versions spell it; --shutdown-grace-ms wins.",
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="With serve: validate the configuration and exit.")] = False,
    locked: Annotated[
        bool, typer.Option("--locked", help="With serve: refuse to start unless the lockfile matches.")
    ] = False,
    version: Annotated[bool, typer.Option("--version", "-V", help="Print the version and exit.")] = False,
) -> None:
    """Remember the global flags. `--version` was answered before the parser started."""
    typed = frozenset(name for name in _GLOBAL_FLAGS if _on_the_line(context, name))
    level = log_level or (LogLevel.info if context.invoked_subcommand == "serve" else LogLevel.warn)
    # A daemon sets up its own log, with the secrets to mask that only it knows.
    if context.invoked_subcommand not in ("serve", "run"):
        diagnostics.log_to_stderr(level, log_format.value)
    context.obj = Invocation(config_file, level, log_format, shutdown_grace_ms, grace_time, check, typed, locked)


def _on_the_line(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source("config_file" if name == "config" else name)
    return source is not None and source.name == "COMMANDLINE"


app.command("serve")(serve.serve)
app.command("run")(run.run)
app.command("validate")(validate.validate)
app.command("plan")(plan.plan)
app.command("apply")(apply.apply)
app.command("doctor")(doctor.doctor)
app.command("devices")(devices.devices)
app.command("tui")(tui.tui)
app.command("completions")(completions.completions)
app.command("version")(version_command.version)
app.add_typer(config.app, name="config")
app.add_typer(models.app, name="models")
app.add_typer(service.app, name="service")
app.add_typer(admin.app, name="admin")
