"""`sbproxy run MODEL`: one catalog model on this machine, without a configuration file (contracts section 11)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbproxy.errors.cli import AcceleratorAbsent, NotACatalogModel
from sbproxy_cli import diagnostics, output
from sbproxy_cli.boundary import verb
from sbproxy_cli.invocation import current
from sbproxy_cli.options import CacheDirOption, EngineName, EngineOption, VariantOption
from sbproxy_cli.sizes import human_size

if TYPE_CHECKING:
    from sbproxy.catalog.core.model import ResolvedArtifact
    from sbproxy.daemon.foundation import Foundation
    from sbproxy_cli.local_run.plan import RunPlan


class Accel(StrEnum):
    auto = "auto"
    cuda = "cuda"
    metal = "metal"
    cpu = "cpu"


PortOption = Annotated[int, typer.Option("--port", min=1, max=65535, help="Where the model answers.")]
AdminPortOption = Annotated[
    int | None, typer.Option("--admin-port", min=1, max=65535, help="Where the admin API listens; any free port.")
]


ModelArgument = Annotated[str, typer.Argument(help="A catalog id, such as smollm2-135m-instruct.")]
NameOption = Annotated[str | None, typer.Option("--name", help="The model name that clients use; the catalog id.")]
AccelOption = Annotated[Accel, typer.Option("--accel", help="Insist on an accelerator.")]


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """A model that this machine can run, and what it would stand on."""

    artifact: ResolvedArtifact
    foundation: Foundation


@verb("run", daemon=True)
def run(
    context: typer.Context,
    model: ModelArgument,
    name: NameOption = None,
    port: PortOption = 8080,
    admin_port: AdminPortOption = None,
    engine: EngineOption = EngineName.auto,
    accel: AccelOption = Accel.auto,
    variant: VariantOption = None,
    cache_dir: CacheDirOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the configuration and start nothing.")] = False,
) -> None:
    """Fetch one model, start it, and print how to reach it. Ctrl-C stops and cleans up."""
    checked = checked_model(context, model, name, port, admin_port, engine, accel, variant, cache_dir)
    artifact = checked.artifact
    plan = _plan(artifact, name, port, admin_port, accel, cache_dir)
    if dry_run:
        _print_configuration(plan)
        return
    from sbproxy_cli.local_run.ports import require_free

    require_free(plan.port, "the model", "--port")
    require_free(plan.admin_port, "the admin API", "--admin-port")
    _tell(artifact, plan)
    from sbproxy_cli.local_run.private_file import private_config
    from sbproxy_cli.local_run.session import run_session

    with private_config(plan.document()) as path:
        run_session(path, plan, current(context))


def checked_model(
    context: typer.Context,
    model: str,
    name: str | None,
    port: int,
    admin_port: int | None,
    engine: EngineName,
    accel: Accel,
    variant: str | None,
    cache_dir: Path | None,
) -> CheckedModel:
    """What `run` and `service install` refuse before anything is fetched. Raises typer.BadParameter, NotACatalogModel,
    AcceleratorAbsent and leaves of CatalogError."""
    invocation = current(context)
    if "config" in invocation.typed:
        raise typer.BadParameter("run writes its own configuration; use 'sbproxy serve -f FILE' for yours")
    if admin_port == port:
        raise typer.BadParameter("--port and --admin-port must differ")
    if name is not None and not 1 <= len(name) <= 128:
        raise typer.BadParameter("--name must have 1 to 128 characters")
    if model.startswith(("hf:", "-")) or ":" in model or "/" in model:
        raise NotACatalogModel(model)
    from sbproxy_cli.local import open_local

    foundation: Foundation = open_local(None, cache_dir=cache_dir).foundation
    artifact = foundation.resolve(model, variant, engine.engine)
    _require_accelerator(foundation, accel)
    return CheckedModel(artifact, foundation)


def _plan(
    artifact: ResolvedArtifact,
    name: str | None,
    port: int,
    admin_port: int | None,
    accel: Accel,
    cache_dir: Path | None,
) -> RunPlan:
    import secrets

    from sbproxy_cli.local_run.plan import RunPlan
    from sbproxy_cli.local_run.ports import free_port

    return RunPlan(
        model=artifact.model.id,
        variant=artifact.variant.id,
        engine=artifact.engine,
        alias=name or artifact.model.id,
        port=port,
        admin_port=admin_port or free_port(port),
        password=secrets.token_hex(32),
        acceleration=accel.value,
        cache_dir=str(cache_dir.absolute()) if cache_dir else None,
        modality=artifact.model.modality,
    )


def _require_accelerator(foundation: Foundation, accel: Accel) -> None:
    machine = foundation.devices.probe()
    detected = machine.accelerated[0].kind if machine.accelerated else "cpu"
    if accel is not Accel.auto and accel.value != detected:
        raise AcceleratorAbsent(accel.value, detected)


def _print_configuration(plan: RunPlan) -> None:
    from sbproxy_cli.local_run.private_file import as_yaml

    output.lines(
        f"# what 'sbproxy run {plan.model}' would start; nothing was started",
        "# the password is new each time; keep such a file private (mode 0600)",
    )
    output.block(as_yaml(plan.document()))


def _tell(artifact: ResolvedArtifact, plan: RunPlan) -> None:
    size = human_size(artifact.variant.total_size_bytes)
    diagnostics.note(
        f"{plan.model}: {artifact.model.params} parameters, {size}, license {artifact.model.license},"
        f" from {artifact.variant.source}"
    )
    diagnostics.note(f"Preparing {plan.subject} with {plan.engine}. Ctrl-C stops it.")
