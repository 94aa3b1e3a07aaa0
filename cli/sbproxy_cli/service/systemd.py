"""The user's systemd: the unit file in its place, and `systemctl --user` for everything else."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sbproxy.errors.cli import ServiceFailed, ServiceUnavailable, ServiceUnitForeign
from sbproxy_cli.service.unit import MARK, NAME, ServicePlan

TIMEOUT_S = 60.0
_PROPERTIES = ("LoadState", "ActiveState", "SubState", "MainPID", "Result")
_NO_MANAGER = ("Failed to connect to bus", "Failed to connect to user scope bus", "not been booted with systemd")


@dataclass(frozen=True, slots=True)
class ServiceState:
    """``pid`` is 0 while nothing runs; ``state`` and ``result`` are systemd's words."""

    installed: bool
    state: str
    substate: str
    pid: int
    result: str

    @property
    def running(self) -> bool:
        return self.state == "active"


class UserService:
    """Blocking. Raises ServiceUnavailable where there is no systemd for this user, ServiceFailed for its refusals."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        if sys.platform != "linux":
            raise ServiceUnavailable(f"services are systemd user units, and this is {sys.platform}")
        found = shutil.which("systemctl", path=environ.get("PATH"))
        if found is None:
            raise ServiceUnavailable("there is no systemctl on PATH")
        home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
        self._systemctl = found
        self._environ = dict(environ)
        self.unit = Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "systemd" / "user" / NAME
        self.banner = Path(environ.get("XDG_STATE_HOME") or home / ".local" / "state") / "sbproxy" / "service.txt"

    def install(self, plan: ServicePlan) -> ServiceState:
        """Write the unit, enable it and (re)start it. A unit that systemd refuses is taken away again."""
        before = self._own_text()
        self._private_banner()
        self.unit.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._write(plan.text())
        try:
            self._run("daemon-reload")
            self._run("enable", NAME)
            self._run("restart", NAME)
        except (ServiceFailed, ServiceUnavailable):
            self._put_back(before)
            raise
        return self.state()

    def uninstall(self) -> bool:
        """Stop and remove it; False when there was none. The model's files stay."""
        if self._own_text() is None:
            return False
        self._run("disable", "--now", NAME)
        self.unit.unlink(missing_ok=True)
        self.banner.unlink(missing_ok=True)
        self._run("daemon-reload")
        return True

    def state(self) -> ServiceState:
        told = self._run("show", NAME, f"--property={','.join(_PROPERTIES)}")
        values = dict(line.split("=", 1) for line in told.splitlines() if "=" in line)
        pid = values.get("MainPID", "0")
        return ServiceState(
            installed=self.unit.is_file(),
            state=values.get("ActiveState", "unknown"),
            substate=values.get("SubState", "unknown"),
            pid=int(pid) if pid.isdecimal() else 0,
            result=values.get("Result", "unknown"),
        )

    def _own_text(self) -> str | None:
        """The unit that stands there; None when none does. Raises ServiceUnitForeign for one that is not ours."""
        try:
            text = self.unit.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None
        if not text.startswith(MARK):
            raise ServiceUnitForeign(str(self.unit))
        return text

    def _private_banner(self) -> None:
        self.banner.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(self.banner, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        self.banner.chmod(0o600)

    def _write(self, text: str) -> None:
        partial = self.unit.with_name(f".{NAME}.new")
        partial.write_text(text, encoding="utf-8")
        partial.chmod(0o644)
        partial.replace(self.unit)

    def _put_back(self, before: str | None) -> None:
        if before is None:
            self.unit.unlink(missing_ok=True)
        else:
            self._write(before)
        # The first refusal is what the user has to know.
        with contextlib.suppress(ServiceFailed, ServiceUnavailable):
            self._run("daemon-reload")

    def _run(self, *words: str) -> str:
        try:
            done = subprocess.run(
                [self._systemctl, "--user", "--no-pager", *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=TIMEOUT_S,
                env=self._environ,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ServiceFailed(" ".join(words), f"no answer within {TIMEOUT_S:g} s") from None
        said = (done.stderr or done.stdout)[-4096:].decode("utf-8", "replace").strip()
        if done.returncode == 0:
            return done.stdout.decode("utf-8", "replace")
        if any(words_of in said for words_of in _NO_MANAGER):
            raise ServiceUnavailable(said.splitlines()[0][:200])
        raise ServiceFailed(" ".join(words), (said.splitlines() or [f"exit status {done.returncode}"])[-1][:300])
