"""Probes outside of our own rooms: programs on PATH, shared memory, the model hub. Each is short and bounded."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PROBE_TIMEOUT_S = 2.0
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the kernel's mount, nothing of ours is written there
DEFAULT_HUB = "https://huggingface.co"


def programs() -> dict[str, Any]:
    """container_runtime, containers, package_managers, git, python, nvidia_smi (contracts section 10)."""
    docker, podman = shutil.which("docker"), shutil.which("podman")
    git = shutil.which("git")
    return {
        "nvidia_smi": shutil.which("nvidia-smi"),
        "container_runtime": "docker" if docker else "podman" if podman else None,
        "containers": {
            "docker": docker is not None,
            "podman": podman is not None,
            "daemon_reachable": _docker_answers(),
        },
        "package_managers": {"brew": shutil.which("brew") is not None, "apt": shutil.which("apt-get") is not None},
        "git": {"path": git, "version": _git_version(git)},
        "python": {
            "version": platform.python_version(),
            "pip": importlib.util.find_spec("pip") is not None,
            "uv": shutil.which("uv") is not None,
        },
    }


def shared_memory() -> dict[str, Any]:
    try:
        room = os.statvfs(SHARED_MEMORY)
    except OSError:
        return {"path": str(SHARED_MEMORY), "total_bytes": None, "available_bytes": None}
    return {
        "path": str(SHARED_MEMORY),
        "total_bytes": room.f_blocks * room.f_frsize,
        "available_bytes": room.f_bavail * room.f_frsize,
    }


def hub(environ: Mapping[str, str], *, online: bool) -> dict[str, Any]:
    """Where the model hub is; only when ``online`` whether a TCP connection can be made to it. No token is sent."""
    endpoint = environ.get("HF_ENDPOINT") or DEFAULT_HUB
    token = environ.get("HF_TOKEN") or environ.get("HUGGING_FACE_HUB_TOKEN")
    reachable, reason = _connects(endpoint) if online else (None, "not asked; doctor --online tries a connection")
    return {"endpoint": endpoint, "token_present": bool(token), "reachable": reachable, "reason": reason}


def free_bytes(folder: Path) -> int | None:
    """Free room on the file system that holds ``folder``, or would hold it."""
    for place in (folder, *folder.parents):
        try:
            return shutil.disk_usage(place).free
        except OSError:
            continue
    return None


def unwritable(folder: Path) -> str | None:
    """Why nothing can be stored in ``folder``, which may have yet to be made; None when it can."""
    place = next((each for each in (folder, *folder.parents) if each.exists()), None)
    if place is None or not place.is_dir():
        return f"{place or folder} is no folder"
    if not os.access(place, os.W_OK | os.X_OK):
        return "no permission to write there" if place == folder else f"it is not there, and {place} is not writable"
    read_only = bool(os.statvfs(place).f_flag & os.ST_RDONLY)
    return "it is mounted read-only" if read_only else None


def _git_version(git: str | None) -> str | None:
    if git is None:
        return None
    try:
        asked = subprocess.run([git, "--version"], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return asked.stdout.strip().removeprefix("git version ")[:64] or None


def _docker_answers() -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_TIMEOUT_S)
        try:
            probe.connect("/var/run/docker.sock")
        except OSError:
            return False
    return True


def _connects(endpoint: str) -> tuple[bool, str | None]:
    try:
        parts = urlsplit(endpoint)
        address = (parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
        with socket.create_connection(address, timeout=PROBE_TIMEOUT_S):
            return True, None
    except OSError as error:
        return False, (error.strerror or str(error) or type(error).__name__)[:200]
    except ValueError:
        return False, "HF_ENDPOINT is no address"
