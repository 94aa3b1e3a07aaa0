"""The table of the `models` verbs; `models` alone lists."""

from __future__ import annotations

import typer

from sbproxy_cli.models import cache, deployments, listing, pull

app = typer.Typer(help="List, pull, remove and run models.", rich_markup_mode=None, invoke_without_command=True)


@app.callback()
def models(context: typer.Context) -> None:
    """Without a verb: the same as list."""
    if context.invoked_subcommand is None:
        listing.list_models(context=context)


app.command("list")(listing.list_models)
app.command("show")(listing.show_model)
app.command("pull")(pull.pull)
app.command("remove")(cache.remove)
app.command("prune")(cache.prune)
app.command("ps")(deployments.ps)
app.command("load")(deployments.load)
app.command("stop")(deployments.stop)
app.command("reset")(deployments.reset)
