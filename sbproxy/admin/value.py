"""``GET /admin/model-host/value``: what local serving saved and what spilled requests cost (contracts section 31)."""

from __future__ import annotations

from aiohttp import web

from sbproxy.admin.model_host import PREFIX
from sbproxy.admin.ports import AdminDeps
from sbproxy.admin.replies import reply
from sbproxy.api.value import ModelValue, ValueAnswer
from sbproxy.observe.core.value import ValueReport


class ValueRoutes:
    def __init__(self, deps: AdminDeps) -> None:
        self._report = deps.value

    def routes(self) -> list[web.RouteDef]:
        return [web.get(f"{PREFIX}/value", self.value)]

    async def value(self, _request: web.Request) -> web.Response:
        return reply(_answer(self._report()))


def _answer(report: ValueReport) -> ValueAnswer:
    return ValueAnswer(
        models=[
            ModelValue(
                model=row.model,
                local_completions=row.local_completions,
                cloud_completions=row.cloud_completions,
                saved_micros=row.saved_micros,
                cloud_spent_micros=row.cloud_spent_micros,
            )
            for row in report.rows
        ],
        total_saved_micros=report.total_saved_micros,
        total_cloud_spent_micros=report.total_cloud_spent_micros,
        total_local_completions=report.total_local_completions,
        total_cloud_completions=report.total_cloud_completions,
        # This version compresses no context, so there is nothing that a lever could have saved.
        compression=[],
        compression_totals={},
        total_compression_tokens_saved=0,
        total_compression_gross_cost_saved_micros=0,
    )
