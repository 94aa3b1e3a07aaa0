"""Runs between fork and exec of an engine; started as a script with the standard library only.

Ties the process to its daemon's life, completes the ownership record with its own pid (which the engine keeps), and
becomes the engine. A preexec_fn would run Python between fork and exec of a threaded daemon, which can deadlock.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1
CANNOT_START = 127
ON_LINUX = os.uname().sysname == "Linux"


def start_fingerprint(pid: int) -> str | None:
    """What tells this process from a later one with the same pid; None when none runs (a zombie does not)."""
    if ON_LINUX:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return None
        # After the command name: field 0 is the state, field 19 the start in clock ticks since boot.
        return None if fields[0] in "ZX" else f"{boot}:{fields[19]}"
    asked = subprocess.run(
        ["/bin/ps", "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False, timeout=10
    )
    state, _, started = asked.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else started.strip()


def die_with_parent() -> None:
    """Linux: the kernel kills this process, also after exec, when the thread that forked it ends."""
    if ON_LINUX:
        import ctypes

        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def complete_record(record: Path) -> None:
    """Add the engine's identity to the record that the daemon wrote before it forked."""
    content = json.loads(record.read_text())
    pid = os.getpid()
    content["child"] = {"pid": pid, "start": start_fingerprint(pid), "pgid": os.getpgid(0)}
    partial = record.with_suffix(".shim")
    partial.write_text(json.dumps(content))
    partial.replace(record)


def main(record: str, owner: int, program: str, arguments: list[str]) -> None:
    """Never returns: the engine takes over, or the exit status says that it could not be started."""
    try:
        die_with_parent()
        complete_record(Path(record))
        # The daemon may have died before the kernel knew of our wish; then nobody would ever end us.
        if os.getppid() != owner:
            raise SystemExit(CANNOT_START)
        os.execv(program, [program, *arguments])  # noqa: S606
    except OSError as failure:
        sys.stderr.write(f"error: cannot start the engine: {failure.strerror}\n")
        raise SystemExit(CANNOT_START) from None


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:])
