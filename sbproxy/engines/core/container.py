"""The command lines that run one engine in a container of Docker or Podman, as pure functions. Document 1, "vLLM in a
container".

Each container has an internal network of its own (no way out) and a published port on 127.0.0.1. Podman serves that
port; Docker publishes nothing from an internal network, but this host alone reaches the container's own address on
it. Which of both holds is asked of the runtime once the container runs (``addresses``). A network that is not
internal but without masquerading would serve the port on Docker too, and would let packets out.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from sbproxy.engines.core.settings import GIB
from sbproxy.errors.engines import EngineBlocked, EngineIncompatible

RuntimeKind = Literal["docker", "podman"]
MODEL_PLACE = "/models"
HUB_PLACE = "/hub"
LABEL = "sbproxy.engine-token"
DEFAULT_SHM_GIB = 2.0
"""What the workers of tensor parallelism share; the runtimes' own 64 MiB end them."""
PIDS_LIMIT = 4096
TMPFS_GIB = 16
LOOPBACK = "127.0.0.1"

_IMAGE = re.compile(r"(?P<name>[a-z0-9][A-Za-z0-9._:/-]{0,254})@sha256:(?P<digest>[0-9a-f]{64})")
_TAG = re.compile(r":[A-Za-z0-9_][A-Za-z0-9_.-]*$")
_UNSPEAKABLE = re.compile(r'[,"\n\r]')


@dataclass(frozen=True, slots=True)
class Image:
    """An image that cannot change: ``reference`` is repository@sha256:digest."""

    reference: str
    digest: str


@dataclass(frozen=True, slots=True)
class Person:
    """The user that owns the artifact store, by number: in the container it may read the weights and no more."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """What one container is to be. ``command`` are the words after the image, ``entrypoint`` its program.

    ``environ`` holds no secret; ``secrets_file`` is a file of ours (0600) with NAME=value lines. ``hub`` is the
    folder that an engine which fetches a repository may write; it is None for every verified artifact.
    """

    kind: RuntimeKind
    name: str
    token: str
    image: Image
    entrypoint: str
    command: tuple[str, ...]
    port: int
    model: Path | None
    devices: tuple[int, ...]
    environ: Mapping[str, str]
    secrets_file: Path
    person: Person
    shm_gib: float = DEFAULT_SHM_GIB
    hub: Path | None = None


def pinned_image(engine: str, text: str | None) -> Image:
    """Raises EngineBlocked for an image that is missing, tagged or not pinned by digest."""
    if text is None:
        raise EngineBlocked(
            engine,
            "no image is pinned for it in this version, because none of its digests could be verified; set"
            f" engines.{engine}.launch: container and engines.{engine}.image: repository@sha256:<digest>",
        )
    match = _IMAGE.fullmatch(text)
    if match is None:
        raise EngineBlocked(engine, f"image {text[:120]!r} is not pinned by digest; write repository@sha256:<64 hex>")
    if _TAG.search(match["name"].rpartition("/")[2]):
        raise EngineBlocked(engine, f"image {text[:120]!r} has a tag; write repository@sha256:<64 hex> without it")
    return Image(text, match["digest"])


def container_name(deployment: str, generation: int, replica: int, token: str) -> str:
    """Unique on this machine, because the token is; readable in ``docker ps``."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", deployment)[:64]
    return f"sbproxy-{plain}-g{generation}-r{replica}-{token[:12]}"


def network_name(name: str) -> str:
    return f"{name}-net"


def create_network(plan: ContainerPlan) -> tuple[str, ...]:
    """A network of one container. Only an engine that fetches a repository itself gets a way out."""
    inside = ("--internal",) if plan.hub is None else ()
    return ("network", "create", "--driver", "bridge", *inside, "--label", _label(plan.token), network_name(plan.name))


def run_container(engine: str, plan: ContainerPlan) -> tuple[str, ...]:
    """``run`` in the foreground, so that what the container writes and its exit status are those of this command.

    The root file system is read-only; engines compile kernels and keep caches below HOME, which is a tmpfs that may
    hold programs. Raises EngineIncompatible when a path or a device cannot be said.
    """
    return (
        *("run", "--rm", "--init", "--pull", "never", "--name", plan.name, "--label", _label(plan.token)),
        *("--network", network_name(plan.name), "--publish", f"{LOOPBACK}:{plan.port}:{plan.port}/tcp"),
        *("--log-driver", "none"),
        *_confinement(plan),
        *_mounts(engine, plan),
        *("--shm-size", str(int(plan.shm_gib * GIB))),
        *_devices(plan),
        *_environment(plan),
        *("--entrypoint", plan.entrypoint, plan.image.reference, *plan.command),
    )


def ask_image(image: Image, entrypoint: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """Run a program of the image that only prints: no network, no device, nothing of this machine."""
    return (
        *("run", "--rm", "--pull", "never", "--network", "none", "--log-driver", "none", "--read-only"),
        *("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--pids-limit", str(PIDS_LIMIT)),
        *("--tmpfs", _tmpfs(), "--env", "HOME=/tmp", "--env", "HF_HUB_OFFLINE=1"),
        *("--entrypoint", entrypoint, image.reference, *words),
    )


def addresses(answer: Any, name: str, port: int) -> tuple[tuple[str, str], ...]:
    """(where the engine can be asked, the subnet that this host must be in to ask there) of an ``inspect`` answer.

    The published loopback port comes first, with an empty subnet: the runtime holds it. Empty while the container is
    not up, and for an answer of another form.
    """
    try:
        settings = answer[0]["NetworkSettings"]
        bound = (settings.get("Ports") or {}).get(f"{port}/tcp") or []
        found = [(LOOPBACK, "") for each in bound if each["HostIp"] == LOOPBACK and int(each["HostPort"]) == port]
        own = (settings.get("Networks") or {}).get(network_name(name)) or {}
        if own.get("IPAddress"):
            address = ipaddress.IPv4Interface(f"{own['IPAddress']}/{int(own['IPPrefixLen'])}")
            found.append((str(address.ip), str(address.network)))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return ()
    return tuple(found)


def belongs(answer: Any, token: str) -> bool:
    """Whether an ``inspect`` answer (container or network) carries our label with this token."""
    try:
        labels = answer[0].get("Labels") or answer[0].get("labels") or answer[0]["Config"]["Labels"]
        return bool(labels[LABEL] == token)
    except (KeyError, IndexError, TypeError, AttributeError):
        return False


def exit_code(returncode: int | None) -> int | None:
    """A container's exit status as Popen would give it: above 128 it names the signal that ended the engine."""
    if returncode is not None and 128 < returncode <= 128 + 64:
        return 128 - returncode
    return returncode


def _label(token: str) -> str:
    return f"{LABEL}={token}"


def _confinement(plan: ContainerPlan) -> tuple[str, ...]:
    # Rootless Podman maps our user to root inside unless told to keep it.
    keep = ("--userns", "keep-id") if plan.kind == "podman" and plan.person.uid != 0 else ()
    return (
        *("--read-only", "--tmpfs", _tmpfs(), *keep, "--user", f"{plan.person.uid}:{plan.person.gid}"),
        *("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--pids-limit", str(PIDS_LIMIT)),
    )


def _tmpfs() -> str:
    return f"/tmp:rw,exec,nosuid,nodev,size={TMPFS_GIB}g"  # noqa: S108 - inside the container


def _mounts(engine: str, plan: ContainerPlan) -> tuple[str, ...]:
    words: tuple[str, ...] = ()
    if plan.model is not None:
        words += ("--mount", f"type=bind,src={_said(engine, plan.model)},dst={MODEL_PLACE},readonly")
    if plan.hub is not None:
        words += ("--mount", f"type=bind,src={_said(engine, plan.hub)},dst={HUB_PLACE}")
    return words


def _said(engine: str, path: Path) -> str:
    """A mount is said as a list with commas; a path with one could say more than a path."""
    text = str(path)
    if not PurePosixPath(text).is_absolute() or _UNSPEAKABLE.search(text):
        raise EngineIncompatible(engine, f"{text!r} cannot be mounted: a mount's path is absolute, without , or quotes")
    return text


def _devices(plan: ContainerPlan) -> tuple[str, ...]:
    """Exactly the chosen devices; by NVML's numbers, which both runtimes use."""
    if not plan.devices:
        return ()
    if plan.kind == "podman":
        return tuple(word for index in plan.devices for word in ("--device", f"nvidia.com/gpu={index}"))
    # Docker reads the value as CSV, so that a list needs quotes of its own.
    return ("--gpus", f'"device={",".join(str(index) for index in plan.devices)}"')


def _environment(plan: ContainerPlan) -> tuple[str, ...]:
    fixed = {"HOME": "/tmp", "USER": "sbproxy", "LOGNAME": "sbproxy"}  # noqa: S108 - inside the container
    said = tuple(word for name, value in (fixed | dict(plan.environ)).items() for word in ("--env", f"{name}={value}"))
    return (*said, "--env-file", str(plan.secrets_file))
