"""Entry point: answers `--version` before anything heavy is imported, then hands the arguments to the commands."""

from __future__ import annotations

import os
import sys

from sbproxy_cli.argv import COMPLETE_VARIABLE, arrange, asks_version


def main() -> int:
    """Run the command line in ``sys.argv``; returns or exits with the code of contracts section 9."""
    argv = sys.argv[1:]
    if asks_version(argv):
        from sbproxy_cli.version import version_line

        sys.stdout.write(version_line() + "\n")
        return 0
    from sbproxy_cli.app import app
    from sbproxy_cli.diagnostics import unexpected

    if COMPLETE_VARIABLE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
    try:
        app(args=arrange(argv), prog_name="sbproxy")
    except Exception as bug:  # noqa: BLE001 - the top of the process
        return unexpected(bug)
    return 0


if __name__ == "__main__":
    sys.exit(main())
