"""`service install|uninstall|status`: keeps one model running, also after a restart of this machine."""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from sbproxy_cli import diagnostics, output
from sbproxy_cli.boundary import verb
from sbproxy_cli.options import CacheDirOption, EngineName, EngineOption, Format, FormatOption, VariantOption
from sbproxy_cli.run import Accel, AccelOption, AdminPortOption, ModelArgument, NameOption, PortOption, checked_model

if TYPE_CHECKING:
    from sbproxy_cli.service.systemd import ServiceState
    from sbproxy_cli.service.unit import ServicePlan

NOT_RUNNING = 1

app = typer.Typer(help="Keep one model running as a service of yours.", rich_markup_mode=None, no_args_is_help=True)


@app.command("install")
@verb("service install")
def install(
    context: typer.Context,
    model: ModelArgument,
    name: NameOption = None,
    port: PortOption = 8080,
    admin_port: AdminPortOption = None,
    engine: EngineOption = EngineName.auto,
    accel: AccelOption = Accel.auto,
    variant: VariantOption = None,
    cache_dir: CacheDirOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the unit and change nothing.")] = False,
    output_format: FormatOption = Format.text,
) -> None:
    """Write a systemd user unit that runs one catalog model, and start it; a second install replaces the first."""
    checked = checked_model(context, model, name, port, admin_port, engine, accel, variant, cache_dir)
    from sbproxy_cli.service.systemd import UserService
    from sbproxy_cli.service.unit import ServicePlan, run_options

    service = UserService(os.environ)
    flags = [
        ("--variant", str(checked.artifact.variant.id)),
        ("--engine", checked.artifact.engine),
        ("--name", name),
        ("--port", str(port)),
        ("--admin-port", None if admin_port is None else str(admin_port)),
        ("--accel", None if accel is Accel.auto else accel.value),
        # The service has none of this shell's variables, so the place that holds here is written out.
        ("--cache-dir", str(checked.foundation.cache_root)),
    ]
    try:
        plan = ServicePlan((sys.executable, "-m", "sbproxy_cli"), model, run_options(flags), str(service.banner))
        text = plan.text()
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if dry_run:
        _previewed(plan, text, str(service.unit), output_format)
        return
    state = service.install(plan)
    _installed(plan, state, str(service.unit), output_format)


@app.command("uninstall")
@verb("service uninstall")
def uninstall(context: typer.Context, output_format: FormatOption = Format.text) -> None:
    """Stop the service and remove its unit. The model's files stay in the cache."""
    from sbproxy_cli.service.systemd import UserService

    service = UserService(os.environ)
    removed = service.uninstall()
    if output_format is Format.json:
        output.envelope("service.uninstall", {"unit": str(service.unit), "removed": removed})
    else:
        output.lines(f"{service.unit} is removed" if removed else "no service is installed")


@app.command("status")
@verb("service status")
def status(context: typer.Context, output_format: FormatOption = Format.text) -> None:
    """Tell whether the service runs. Exit codes: 0 it does, 1 it does not."""
    from sbproxy_cli.service.systemd import UserService

    service = UserService(os.environ)
    state = service.state()
    if output_format is Format.json:
        fields = {"unit": str(service.unit), "running": state.running, **dataclasses.asdict(state)}
        output.envelope("service.status", {**fields, "access": str(service.banner)})
    elif not state.installed:
        output.lines("no service is installed; sbproxy service install MODEL makes one")
    else:
        output.lines(_sentence(state), f"access: {service.banner}")
    if not state.running:
        raise typer.Exit(NOT_RUNNING)


def _previewed(plan: ServicePlan, text: str, unit: str, output_format: Format) -> None:
    if output_format is Format.json:
        fields = {"model": plan.model, "unit": unit, "argv": list(plan.argv), "access": plan.banner}
        output.envelope("service.install", {**fields, "dry_run": True, "text": text})
        return
    output.block(text)


def _installed(plan: ServicePlan, state: ServiceState, unit: str, output_format: Format) -> None:
    if output_format is Format.json:
        fields = {"model": plan.model, "unit": unit, "argv": list(plan.argv), "access": plan.banner}
        output.envelope("service.install", {**fields, "state": state.state})
        return
    output.lines(f"installed {unit}", _sentence(state), f"addresses and the admin password: {plan.banner}")
    diagnostics.note("it ends with your last session; to keep it beyond: loginctl enable-linger")


def _sentence(state: ServiceState) -> str:
    pid = f", process {state.pid}" if state.pid else ""
    result = f", last result {state.result}" if state.result not in ("success", "unknown") else ""
    return f"state: {state.state} ({state.substate}){pid}{result}"
