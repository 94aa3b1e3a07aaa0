"""Start of ``sbproxy tui``: refuses to run without a terminal, then hands the screen to the application."""

from __future__ import annotations

import sys

from sbproxy.client import AdminClient


def run(url: str, username: str, password: str) -> int:
    """Show the console until the user quits. Exit code 2 when there is no terminal to show it on."""
    # Textual would write escapes to a redirected stderr and hang (design/console.md section 3).
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        sys.stderr.write(
            "sbproxy tui: this needs a terminal; in a script use 'sbproxy models ps --format json' instead\n"
        )
        return 2
    from sbproxy_tui.app import ConsoleApp

    app = ConsoleApp(AdminClient(url, username, password), target=url, user=username)
    app.run()
    return app.return_code or 0
