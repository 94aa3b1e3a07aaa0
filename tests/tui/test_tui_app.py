"""The console against a client of its own Protocol shape: keys, confirmation, and a link that goes and comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from sbproxy.api.model_host import HostStatus, Job
from sbproxy.client import AdminClient
from sbproxy.errors.client import DaemonUnreachable
from sbproxy_tui.app import ConsoleApp
from sbproxy_tui.keys import KEYS
from sbproxy_tui.view.events import Ticked
from sbproxy_tui.widgets.confirm import Confirm
from sbproxy_tui.widgets.deployment_table import DeploymentTable
from sbproxy_tui.widgets.lines import Lines
from support.console_data import job, row, status
from support.snapshot import check_snapshot


class ScriptedDaemon:
    """Answers like an AdminClient; ``down`` makes it unreachable."""

    def __init__(self) -> None:
        self.rows = [row(), row(deployment="other", state="failed", reason_code="crash_loop", resident_bytes=None)]
        self.jobs_shown = [job()]
        self.called: list[tuple[str, str]] = []
        self.down = False
        self.closed = False

    async def status(self) -> HostStatus:
        if self.down:
            raise DaemonUnreachable("http://127.0.0.1:9090", "connection refused")
        return status(*self.rows)

    async def jobs(self) -> list[Job]:
        return self.jobs_shown

    async def load(self, deployment: str) -> None:
        self.called.append(("load", deployment))

    async def stop(self, deployment: str) -> None:
        self.called.append(("stop", deployment))

    async def reset(self, deployment: str) -> None:
        self.called.append(("reset", deployment))

    async def close(self) -> None:
        self.closed = True


def console(daemon: ScriptedDaemon) -> ConsoleApp:
    return ConsoleApp(cast("AdminClient", daemon), target="http://127.0.0.1:9090", user="admin")


def text(app: ConsoleApp, name: str) -> str:
    return app.screen_stack[0].query_one(f"#{name}", Lines).shown


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - a screen has no event to wait for
            await asyncio.sleep(0.02)


async def settled(app: ConsoleApp, start: str) -> None:
    await until(lambda: text(app, "status").startswith(start))


async def test_keys_act_on_the_row_under_the_cursor() -> None:
    daemon = ScriptedDaemon()
    app = console(daemon)
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(app, "LIVE")
        assert app.screen.query_one(DeploymentTable).row_count == 2
        await pilot.press("l", "j", "c", "k", "l")
        await pilot.pause()
        assert daemon.called == [("load", "smol"), ("reset", "other"), ("load", "smol")]
        assert text(app, "notice") == "load smol: accepted"
    assert daemon.closed


@pytest.mark.parametrize(("answer", "called"), [("y", [("stop", "smol")]), ("n", []), ("escape", [])])
async def test_a_stop_is_asked_before_it_is_sent(answer: str, called: list[tuple[str, str]]) -> None:
    daemon = ScriptedDaemon()
    app = console(daemon)
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(app, "LIVE")
        await pilot.press("x")
        assert isinstance(app.screen, Confirm)
        app.deliver(Ticked(app.state.now))
        await pilot.press(answer)
        await pilot.pause()
        assert daemon.called == called


async def test_a_daemon_that_goes_and_comes_back() -> None:
    daemon = ScriptedDaemon()
    app = console(daemon)
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(app, "LIVE")
        daemon.down = True
        await pilot.press("r")
        await settled(app, "OFFLINE")
        assert app.screen.query_one(DeploymentTable).row_count == 2
        await pilot.press("l")
        assert daemon.called == []
        daemon.down = False
        await pilot.press("r")
        await settled(app, "LIVE")


async def test_every_replica_is_shown_and_keys_act_on_its_deployment() -> None:
    daemon = ScriptedDaemon()
    daemon.rows = [row(), row(replica=1, state="failed"), row(deployment="other")]
    app = console(daemon)
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(app, "LIVE")
        table = app.screen.query_one(DeploymentTable)
        assert [table.get_row_at(index)[:2] for index in range(3)] == [
            ["smol", "ready"], ["smol/1", "failed"], ["other", "ready"],
        ]  # fmt: skip
        await pilot.press("j", "c", "j", "l")
        await pilot.pause()
        assert daemon.called == [("reset", "smol"), ("load", "other")]


async def test_rows_that_vanish_take_their_keys_with_them() -> None:
    daemon = ScriptedDaemon()
    app = console(daemon)
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(app, "LIVE")
        daemon.rows = []
        await pilot.press("r")
        await until(lambda: app.screen.query_one(DeploymentTable).row_count == 0)
        await pilot.press("l")
        assert daemon.called == []
        assert "no deployment is selected" in text(app, "notice")


async def test_picture() -> None:
    app = console(ScriptedDaemon())
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(app, "LIVE")
        await pilot.pause()
        lines = ["".join(segment.text for segment in line).rstrip() for line in app.screen._compositor.render_strips()]
    check_snapshot("tui/deployments-80x24.txt", "\n".join(lines) + "\n")


def test_every_key_of_the_table_is_bound_once() -> None:
    assert len({key.id for key in KEYS}) == len({key.key for key in KEYS}) == len(KEYS)
    for key in KEYS:
        assert hasattr(ConsoleApp, f"action_{key.action}")
