"""The console application: feeds deliver events, the reducer keeps the state, widgets show selections of it.

Nothing here decides what a state means (``view``) or how the daemon is asked (``sbproxy.client``).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.widgets import Footer

from sbproxy.client import AdminClient
from sbproxy.errors import SbproxyError
from sbproxy_tui.feeds.status import StatusFeed
from sbproxy_tui.keys import KEYS
from sbproxy_tui.view import select
from sbproxy_tui.view.events import ActionFailed, ActionSucceeded, ConsoleEvent, Ticked
from sbproxy_tui.view.state import ConsoleState, reduce
from sbproxy_tui.widgets.confirm import Confirm
from sbproxy_tui.widgets.deployment_table import DeploymentTable
from sbproxy_tui.widgets.lines import Lines


class ConsoleApp(App[None]):
    """One screen: deployments, their jobs, and whether the daemon answers."""

    TITLE = "SBproxy"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #status { height: 1; text-style: bold; }
    #deployments { height: 1fr; min-height: 3; }
    #empty { height: auto; }
    #detail { height: auto; max-height: 4; }
    #jobs-title { height: 1; text-style: bold; }
    #jobs { height: auto; max-height: 30%; }
    #notice { height: auto; max-height: 3; }
    """
    BINDINGS = [Binding(key.key, key.action, key.words, show=key.footer, id=key.id) for key in KEYS]

    def __init__(self, client: AdminClient, *, target: str, user: str) -> None:
        super().__init__()
        now = time.monotonic()
        self.state = ConsoleState(target=target, user=user, started_at=now, now=now)
        self._client = client
        self._feed = StatusFeed(client, self.deliver)

    def compose(self) -> ComposeResult:
        yield Lines(id="status")
        yield DeploymentTable()
        yield Lines(id="empty")
        yield Lines(id="detail")
        yield Lines(id="jobs-title")
        yield Lines(id="jobs")
        yield Lines(id="notice")
        yield Footer()

    @property
    def _table(self) -> DeploymentTable:
        return self.screen_stack[0].query_one(DeploymentTable)

    def on_mount(self) -> None:
        self.run_worker(self._feed.run(), name="status-feed")
        self.set_interval(1.0, lambda: self.deliver(Ticked(time.monotonic())))
        self._table.focus()
        self._show()

    async def on_unmount(self) -> None:
        await self._client.close()

    def deliver(self, event: ConsoleEvent) -> None:
        """Take one event: reduce, then show what changed."""
        self.state = reduce(self.state, event)
        self._show()

    def on_data_table_row_highlighted(self) -> None:
        self._show()

    def _show(self) -> None:
        state = self.state
        # A dialog is a screen of its own; what lies under it goes on being shown.
        base = self.screen_stack[0]
        base.query_one("#status", Lines).show(select.status_line(state))
        base.query_one(DeploymentTable).show(select.deployment_rows(state))
        base.query_one("#empty", Lines).show(select.empty_note(state))
        base.query_one("#detail", Lines).show(select.detail(state, self._table.selected))
        jobs = select.job_lines(state)
        base.query_one("#jobs-title", Lines).show("jobs" if jobs else "")
        base.query_one("#jobs", Lines).show("\n".join(jobs))
        base.query_one("#notice", Lines).show(select.notice(state))

    def action_load(self) -> None:
        self._perform("load", self._client.load)

    def action_stop(self) -> None:
        deployment = self._table.selected_deployment
        if deployment is None or not self.state.may_act:
            self._perform("stop", self._client.stop)
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self._perform("stop", self._client.stop)

        self.push_screen(Confirm(select.stop_question(self.state, deployment)), answered)

    def action_reset(self) -> None:
        self._perform("reset", self._client.reset)

    def action_refresh(self) -> None:
        self._feed.wake()

    def action_cursor_down(self) -> None:
        self._table.action_cursor_down()

    def action_cursor_up(self) -> None:
        self._table.action_cursor_up()

    def _perform(self, verb: str, call: Callable[[str], Awaitable[object]]) -> None:
        deployment = self._table.selected_deployment
        if deployment is None:
            self.deliver(ActionFailed(f"{verb}: no deployment is selected"))
        elif not self.state.may_act:
            self.deliver(ActionFailed(f"{verb}: not sent, the daemon does not answer"))
        else:
            self.run_worker(self._ask(verb, deployment, call), name=f"{verb} {deployment}")

    async def _ask(self, verb: str, deployment: str, call: Callable[[str], Awaitable[object]]) -> None:
        try:
            await call(deployment)
        except SbproxyError as error:
            self.deliver(ActionFailed(f"{verb} {deployment}: {error}"))
        else:
            self.deliver(ActionSucceeded(f"{verb} {deployment}: accepted"))
        self._feed.wake()
