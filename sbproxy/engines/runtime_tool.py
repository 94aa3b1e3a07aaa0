"""The command line of Docker or Podman on this machine: found on PATH, asked, and told to remove what is ours.

What is said to it is decided by ``core.container``. Its environment leads to this machine's own daemon alone.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sbproxy.engines.core.container import RuntimeKind, belongs, network_name

ASK_TIMEOUT_S, ACT_TIMEOUT_S = 10.0, 60.0
MAX_ANSWER_BYTES = 1024 * 1024
KINDS: tuple[RuntimeKind, ...] = ("docker", "podman")

_PASSED = frozenset(
    {
        "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME",
        "XDG_DATA_HOME", "DBUS_SESSION_BUS_ADDRESS", "DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "HTTP_PROXY", "HTTPS_PROXY",
        "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR",
    }
)  # fmt: skip

_ABSENT = re.compile(
    r"no such (container|network|object|image)|network \S+ not found|unable to find network|not known", re.IGNORECASE
)


class ToolFailed(Exception):
    """The tool ended with a failure or not in time; the text is its last words, bounded."""


@dataclass(frozen=True, slots=True)
class RuntimeTool:
    """One container tool. Blocking."""

    kind: RuntimeKind
    program: Path
    environ: Mapping[str, str]

    @classmethod
    def all(cls, environ: Mapping[str, str]) -> list[RuntimeTool]:
        """Those on PATH, in the order in which they are tried."""
        found = ((kind, shutil.which(kind, path=environ.get("PATH", os.defpath))) for kind in KINDS)
        return [cls(kind, Path(path).absolute(), tool_environment(environ)) for kind, path in found if path]

    @classmethod
    def at(cls, program: Path, environ: Mapping[str, str]) -> RuntimeTool | None:
        """The tool of that path, when it is one and can be run."""
        kind = next((kind for kind in KINDS if kind == program.name), None)
        if kind is None or not os.access(program, os.X_OK):
            return None
        return cls(kind, program, tool_environment(environ))

    def run(self, *words: str, timeout_s: float = ASK_TIMEOUT_S) -> str:
        """What it prints on stdout. Raises ToolFailed."""
        what = f"{self.kind} {' '.join(words[:2])}"
        try:
            done = subprocess.run(
                [str(self.program), *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout_s,
                env=dict(self.environ),
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ToolFailed(f"{what} did not answer within {timeout_s:g} s") from None
        except OSError as failure:
            raise ToolFailed(f"{what}: {failure.strerror or failure}") from failure
        if done.returncode != 0:
            said = done.stderr[-4096:].decode("utf-8", "replace").strip().rpartition("\n")[2][:200]
            raise ToolFailed(f"{what} failed: {said or f'exit status {done.returncode}'}")
        return done.stdout[:MAX_ANSWER_BYTES].decode("utf-8", "replace")

    def follow(self, *words: str, line: Callable[[str], None], timeout_s: float) -> None:
        """Run it and hand over each line as it comes (``pull``). Raises ToolFailed."""
        with subprocess.Popen(
            [str(self.program), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(self.environ),
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None  # noqa: S101 - asked for a pipe
            timer = threading.Timer(timeout_s, process.kill)
            timer.start()
            last = ""
            try:
                while text := process.stdout.readline(4096):
                    last = text.strip() or last
                    line(text.strip())
                status = process.wait()
            except BaseException:
                process.kill()
                raise
            finally:
                timer.cancel()
        if status != 0:
            raise ToolFailed(f"{self.kind} {words[0]} failed: {last[:200] or f'exit status {status}'}")

    def inspect(self, *words: str) -> Any:
        """The answer of an ``inspect``; None when there is no such thing. Raises ToolFailed."""
        try:
            return json.loads(self.run(*words))
        except ToolFailed as failure:
            if _ABSENT.search(str(failure)):
                return None
            raise
        except (ValueError, RecursionError):
            raise ToolFailed(f"{self.kind} {' '.join(words[:2])} answered no JSON") from None

    def owned(self, name: str, token: str) -> bool:
        """Whether a container of that name and token is here, running or not; False when it cannot be asked."""
        try:
            return belongs(self.inspect("container", "inspect", name), token)
        except ToolFailed:
            return False

    def remove(self, name: str, token: str) -> bool:
        """End and remove the container and its network, if they carry the token; whether neither is left."""
        container = self._remove("container", name, token, "--force", "--volumes")
        return self._remove("network", network_name(name), token) and container

    def _remove(self, kind: str, name: str, token: str, *how: str) -> bool:
        try:
            found = self.inspect(kind, "inspect", name)
            if found and belongs(found, token):
                self.run(kind, "rm", *how, name, timeout_s=ACT_TIMEOUT_S)
        except ToolFailed as failure:
            # The runtime's own --rm may have been quicker.
            return _ABSENT.search(str(failure)) is not None
        return True


def tool_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """A daemon on another machine would mount other folders and publish other ports, so only a local socket passes."""
    kept = {name: value for name, value in environ.items() if name in _PASSED}
    host = environ.get("DOCKER_HOST", "")
    return kept | ({"DOCKER_HOST": host} if host.startswith("unix://") else {"DOCKER_CONTEXT": "default"})
