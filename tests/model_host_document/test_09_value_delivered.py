# ruff: noqa: E501 - one row of a table is one line
"""Document 1, "Value delivered": what local serving saved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import fake_engine
from support.daemon import FAKE_ENGINE_CONFIG, Daemon, daemon, tiny_catalog
from support.document_world import HOST, TINY_DEPLOYMENT, admin, hosted_provider, managed

pytestmark = pytest.mark.e2e

PROVED_ELSEWHERE = {
    "both lanes of an asked-for model stand in one row, at one price": "tests/observe/test_observe_value.py::test_both_lanes_of_an_asked_for_model_stand_in_one_row",
    "totals subtract in one unit": "tests/admin/test_admin_value.py::test_both_lanes_and_their_totals",
    "a provider's own name for the model is not the key": "tests/observe/test_observe_value.py::test_a_provider_of_any_name_prices_what_only_it_answers",
    "a model without a reference is absent in both directions": "tests/observe/test_observe_value.py::test_a_model_without_a_reference_has_no_price_in_either_lane",
    "only answers that ended well count": "tests/observe/test_observe_value.py::test_what_is_worth_nothing",
    "totals outlive the daemon": "tests/e2e/test_jobs_and_value.py::test_the_value_of_local_completions_outlives_the_daemon",
    "one store for the process, with one limit for all who write it": "tests/observe/test_observe_value.py::test_two_processes_count_in_one_file_within_one_limit",
    "what was counted before the store can be used is merged": "tests/observe/test_observe_value.py::test_what_comes_while_a_store_is_slow_is_counted_and_shown",
    "at most a thousand lanes, the last of which takes all others": "tests/observe/test_observe_value.py::test_never_more_than_a_thousand_lanes_and_nothing_is_lost",
    "what comes beyond the limit is counted there": "tests/observe/test_observe_value.py::test_names_beyond_the_limit_share_a_lane_and_the_log_says_so_once",
}
NOT_ON_ONE_MACHINE = {
    "a request that spills from a busy local engine to a provider": "M3",
    "rows and totals of context compression, their precision and their gross cost": "compression",
}

PRICE = "reference: {model: hosted-x, prompt_micros_per_mtok: 1000000, completion_micros_per_mtok: 2000000}"
CONFIG = FAKE_ENGINE_CONFIG.replace(
    TINY_DEPLOYMENT,
    TINY_DEPLOYMENT.replace("20000}", f"20000, {PRICE}}}") + "      unpriced: {model: tiny-model}\n",
) + managed("unpriced", "unpriced", "unpriced")
HOSTED = f"        - {{name: cloud, provider_type: openai, base_url: 'URL', api_key: k, allow_private_base_url: true, models: [hosted], {PRICE}}}\n"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A priced and an unpriced local model beside a priced provider."""
    folder = tmp_path_factory.mktemp("value")
    tiny_catalog(folder)
    fake_engine.install(folder)
    with hosted_provider() as (url, _), daemon(folder, CONFIG + HOSTED.replace("URL", url)) as handle:
        handle.start()
        yield handle


def value(handle: Daemon) -> dict[str, Any]:
    answer = admin(handle, "GET", f"{HOST}/value")
    assert answer.status == 200
    report: dict[str, Any] = answer.json()
    return report


def test_the_report_wants_credentials(world: Daemon) -> None:
    """It is part of the authenticated admin API."""
    assert world.ask("GET", f"{HOST}/value", admin=True, auth=False).status == 401


def test_each_completion_counts_in_the_lane_that_answered_it(world: Daemon) -> None:
    """A local answer saves its displaced price, a provider's answer spends its own; what has no price is not told of."""
    local = world.chat().json()["usage"]
    cloud = world.chat("hosted").json()["usage"]
    assert world.chat("unpriced").status == 200
    assert world.chat("nothing").status == 404
    saved = local["prompt_tokens"] + 2 * local["completion_tokens"]
    spent = cloud["prompt_tokens"] + 2 * cloud["completion_tokens"]
    report = value(world)
    assert sorted(report["models"], key=lambda row: str(row["model"])) == [
        {
            "model": "hosted",
            "local_completions": 0,
            "cloud_completions": 1,
            "saved_micros": 0,
            "cloud_spent_micros": spent,
        },
        {
            "model": "tiny",
            "local_completions": 1,
            "cloud_completions": 0,
            "saved_micros": saved,
            "cloud_spent_micros": 0,
        },
    ]
    assert (report["total_saved_micros"], report["total_cloud_spent_micros"]) == (saved, spent)
    assert (report["total_local_completions"], report["total_cloud_completions"]) == (1, 1)


def test_compression_has_its_place_and_no_rows(world: Daemon) -> None:
    """Its keys are there, empty, until there is something to compress."""
    report = value(world)
    assert (report["compression"], report["compression_totals"]) == ([], {})
    assert report["total_compression_tokens_saved"] == 0
    assert report["total_compression_gross_cost_saved_micros"] == 0


def test_the_report_is_there_without_a_local_model(tmp_path: Path) -> None:
    """A gateway that serves nothing itself answers with zeros."""
    text = CONFIG[: CONFIG.index("  model_host:")] + "  model_host: {cache: {directory: '{dir}/cache'}}\n"
    text += "origins:\n  localhost:\n    action:\n      type: ai_proxy\n      providers:\n"
    text += HOSTED.replace("URL", "http://127.0.0.1:9/v1").replace(f", {PRICE}", "")
    with daemon(tmp_path, text) as handle:
        handle.start()
        report = value(handle)
    assert report["models"] == []
    assert {number for name, number in report.items() if name.startswith("total_")} == {0}
