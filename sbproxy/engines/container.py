"""Runs an engine in a container: pulls its image by digest, starts it, finds it, ends it, removes what is left.

What is said to Docker or Podman, and why, is ``core.container``; the life of the runtime's command, which is our
child, is ``process``.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import socket
import time
from dataclasses import dataclass, replace
from pathlib import Path

from sbproxy.engines.core.container import (
    ContainerPlan,
    Image,
    addresses,
    ask_image,
    create_network,
    exit_code,
    run_container,
)
from sbproxy.engines.core.model import ExitKind
from sbproxy.engines.driver import AcquireProgress
from sbproxy.engines.runtime_tool import ACT_TIMEOUT_S, RuntimeTool, ToolFailed
from sbproxy.errors.engines import EngineAcquisitionFailed, EngineIncompatible, EngineLaunchFailed

PULL_TIMEOUT_S = 3 * 3600.0
HELP_TIMEOUT_S = 180.0
CLOSE_PATIENCE_S, CLOSE_PAUSE_S = 60.0, 1.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Daemon:
    """What serves the tool: its version, or why it cannot serve us."""

    version: str = ""
    refusal: str = ""


def daemon_of(tool: RuntimeTool) -> Daemon:
    """Ask whether the tool works here. Blocking, no network; about 50 ms."""
    try:
        facts = json.loads(tool.run("info", "--format", "{{json .}}"))
        version = str(facts["ServerVersion"] if tool.kind == "docker" else facts["version"]["Version"])
        rootless = tool.kind == "docker" and "name=rootless" in (facts.get("SecurityOptions") or [])
    except ToolFailed as failure:
        return Daemon(refusal=str(failure))
    except (ValueError, KeyError, TypeError, AttributeError):
        return Daemon(refusal=f"{tool.kind} info did not tell its version")
    if not version:
        return Daemon(refusal=f"{tool.kind} has no running daemon")
    if rootless:
        # It publishes nothing from an internal network, and its addresses are in a network namespace of its own.
        return Daemon(refusal="rootless docker reaches no container on an internal network; use podman")
    return Daemon(version)


@dataclass(frozen=True, slots=True)
class ImageShelf:
    """The images of one tool. Blocking."""

    engine: str
    tool: RuntimeTool

    def has(self, image: Image) -> bool:
        """Whether the image of exactly this digest is here. False when it cannot be asked."""
        try:
            found = self.tool.inspect("image", "inspect", image.reference)
            digests = found[0]["RepoDigests"] if found else []
        except (ToolFailed, KeyError, IndexError, TypeError):
            return False
        return any(str(each).endswith(f"@sha256:{image.digest}") for each in digests or [])

    def pull(self, image: Image, progress: AcquireProgress) -> None:
        """Fetch it by digest. Raises EngineAcquisitionFailed."""
        done = 0

        def line(text: str) -> None:
            nonlocal done
            done += 1
            progress(f"{image.reference}: {text}"[:300], done, None)

        progress(image.reference, 0, None)
        try:
            self.tool.follow("pull", image.reference, line=line, timeout_s=PULL_TIMEOUT_S)
        except (ToolFailed, OSError) as failure:
            raise EngineAcquisitionFailed(self.engine, "container", str(failure)) from failure
        if not self.has(image):
            reason = f"{self.tool.kind} pulled {image.reference} and does not have that digest"
            raise EngineAcquisitionFailed(self.engine, "container", reason)

    def ask(self, image: Image, entrypoint: str, words: tuple[str, ...]) -> str:
        """What the program prints when it is asked for its options. Raises EngineIncompatible."""
        try:
            return self.tool.run(*ask_image(image, entrypoint, words), timeout_s=HELP_TIMEOUT_S)
        except ToolFailed as failure:
            raise EngineIncompatible(self.engine, f"image {image.reference}: {failure}") from failure


class ContainerEnclosure:
    """An :class:`Enclosure`. ``plan`` says all but the port and the engine's words, which each start makes anew."""

    def __init__(self, engine: str, tool: RuntimeTool, plan: ContainerPlan, key_variable: str) -> None:
        self._engine = engine
        self._tool = tool
        self._plan = plan
        self._key_variable = key_variable

    def open(self, port: int, api_key: str, words: tuple[str, ...]) -> tuple[str, ...]:
        """See :class:`Enclosure`."""
        plan = replace(self._plan, port=port, command=words)
        said = run_container(self._engine, plan)
        _write_secret(plan.secrets_file, f"{self._key_variable}={api_key}\n")
        try:
            self._tool.run(*create_network(plan), timeout_s=ACT_TIMEOUT_S)
        except ToolFailed as failure:
            self._tool.remove(plan.name, plan.token)
            raise EngineLaunchFailed(self._engine, ExitKind.CRASH, str(failure)) from failure
        return said

    def hosts(self, port: int) -> tuple[str, ...]:
        """See :class:`Enclosure`."""
        try:
            answer = self._tool.inspect("container", "inspect", self._plan.name)
        except ToolFailed:
            return ()
        found = addresses(answer, self._plan.name, port)
        return tuple(host for host, subnet in found if not subnet or on_link(host, subnet))

    def stop(self, grace_s: float) -> None:
        """See :class:`Enclosure`."""
        # The runtime counts whole seconds and kills after them.
        seconds = max(1, round(grace_s))
        try:
            self._tool.run("stop", "--time", str(seconds), self._plan.name, timeout_s=seconds + ACT_TIMEOUT_S)
        except ToolFailed as failure:
            log.info("%s: %s", self._plan.name, failure)

    def close(self) -> bool:
        """See :class:`Enclosure`. Patient, because a container that is not gone still holds its memory."""
        deadline = time.monotonic() + CLOSE_PATIENCE_S
        while not self._tool.remove(self._plan.name, self._plan.token):
            if time.monotonic() > deadline:
                log.error("container %s could not be removed; the next start of the daemon ends it", self._plan.name)
                return False
            time.sleep(CLOSE_PAUSE_S)
        return True

    def exit_code(self, returncode: int) -> int | None:
        """See :class:`Enclosure`."""
        return exit_code(returncode)


def on_link(host: str, subnet: str) -> bool:
    """Whether this machine is itself in that subnet, so that the address cannot be somebody else's. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect((host, 9))
            return ipaddress.ip_address(asked.getsockname()[0]) in ipaddress.ip_network(subnet)
        except (OSError, ValueError):
            return False


def _write_secret(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
