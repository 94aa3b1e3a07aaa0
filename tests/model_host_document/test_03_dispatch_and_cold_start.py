# ruff: noqa: E501 - one row of a table is one line
"""Document 1, "Managed request dispatch": what of it holds on one machine."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from support import fake_engine
from support.daemon import FAKE_ENGINE_CONFIG, Answer, Daemon, daemon, tiny_catalog
from support.document_world import TINY_DEPLOYMENT, act, hosted_provider, managed, starts, until

pytestmark = pytest.mark.e2e

PROVED_ELSEWHERE = {
    "callers are authenticated by virtual keys": "tests/e2e/test_virtual_keys.py::test_without_a_key_nobody_is_answered_and_with_a_wrong_one_neither",
    "priority comes with the key": "tests/gateway/test_gateway_keys.py::test_the_keys_class_is_the_priority_of_admission",
    "cold_start fallback goes on to the next provider of the route": "tests/gateway/test_gateway_statuses.py::test_a_cold_deployment_with_fallback_goes_to_the_next_provider",
    "a caller waits for a slow cold start longer than the queue's patience, within the start's own bound": "tests/modelhost/test_modelhost_host.py::test_a_slow_load_outlives_the_queue_time_out",
    "the cap, the queue and its patience are enforced where the engine is": "tests/modelhost/test_modelhost_host.py::test_a_full_queue_and_a_late_permit_are_refused_by_name",
    "a draining generation takes nobody": "tests/modelhost/test_modelhost_host.py::test_stop_drains_and_a_later_request_starts_again",
    "a crash loop takes nobody": "tests/modelhost/test_modelhost_host.py::test_quick_exits_end_in_a_crash_loop_that_only_reset_clears",
    "whoever waits when a new generation is published is served by that one": "tests/modelhost/test_modelhost_eviction.py::test_a_rolling_replacement_takes_the_queue_over_in_its_order",
    "a request whose replica fails before any output is tried again": "tests/gateway/test_gateway_streams.py::test_a_connection_that_fails_before_any_output",
    "and there is one such retry only": "tests/gateway/test_gateway_streams.py::test_there_is_one_only",
    "when one replica is killed the other serves": "tests/e2e/test_model_host_real.py::test_two_replicas_share_the_work_and_one_survives_the_other",
    "a slow client slows the engine's stream down": "tests/gateway/test_gateway_streams.py::test_back_pressure",
    "the list is filtered by what an origin allows": "tests/gateway/test_gateway_pipeline.py::test_it_is_filtered_by_the_origins_lists",
    "what failed inside keeps its words to the log": "tests/gateway/test_gateway_statuses.py::test_a_launch_that_failed_keeps_its_words_to_the_log",
    "without a file's word a file-managed deployment waits; a stored one must say": "tests/modelhost/test_desired_document.py::test_a_missing_cold_start_says_what_to_write",
}
NOT_ON_ONE_MACHINE = {
    "peers: envelopes, nonces, certificates, HTTP/2, failover between nodes": "cluster",
    "a cluster with certificates falls back when nothing is said": "cluster",
    "the route class peer": "cluster",
}

CONFIG = (
    FAKE_ENGINE_CONFIG.replace(
        TINY_DEPLOYMENT,
        TINY_DEPLOYMENT
        + "      refusing: {model: tiny-model, cold_start: reject}\n"
        + "      yielding: {model: tiny-model, cold_start: fallback, replicas: 2, variant: q4}\n",
    )
    + managed("refusing", "refusing", "refusing")
    + managed("yielding", "yielding", "yielding")
)
HOSTED = "        - {name: cloud, provider_type: openai, base_url: 'URL', api_key: k, allow_private_base_url: true, models: [hosted]}\n"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, list[tuple[str, str]]]]:
    """The daemon beside a provider elsewhere, and what that one was asked."""
    folder = tmp_path_factory.mktemp("dispatch")
    tiny_catalog(folder)
    fake_engine.install(folder)
    with hosted_provider() as (url, asked), daemon(folder, CONFIG + HOSTED.replace("URL", url)) as handle:
        handle.start()
        yield handle, asked


@pytest.fixture
def cold(world: tuple[Daemon, list[tuple[str, str]]]) -> Daemon:
    """With ``tiny`` stopped, and the engine's behaviour back at its default."""
    handle, _ = world
    fake_engine.configure(handle.directory)
    act(handle, "stop")
    return handle


@pytest.mark.parametrize("model", ["refusing", "yielding"])
def test_reject_and_fallback_start_nothing(cold: Daemon, model: str) -> None:
    """A cold deployment that may not be started for a request is a 503 to try again in a second."""
    before = starts(cold.directory)
    answer = cold.chat(model)
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    body = answer.json()
    assert body["error"].pop("message")
    request_id = body["error"].pop("request_id")
    assert request_id == answer.headers["x-request-id"]
    assert body == {
        "error": {"type": "managed_model_error", "code": "no_ready_replica", "retryable": True},
        "sbproxy_reason": "no_ready_replica",
    }
    assert starts(cold.directory) == before
    assert cold.status_row(model)["state"] in ("configured", "cached")


def test_reject_serves_once_an_operator_has_started_it(cold: Daemon) -> None:
    """The policy is about cold replicas alone."""
    assert act(cold, "load", "refusing")["state"] == "ready"
    assert cold.chat("refusing").status == 200
    act(cold, "stop", "refusing")


def test_those_who_wait_share_one_start(cold: Daemon) -> None:
    """Under wait, requests for one cold replica cause one launch, and all are answered."""
    before = starts(cold.directory)
    fake_engine.configure(cold.directory, ready_after_probes=3)
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: cold.chat(), range(6)))
    assert [answer.status for answer in answers] == [200] * 6
    assert starts(cold.directory) == before + 1


def test_wait_is_what_an_omitted_policy_means(cold: Daemon) -> None:
    """A file-managed deployment that says nothing starts its engine for a request."""
    assert "cold_start" not in next(line for line in cold.config.read_text().splitlines() if " tiny: {" in line)
    assert cold.chat().status == 200


@pytest.mark.parametrize("path", ["/v1/models", "/models"])
def test_the_list_of_models_is_made_here(world: tuple[Daemon, list[tuple[str, str]]], path: str) -> None:
    """One OpenAI-shaped list over all providers: state, replica counts and capabilities of managed models, asked of nobody."""
    handle, asked = world
    assert act(handle, "load")["state"] == "ready"
    seen = len(asked)
    answer = handle.ask("GET", path)
    assert answer.status == 200
    document = answer.json()
    assert document["object"] == "list"
    found = {each["id"]: each for each in document["data"]}
    assert list(found) == ["tiny", "org/tiny:q4#1", "refusing", "yielding", "hosted"]
    assert all(each["object"] == "model" for each in found.values())
    assert found["tiny"]["availability"] == {"state": "ready", "ready_replicas": 1, "desired_replicas": 1}
    assert found["yielding"]["availability"] == {"state": "cold", "ready_replicas": 0, "desired_replicas": 2}
    assert found["tiny"]["capabilities"] == ["chat_completions", "completions"]
    assert len(asked) == seen


def test_the_list_tells_nothing_of_the_machine(cold: Daemon) -> None:
    """Neither engine ports nor addresses nor paths stand in it."""
    cold.chat()
    row = cold.status_row()
    answer = cold.ask("GET", "/v1/models")
    for private in ("127.0.0.1", "localhost", str(cold.directory), row["artifact_digest"]):
        assert private not in answer.body.decode()
    told = [value for entry in answer.json()["data"] for value in entry.values()]
    assert row["port"] not in told
    assert row["pid"] not in told


def test_a_broken_deployment_is_listed_as_unavailable(cold: Daemon) -> None:
    """What could not start is told in the list, and to its callers without the machine's words."""
    fake_engine.configure(cold.directory, mode="bad_file")
    answer = cold.chat()
    assert answer.status >= 500
    assert "tensor" not in answer.body.decode()
    assert str(cold.directory) not in answer.body.decode()
    states = {each["id"]: each["availability"]["state"] for each in cold.ask("GET", "/v1/models").json()["data"][:1]}
    assert states == {"tiny": "unavailable"}
    fake_engine.configure(cold.directory)
    act(cold, "reset")


def test_a_good_answer_adds_two_headers(world: tuple[Daemon, list[tuple[str, str]]]) -> None:
    """Which model was meant and which way it went; no other header of ours but the request's id."""
    handle, _ = world
    for model, way, streamed in (("tiny", "local", False), ("tiny", "local", True), ("hosted", "external", False)):
        answer = handle.chat(model, stream=streamed)
        assert answer.status == 200, answer.body
        ours = {name: value for name, value in answer.headers.items() if name.startswith("x-sbproxy")}
        assert ours == {"x-sbproxy-logical-model": model, "x-sbproxy-route-class": way}


def test_a_stream_that_breaks_is_neither_repeated_nor_called_done(cold: Daemon) -> None:
    """What came is passed on, the end mark is not, and the engine is asked once."""
    cold.chat()
    port = cold.status_row()["port"]
    fake_engine.reset(port)
    fake_engine.set_mode(port, "mid_stream_error")
    answer = broken_stream(cold)
    assert answer.status == 200
    assert b"data: {" in answer.body
    assert b"[DONE]" not in answer.body
    assert fake_engine.control(port)["completion_requests"] == 1
    fake_engine.set_mode(port, "normal")


def broken_stream(handle: Daemon) -> Answer:
    """A stream that ends without its last chunk is still read as far as it came."""
    connection = http.client.HTTPConnection("127.0.0.1", handle.port, timeout=20)
    body = {"model": "tiny", "stream": True, "messages": [{"role": "user", "content": "x"}]}
    connection.request(
        "POST", "/v1/chat/completions", json.dumps(body), {"Host": "localhost", "Content-Type": "application/json"}
    )
    response = connection.getresponse()
    try:
        data = response.read()
    except http.client.IncompleteRead as error:
        data = error.partial
    connection.close()
    return Answer(response.status, dict(response.getheaders()), data)


def test_a_client_that_leaves_stops_the_engine_and_gives_its_place_back(cold: Daemon) -> None:
    """Dropping the answer ends the engine's stream and releases the permit."""
    cold.chat()
    port = cold.status_row()["port"]
    fake_engine.reset(port)
    fake_engine.set_mode(port, "stream_until_cancelled")
    connection = http.client.HTTPConnection("127.0.0.1", cold.port, timeout=20)
    body = {"model": "tiny", "stream": True, "messages": [{"role": "user", "content": "x"}]}
    connection.request(
        "POST", "/v1/chat/completions", json.dumps(body), {"Host": "localhost", "Content-Type": "application/json"}
    )
    response = connection.getresponse()
    assert response.readline()
    assert cold.status_row()["active_requests"] == 1
    response.close()
    connection.close()
    until(lambda: cold.status_row()["active_requests"] == 0)
    until(lambda: fake_engine.control(port)["cancelled_requests"] == 1)
    fake_engine.set_mode(port, "normal")
