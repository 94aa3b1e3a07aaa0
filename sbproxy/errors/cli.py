"""What the command line itself refuses, before or beside any domain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sbproxy.errors.tree import SbproxyError


class CliError(SbproxyError):
    """Branch: refusals of the command line."""


@dataclass(eq=False)
class ConfigNotNamed(CliError):
    """A verb that needs a configuration got none. ``serving``: a daemon was to start, which `run` does without one."""

    code: ClassVar[str] = "config_not_named"
    serving: bool = False

    def text(self) -> str:
        if self.serving:
            return (
                "no configuration is named; give a file (sbproxy serve sb.yml), set SB_CONFIG_FILE,"
                " or start one model without a file: sbproxy run smollm2-135m-instruct"
            )
        return "no configuration is named; give a file (-f sb.yml) or set SB_CONFIG_FILE"


@dataclass(eq=False)
class NotACatalogModel(CliError):
    """`run` got a reference that is not a catalog id."""

    code: ClassVar[str] = "not_a_catalog_model"
    model: str

    def text(self) -> str:
        return (
            f"{self.model!r} is not a catalog id; run takes certified catalog ids only, without ':' or '/'"
            " (list them with 'sbproxy models list')"
        )


@dataclass(eq=False)
class AcceleratorAbsent(CliError):
    """`--accel` asks for what this machine does not have."""

    code: ClassVar[str] = "accelerator_absent"
    asked: str
    detected: str

    def text(self) -> str:
        return f"--accel {self.asked}: this machine offers {self.detected}; leave it at auto or say {self.detected}"


@dataclass(eq=False)
class PortTaken(CliError):
    """A port that `run` needs is not to be had; seen before anything was fetched."""

    code: ClassVar[str] = "port_taken"
    port: int
    purpose: str
    option: str
    reason: str = "in use"

    def text(self) -> str:
        return (
            f"port {self.port} on 127.0.0.1, wanted for {self.purpose}: {self.reason};"
            f" end what listens there or choose another with {self.option}"
        )


@dataclass(eq=False)
class ModelNotReady(CliError):
    """`run` started the daemon and the model did not come up."""

    code: ClassVar[str] = "model_not_ready"
    model: str
    reason: str

    def text(self) -> str:
        return f"{self.model} did not start: {self.reason}"


@dataclass(eq=False)
class SystemRefused(CliError):
    """The operating system refused a file or a stream that the user named; ``place`` is empty for a stream."""

    code: ClassVar[str] = "system_refused"
    place: str
    reason: str

    def text(self) -> str:
        return f"{self.place or 'writing the output'}: {self.reason}; choose another place, or make room there"


@dataclass(eq=False)
class PartMissing(CliError):
    """A command needs an optional part of the installation."""

    code: ClassVar[str] = "part_missing"
    command: str
    extra: str

    def text(self) -> str:
        return f"{self.command} is not installed here; run: pip install 'sbproxy[{self.extra}]'"


@dataclass(eq=False)
class NoTerminal(CliError):
    """A full-screen command without a terminal. ``instead`` is a command that works in a pipe."""

    code: ClassVar[str] = "no_terminal"
    command: str
    instead: str

    def text(self) -> str:
        return f"{self.command} needs a terminal on input, output and errors; in a script use '{self.instead}'"


@dataclass(eq=False)
class PullsFailed(CliError):
    """Some of several pulls failed; each was reported on its own line."""

    code: ClassVar[str] = "pulls_failed"
    failed: int
    total: int

    def text(self) -> str:
        return f"{self.failed} of {self.total} pulls failed; what came is kept, run it again to resume"


@dataclass(eq=False)
class LockfileUnusable(CliError):
    """A lockfile cannot be made or read."""

    code: ClassVar[str] = "lockfile_unusable"
    lockfile: str
    reason: str

    def text(self) -> str:
        return f"lockfile {self.lockfile}: {self.reason}; write one with 'sbproxy models lock -f FILE'"


@dataclass(eq=False)
class LockDrift(CliError):
    """`serve --locked` met something else than what is locked. ``found`` has one line a deployment."""

    code: ClassVar[str] = "lock_drift"
    lockfile: str
    found: tuple[str, ...]

    def text(self) -> str:
        found = "; ".join(self.found) or "see 'sbproxy models verify-lock'"
        return f"--locked: this machine departs from {self.lockfile}: {found}"


@dataclass(eq=False)
class PlanUnusable(CliError):
    """The file of `apply -p` is not a plan that `plan --out` wrote, or cannot be read."""

    code: ClassVar[str] = "plan_unusable"
    file: str
    reason: str

    def text(self) -> str:
        return f"{self.file} is no plan: {self.reason}; write one with 'sbproxy plan -f FILE --out PLAN'"


@dataclass(eq=False)
class PlanStale(CliError):
    """What a plan was made from has changed since; ``planned`` and ``found`` are revisions."""

    code: ClassVar[str] = "plan_stale"
    what: str
    planned: str
    found: str

    def text(self) -> str:
        return f"{self.what} is {self.found}, not {self.planned} as planned; make a new plan and look at it again"


@dataclass(eq=False)
class ApplyLocked(CliError):
    """Another apply of the same file runs on this machine."""

    code: ClassVar[str] = "apply_locked"
    retryable: ClassVar[bool] = True
    lock: str

    def text(self) -> str:
        return f"another apply holds {self.lock}; wait for its end and try again"


@dataclass(eq=False)
class ServiceUnavailable(CliError):
    """This system has no service manager that `service` can use for this user."""

    code: ClassVar[str] = "service_unavailable"
    reason: str

    def text(self) -> str:
        return (
            f"no systemd of this user can be reached: {self.reason}; log in with a session of your own (or:"
            " loginctl enable-linger), or keep 'sbproxy run MODEL' under your own supervisor"
        )


@dataclass(eq=False)
class ServiceFailed(CliError):
    """systemctl refused; ``command`` are its words."""

    code: ClassVar[str] = "service_failed"
    command: str
    reason: str

    def text(self) -> str:
        return f"systemctl --user {self.command}: {self.reason}; see: journalctl --user -u sbproxy"


@dataclass(eq=False)
class ServiceUnitForeign(CliError):
    """A unit of our name that `service install` did not write."""

    code: ClassVar[str] = "service_unit_foreign"
    unit: str

    def text(self) -> str:
        return f"{self.unit} was not written by 'sbproxy service install'; move it away first"
