"""The table of the `models` verbs; `models` alone lists."""

from __future__ import annotations

import typer

from sbproxy_cli.models.cache import prune, remove
from sbproxy_cli.models.deployments import load, ps, reset, stop
from sbproxy_cli.models.listing import list_models, show_model
from sbproxy_cli.models.lock import lock, verify_lock
from sbproxy_cli.models.pull import pull

app = typer.Typer(help="List, pull, remove and run models.", rich_markup_mode=None, invoke_without_command=True)


@app.callback()
def models(context: typer.Context) -> None:
    """Without a verb: the same as list."""
    if context.invoked_subcommand is None:
        list_models(context=context)


app.command("list")(list_models)
app.command("show")(show_model)
app.command("pull")(pull)
app.command("remove")(remove)
app.command("prune")(prune)
app.command("lock")(lock)
app.command("verify-lock")(verify_lock)
app.command("ps")(ps)
app.command("load")(load)
app.command("stop")(stop)
app.command("reset")(reset)
