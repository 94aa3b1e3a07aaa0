"""`sbproxy devices`: what models can be held in here, and what a daemon of this machine has reserved of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbproxy_cli import output
from sbproxy_cli.admin_args import DEFAULT_URL, PASSWORD_VARIABLE, UserOption, connect
from sbproxy_cli.boundary import verb
from sbproxy_cli.options import ArgvPassword, Format, FormatOption
from sbproxy_cli.sizes import human_size

if TYPE_CHECKING:
    from sbproxy.api.model_host import DeploymentStatus, HostStatus
    from sbproxy.client import AdminClient
    from sbproxy.devices.core.model import Device

HEADER = ("INDEX", "KIND", "NAME", "TOTAL", "FREE", "COMPUTE", "RESERVED BY")
HOLDING = ("preparing", "ready", "draining")
"""States in which a replica has its memory."""
CPU_INDEX = -1
TIMEOUT_S = 5.0

DaemonUrlOption = Annotated[
    str, typer.Option("--admin-url", envvar="SB_ADMIN_URL", help="The daemon of this machine, if one runs.")
]


@verb("devices")
def devices(
    context: typer.Context,
    admin_url: DaemonUrlOption = DEFAULT_URL,
    username: UserOption = "admin",
    output_format: FormatOption = Format.text,
    argv_password: ArgvPassword = None,
) -> None:
    """Show the CPU and every accelerator: memory, what is free of it, and which deployments hold the rest.

    What is reserved is asked of the daemon when SB_ADMIN_PASSWORD is set; everything else needs none.
    """
    from sbproxy.devices.inventory import MachineInventory

    inventory = MachineInventory()
    machine = inventory.probe()
    status, reason = _reservations(admin_url, username)
    rows = [_fields(device, status) for device in machine.devices]
    if output_format is Format.json:
        body = {
            "devices": rows,
            "nvidia_driver": machine.nvidia_driver,
            "cuda": machine.cuda_version,
            "nvidia_reason": inventory.nvidia_reason,
            "daemon": {"url": admin_url, "answered": status is not None, "reason": reason},
        }
        output.envelope("devices", body)
        return
    output.table(HEADER, [_cells(row) for row in rows], right=frozenset({"INDEX", "TOTAL", "FREE"}))
    if inventory.nvidia_reason is not None and machine.nvidia_driver is not None:
        output.outline(f"NVIDIA: {inventory.nvidia_reason}")
    if reason is not None:
        output.outline(f"reservations: unknown, {reason}")


def _reservations(url: str, username: str) -> tuple[HostStatus | None, str | None]:
    """The daemon's status, or why there is none."""
    from sbproxy.client.core.target import admin_target
    from sbproxy.errors.client import ClientError
    from sbproxy_cli.interruption import run_cancellable

    if not admin_target(url).loopback:
        return None, f"{url} is not on this machine"
    if not os.environ.get(PASSWORD_VARIABLE):
        return None, f"{PASSWORD_VARIABLE} is not set"
    client = connect(url, username, password_stdin=False, timeout_s=TIMEOUT_S)
    try:
        return run_cancellable("devices", _status(client)), None
    except ClientError as error:
        return None, str(error)


async def _status(client: AdminClient) -> HostStatus:
    async with client:
        return await client.status()


def _fields(device: Device, status: HostStatus | None) -> dict[str, Any]:
    capability = device.compute_capability
    return {
        "index": device.index,
        "kind": device.kind,
        "name": device.name,
        "total_bytes": device.total_bytes,
        "free_bytes": device.free_bytes,
        "compute_capability": f"{capability[0]}.{capability[1]}" if capability else None,
        "supports_fp8": device.supports_fp8,
        "utilization": device.compute_utilization,
        "occupancy": round(device.memory_occupancy, 4),
        "reserved": None if status is None else [_held(row) for row in status.deployments if _holds(row, device)],
    }


def _holds(row: DeploymentStatus, device: Device) -> bool:
    # A replica without a device set lives in the memory of the CPU.
    held = row.selected_devices or [CPU_INDEX]
    return row.state in HOLDING and row.memory is not None and device.index in held


def _held(row: DeploymentStatus) -> dict[str, Any]:
    return {
        "deployment": row.deployment,
        "replica": row.replica,
        "generation": row.generation,
        "state": row.state,
        "estimated_bytes": row.memory.total_bytes if row.memory else None,
        "resident_bytes": row.resident_bytes,
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    held = row["reserved"]
    holders = "?" if held is None else ", ".join(_holder(each) for each in held) or "-"
    return (
        "-" if row["index"] < 0 else str(row["index"]),
        row["kind"],
        row["name"],
        human_size(row["total_bytes"]),
        human_size(row["free_bytes"]),
        row["compute_capability"] or "-",
        holders,
    )


def _holder(held: dict[str, Any]) -> str:
    name = held["deployment"] if held["replica"] == 0 else f"{held['deployment']}/{held['replica']}"
    return f"{name} {human_size(held['estimated_bytes'])}"
