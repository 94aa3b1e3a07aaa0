"""The handler's decisions, with everything around it in memory: who answers, with what, and what is recorded."""

from __future__ import annotations

import dataclasses

import pytest

from gateway.memory import (
    ALIAS,
    ENGINE_KEY,
    HOSTED,
    LOCAL,
    MemoryResponse,
    MemoryUpstream,
    Rig,
    chat,
    completion,
    origins,
    routes,
)
from sbproxy.gateway.core.routes import compile_routes
from sbproxy.gateway.pipeline import UNROUTED_BODY_BYTES
from sbproxy.modelhost.core.status import Availability

MULTIPART = ((b"content-type", b"Multipart/Form-Data; boundary=x"),)
PLAIN = ((b"content-type", b"text/plain"),)
GZIPPED = ((b"content-encoding", b"gzip"),)


class TestUnary:
    async def test_a_managed_answer(self) -> None:
        rig = Rig(upstream=MemoryUpstream(MemoryResponse(completion())))
        exchange = await rig.ask(body=chat(temperature=0), headers=((b"authorization", b"Bearer callers-own"),))
        assert exchange.status == 200
        assert exchange.json()["model"] == "qwen"
        assert exchange.json()["usage"]["total_tokens"] == 14
        assert ALIAS.encode() not in exchange.body
        assert exchange.headers == {
            b"content-type": b"application/json",
            b"x-request-id": rig.sink.last.request_id.encode(),
            b"x-sbproxy-logical-model": b"qwen",
            b"x-sbproxy-route-class": b"local",
        }
        (sent,) = rig.upstream.sent
        assert (sent.upstream.host, sent.upstream.port, sent.method, sent.path) == (
            "127.0.0.1",
            4001,
            "POST",
            "/v1/chat/completions",
        )
        assert sent.headers[b"authorization"] == b"Bearer " + ENGINE_KEY.encode()
        assert sent.json() == {**chat(ALIAS), "temperature": 0}
        (permit,) = rig.models.permits
        assert (permit.deployment, permit.releases, permit.failures) == ("local-qwen", 1, [])

    async def test_a_hosted_answer(self) -> None:
        response = MemoryResponse(completion("vendor/big-2024-05"))
        rig = Rig(upstream=MemoryUpstream(response))
        exchange = await rig.ask(body=chat("big"), headers=((b"authorization", b"Bearer callers-own"),))
        assert exchange.json()["model"] == "big"
        assert exchange.headers[b"x-sbproxy-route-class"] == b"external"
        assert b"server" not in exchange.headers
        (sent,) = rig.upstream.sent
        assert sent.upstream.authority == "llm.example.com"
        assert sent.json()["model"] == "vendor/big-2024"
        assert sent.headers[b"authorization"] == b"Bearer sk-hosted-secret"
        assert b"callers-own" not in str(sent).encode()
        assert response.closed
        assert rig.models.permits == []

    async def test_the_record(self) -> None:
        rig = Rig(upstream=MemoryUpstream(MemoryResponse(completion())))
        exchange = await rig.ask(body=chat(), headers=((b"x-request-id", b"mine-1"),))
        record = dataclasses.asdict(rig.sink.last)
        assert len(rig.sink.records) == 1
        assert record == {
            **record,
            "request_id": "mine-1",
            "origin": "localhost",
            "method": "POST",
            "path": "/v1/chat/completions",
            "client_ip": "192.0.2.7",
            "status": 200,
            "latency_ms": 250.0,
            "finished_at": 1_700_000_000.5,
            "provider": "local",
            "deployment": "local-qwen",
            "model": "qwen",
            "route_class": "local",
            "surface": "chat_completions",
            "tokens_in": 11,
            "tokens_out": 3,
            "usage_estimated": False,
            "queued_ms": None,
            "bytes_in": len(exchange.request.body),
            "bytes_out": len(exchange.body),
            "streamed": False,
            "error_class": None,
            "error_code": None,
            "config_revision": "r1",
            "retry_count": 0,
        }

    async def test_an_answer_without_usage_is_estimated_and_never_free(self) -> None:
        rig = Rig(upstream=MemoryUpstream(MemoryResponse(completion(usage=None))))
        exchange = await rig.ask(body=chat())
        assert exchange.json()["usage"] is None
        record = rig.sink.last
        assert record.usage_estimated
        assert (record.tokens_in, record.tokens_out) == (len(exchange.request.body) // 4, 1)

    async def test_embeddings_have_no_output_tokens(self) -> None:
        body = b'{"object":"list","model":"m-0a1b2c","data":[],"usage":{"prompt_tokens":4,"total_tokens":4}}'
        rig = Rig(upstream=MemoryUpstream(MemoryResponse(body)))
        exchange = await rig.ask("/v1/embeddings", {"model": "qwen", "input": "x"})
        assert exchange.json()["model"] == "qwen"
        assert (rig.sink.last.tokens_in, rig.sink.last.tokens_out) == (4, 0)
        assert rig.upstream.sent[0].path == "/v1/embeddings"

    async def test_a_completion_may_carry_odd_messages(self) -> None:
        rig = Rig(upstream=MemoryUpstream(MemoryResponse(completion())))
        assert (await rig.ask("/v1/completions", {"model": "qwen", "prompt": "x", "messages": [1]})).status == 200

    @pytest.mark.parametrize("path", ["/chat/completions", "/api/v1/chat/completions"])
    async def test_other_prefixes_reach_the_same_place(self, path: str) -> None:
        rig = Rig(upstream=MemoryUpstream(MemoryResponse(completion())))
        assert (await rig.ask(path, chat())).status == 200
        assert rig.upstream.sent[0].path == "/v1/chat/completions"

    @pytest.mark.parametrize(
        "body",
        [b"<html>", b"[]", b'{"error":{"message":"odd"}}', b"", b"\xff"],
        ids=["html", "list", "error", "empty", "bytes"],
    )
    async def test_an_answer_that_is_none_is_502(self, body: bytes) -> None:
        rig = Rig(upstream=MemoryUpstream(MemoryResponse(body)))
        exchange = await rig.ask(body=chat("big"))
        assert exchange.status == 502
        assert exchange.json()["error"]["code"] == "upstream_broken"

    async def test_a_stream_that_nobody_asked_for_is_502(self) -> None:
        rig = Rig(upstream=MemoryUpstream(MemoryResponse(b"data: {}\n\n", kind=b"text/event-stream")))
        assert (await rig.ask(body=chat("big"))).status == 502

    async def test_a_whole_answer_to_a_stream_request_is_passed_on_whole(self) -> None:
        rig = Rig(upstream=MemoryUpstream(MemoryResponse(completion("vendor/big-2024"))))
        exchange = await rig.ask(body=chat("big", stream=True))
        assert exchange.status == 200
        assert exchange.headers[b"content-type"] == b"application/json"
        assert exchange.json()["model"] == "big"

    async def test_engine_debug_fields_do_not_leak(self) -> None:
        rig = Rig(upstream=MemoryUpstream(MemoryResponse(completion(__verbose={"model": "/srv/m.gguf"}))))
        assert b"/srv" not in (await rig.ask(body=chat())).body

    async def test_a_model_name_beyond_ascii_is_encoded_in_the_header(self) -> None:
        rig = Rig(routes({**LOCAL, "models": ["über/qwen"]}), MemoryUpstream(MemoryResponse(completion())))
        exchange = await rig.ask(body=chat("über/qwen"))
        assert exchange.headers[b"x-sbproxy-logical-model"] == b"%C3%BCber/qwen"
        assert exchange.json()["model"] == "über/qwen"


class TestRefusals:
    @pytest.mark.parametrize(
        ("how", "status", "code", "param"),
        [
            ({"body": chat("qwem")}, 404, "model_not_found", "model"),
            ({"body": chat(None)}, 400, "invalid_request", "model"),
            ({"body": b"{"}, 400, "invalid_request", None),
            ({"body": chat(messages=[])}, 400, "invalid_request", "messages"),
            ({"body": chat(), "host": "other.example"}, 404, "unknown_host", None),
            ({"body": chat(), "host": ""}, 404, "unknown_host", None),
            ({"path": "/v1/nothing"}, 404, "unknown_url", None),
            ({"path": "/v1/responses", "body": chat()}, 501, "surface_not_served", None),
            ({"method": "GET"}, 405, "method_not_allowed", None),
            ({"method": "POST", "path": "/v1/models"}, 405, "method_not_allowed", None),
            ({"path": "/v1/models/qwem"}, 404, "model_not_found", "model"),
            ({"body": chat(), "headers": MULTIPART}, 403, "multipart_refused", None),
            ({"body": chat(), "headers": PLAIN}, 415, "unsupported_media_type", None),
            ({"body": chat(), "headers": GZIPPED}, 415, "unsupported_content_encoding", None),
            (
                {"body": chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://10.0.0.1"}}]}])},
                400,
                "remote_content_refused",
                "messages[0].content[0].image_url.url",
            ),
        ],
    )  # fmt: skip
    async def test_shape(self, how: dict[str, object], status: int, code: str, param: str | None) -> None:
        rig = Rig()
        exchange = await rig.ask(**how)  # type: ignore[arg-type]
        assert exchange.status == status
        error = exchange.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", code, param)
        assert rig.upstream.sent == []
        assert rig.models.permits == []
        record = rig.sink.last
        assert (record.status, record.error_code) == (status, code)
        assert record.error_class in ("invalid_request", "not_found", "not_implemented")

    async def test_near_names_are_offered(self) -> None:
        message = (await Rig().ask(body=chat("qwem"))).json()["error"]["message"]
        assert "did you mean qwen?" in message
        assert "GET /v1/models" in (await Rig().ask(body=chat("zzzzzz"))).json()["error"]["message"]

    async def test_allow_names_the_methods(self) -> None:
        assert (await Rig().ask(method="GET")).headers[b"allow"] == b"POST, OPTIONS"

    async def test_the_origins_own_body_limit(self) -> None:
        rig = Rig(routes(LOCAL, max_body_size=200))
        assert (await rig.ask(body=chat(user="x" * 200))).status == 413
        assert rig.sink.last.error_code == "body_too_large"
        # The server asks before it reads a large body; a host of no origin is worth a small one.
        assert rig.gateway.body_limit("localhost") == 200
        assert Rig().gateway.body_limit("localhost") == 64 << 20
        assert rig.gateway.body_limit("nowhere") == UNROUTED_BODY_BYTES

    async def test_what_a_model_cannot_do_starts_no_engine(self) -> None:
        rig = Rig(routes(LOCAL, modalities={"local-qwen": "chat"}))
        exchange = await rig.ask("/v1/embeddings", {"model": "qwen", "input": "x"})
        assert exchange.status == 400
        assert exchange.json()["error"]["code"] == "unsupported_surface"
        assert rig.models.permits == []

    @pytest.mark.parametrize("sane", [b"abc-1", b"!" * 128])
    async def test_a_sane_request_id_is_kept(self, sane: bytes) -> None:
        exchange = await Rig().ask("/v1/nothing", headers=((b"x-request-id", sane),))
        assert exchange.headers[b"x-request-id"] == sane

    @pytest.mark.parametrize("odd", [b"", b"a b", b"x" * 129, b"a\x1b[0m", b"\xff"])
    async def test_an_odd_request_id_is_replaced(self, odd: bytes) -> None:
        rig = Rig()
        exchange = await rig.ask("/v1/nothing", headers=((b"x-request-id", odd),))
        assert len(exchange.headers[b"x-request-id"]) == 32
        assert exchange.headers[b"x-request-id"].decode() == rig.sink.last.request_id


class TestModels:
    async def test_the_list(self) -> None:
        table = routes(LOCAL, HOSTED, modalities={"local-qwen": "chat"})
        rig = Rig(table)
        rig.models.seen = Availability("ready", 1, 1)
        exchange = await rig.ask("/v1/models")
        assert exchange.json()["object"] == "list"
        assert exchange.json()["data"][0] == {
            "id": "qwen",
            "object": "model",
            "created": 0,
            "owned_by": "sbproxy",
            "availability": {"state": "ready", "ready_replicas": 1, "desired_replicas": 1},
            "capabilities": ["chat_completions", "completions"],
            "context_window": 4096,
        }
        assert [row["id"] for row in exchange.json()["data"]] == ["qwen", "big", "small"]
        assert exchange.json()["data"][1]["availability"] == {
            "state": "ready",
            "ready_replicas": 1,
            "desired_replicas": 1,
        }
        assert rig.upstream.sent == []

    async def test_it_shows_what_the_host_says_now(self) -> None:
        rig = Rig()
        assert (await rig.ask("/models")).json()["data"][0]["availability"]["state"] == "cold"
        rig.models.seen = Availability("unavailable", 0, 1)
        assert (await rig.ask("/models")).json()["data"][0]["availability"]["state"] == "unavailable"

    async def test_it_is_filtered_by_the_origins_lists(self) -> None:
        exchange = await Rig(routes(LOCAL, HOSTED, blocked_models=["big"])).ask("/v1/models")
        assert [row["id"] for row in exchange.json()["data"]] == ["qwen", "small"]

    @pytest.mark.parametrize("spelling", ["Org/Qwen:0.5b#q4", "Org%2FQwen%3A0.5b%23q4"])
    async def test_one_model(self, spelling: str) -> None:
        rig = Rig(routes({**LOCAL, "models": ["Org/Qwen:0.5b#q4"]}))
        exchange = await rig.ask("/v1/models/" + spelling)
        assert exchange.status == 200
        assert exchange.json()["id"] == "Org/Qwen:0.5b#q4"
        assert exchange.json()["object"] == "model"

    async def test_options_and_head(self) -> None:
        exchange = await Rig().ask("/v1/models", method="OPTIONS")
        assert (exchange.status, exchange.headers[b"allow"], exchange.body) == (204, b"GET, HEAD, OPTIONS", b"")
        assert (await Rig().ask("/v1/models", method="HEAD")).status == 200


class TestOperatorPages:
    async def test_metrics_for_every_host(self) -> None:
        for host in ("localhost", "other", ""):
            exchange = await Rig().ask("/metrics", host=host)
            assert (exchange.status, exchange.body) == (200, b"sbproxy_up 1\n")
            assert exchange.headers[b"content-type"] == b"text/plain; version=0.0.4; charset=utf-8"

    async def test_health_only_where_no_origin_answers(self) -> None:
        assert (await Rig().ask("/health", host="203.0.113.5")).status == 200
        assert (await Rig().ask("/health", host="localhost")).status == 404

    async def test_methods(self) -> None:
        assert (await Rig().ask("/metrics", method="POST", body=b"x")).status == 405
        assert (await Rig().ask("/metrics", method="OPTIONS")).status == 204


class TestPublish:
    async def test_the_next_request_sees_the_new_routes(self) -> None:
        rig = Rig()
        rig.gateway.publish(
            compile_routes(origins(localhost={"providers": [{**LOCAL, "models": ["new"]}]}), revision="r2")
        )
        assert (await rig.ask(body=chat("qwen"))).status == 404
        assert rig.sink.last.config_revision == "r2"
        assert (await rig.ask("/v1/models/new")).status == 200


class TestRecordPath:
    async def test_secrets_in_a_query_are_masked(self) -> None:
        rig = Rig()
        await rig.ask("/v1/models", query="api-key=s3cret&limit=2&access_token=s3cret&Key=s3cret")
        assert rig.sink.last.path == "/v1/models?api-key=[REDACTED]&limit=2&access_token=[REDACTED]&Key=[REDACTED]"

    async def test_it_is_bounded(self) -> None:
        rig = Rig()
        await rig.ask("/v1/" + "x" * 9000, query="q=" + "y" * 9000)
        assert len(rig.sink.last.path) == 1024


async def test_a_defect_of_ours_leaves_a_record_and_goes_to_the_server() -> None:
    rig = Rig()

    def broken() -> bytes:
        raise RuntimeError("a defect")

    rig.metrics = broken
    rig.__post_init__()
    with pytest.raises(RuntimeError):
        await rig.ask("/metrics")
    assert (rig.sink.last.status, rig.sink.last.error_class) == (500, "internal_error")
