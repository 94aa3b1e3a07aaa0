"""What may not be loaded, because start-up is part of the product (architecture, "Who may import whom")."""

from __future__ import annotations

import subprocess
import sys

import pytest


def loaded_after(code: str) -> set[str]:
    """Top-level modules of a fresh interpreter after running ``code``."""
    program = f"{code}\nimport sys; print('\\n'.join(sorted({{name.split('.')[0] for name in sys.modules}})))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return set(run.stdout.split())


HELP = """
import sys, io, contextlib
from sbproxy_cli.__main__ import main
sys.argv = ['sbproxy', {argv!r}]
with contextlib.redirect_stdout(io.StringIO()):
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, stop.code
"""


@pytest.mark.parametrize(
    ("code", "forbidden"),
    [
        (HELP.format(argv="--help"), {"aiohttp", "textual", "httpx", "uvloop", "httptools", "prometheus_client"}),
        (HELP.format(argv="--version"), {"typer", "rich", "pydantic", "yaml", "aiohttp", "textual", "httpx"}),
        ("import sbproxy.client", {"typer", "textual", "aiohttp"}),
        ("import sbproxy.api.model_host, sbproxy.api.control", {"httpx", "typer", "textual", "aiohttp"}),
    ],
    ids=["help", "version", "client", "api"],
)
def test_not_loaded(code: str, forbidden: set[str]) -> None:
    assert loaded_after(code) & forbidden == set()
