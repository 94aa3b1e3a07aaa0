"""Hosts to origins, models to providers, paths to surfaces."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.memory import HOSTED, LOCAL, origins, routes
from sbproxy.errors.gateway import InvalidRequest, MethodNotAllowed, SurfaceNotServed, UnknownPath, UnusableProvider
from sbproxy.gateway.core.hosts import compile_hosts
from sbproxy.gateway.core.providers import HostedProvider, ManagedProvider, ModelFacts
from sbproxy.gateway.core.routes import OriginRoutes, compile_routes
from sbproxy.gateway.core.surfaces import find_target
from sbproxy.gateway.exchange import Upstream

LABEL = st.text("ab", min_size=1, max_size=2)
HOST = st.lists(LABEL, min_size=1, max_size=4).map(".".join)


def origin(*providers: dict[str, Any], **action: Any) -> OriginRoutes:
    found = routes(*providers, **action).origin_for("localhost")
    assert found is not None
    return found


class TestHosts:
    @given(st.sets(st.one_of(HOST, HOST.map("*.".__add__)), max_size=6), HOST)
    def test_exact_beats_wildcard_and_the_longest_suffix_wins(self, keys: set[str], host: str) -> None:
        table = compile_hosts({key: key for key in keys})
        suffixes = [key for key in keys if key.startswith("*.") and host.endswith(key[1:]) and host != key[2:]]
        expected = host if host in keys else max(suffixes, key=len, default=None)
        assert table.find(host) == expected

    @pytest.mark.parametrize(
        ("key", "host"),
        [("API.Example.com", "api.example.com"), ("example.com", "example.com."), ("::1", "[::1]"), ("[::1]", "[::1]"),
         ("bücher.example", "xn--bcher-kva.example"), ("127.0.0.1", "127.0.0.1")],
    )  # fmt: skip
    def test_spellings(self, key: str, host: str) -> None:
        assert compile_hosts({key: 1}).find(host) == 1

    @pytest.mark.parametrize("host", ["", "example.com", ".example.com", "xexample.com", "a.example.com.evil"])
    def test_a_wildcard_needs_a_label_of_its_own(self, host: str) -> None:
        assert compile_hosts({"*.example.com": 1}).find(host) is None


class TestModels:
    def test_a_listed_name_goes_to_its_provider(self) -> None:
        here = origin(LOCAL, HOSTED)
        assert here.provider_for("qwen") == ManagedProvider(
            "local", "local-qwen", frozenset(here.named["qwen"].surfaces)
        )
        assert isinstance(here.provider_for("big"), HostedProvider)
        assert here.provider_for("huge") is None

    def test_a_managed_provider_without_names_shows_its_deployment(self) -> None:
        here = origin({"name": "l", "provider_type": "managed_model", "deployment": "dep.1"})
        assert list(here.named) == ["dep.1"]
        assert here.provider_for("anything") is None

    def test_a_plain_provider_without_names_takes_any_but_a_listed_name_is_its_owners(self) -> None:
        anyone = {"name": "any", "base_url": "http://10.0.0.1:8000"}
        here = origin(anyone, LOCAL)
        assert here.provider_for("whatever/it:is") is here.open_provider
        assert isinstance(here.provider_for("qwen"), ManagedProvider)

    def test_the_first_in_priority_keeps_a_name(self) -> None:
        def named(name: str, **more: Any) -> dict[str, Any]:
            return {"name": name, "base_url": "http://10.0.0.1", "models": ["m"], **more}

        def winner(*providers: dict[str, Any]) -> str:
            found = origin(*providers).provider_for("m")
            assert found is not None
            return found.name

        assert winner(named("a"), named("b")) == "a"
        assert winner(named("a"), named("b", priority=5)) == "b"
        assert winner(named("a", priority=7), named("b", priority=5)) == "b"
        assert winner(named("a", enabled=False), named("b")) == "b"

    def test_blocking_wins_over_allowing(self) -> None:
        here = origin(HOSTED, allowed_models=["big", "small"], blocked_models=["small"])
        assert list(here.named) == ["big"]

    def test_lists_hold_for_providers_that_take_any(self) -> None:
        here = origin({"name": "any", "base_url": "http://10.0.0.1"}, allowed_models=["a", "b"], blocked_models=["b"])
        assert here.provider_for("a") is not None
        assert here.provider_for("b") is None
        assert here.provider_for("c") is None

    def test_default_model_is_the_first_that_may_be_used(self) -> None:
        assert origin(LOCAL).default_model is None
        assert origin({**LOCAL, "default_model": "qwen"}, {**HOSTED, "default_model": "big"}).default_model == "qwen"
        blocked = origin(
            {**LOCAL, "default_model": "qwen"}, {**HOSTED, "default_model": "big"}, blocked_models=["qwen"]
        )
        assert blocked.default_model == "big"
        assert origin({"name": "any", "base_url": "http://10.0.0.1", "default_model": "d"}).default_model == "d"

    def test_what_a_model_can_do_follows_its_modality(self) -> None:
        table = compile_routes(
            origins(h={"providers": [LOCAL]}), revision="r", models={"local-qwen": ModelFacts("embedding")}
        )
        here = table.origin_for("h")
        assert here is not None
        assert here.named["qwen"].surfaces == {"embeddings"}

    def test_near_names_are_those_of_the_origins_models(self) -> None:
        assert origin(LOCAL).near("qwem") == ("qwen",)
        assert origin(LOCAL).near("zzz") == ()


class TestProviders:
    @pytest.mark.parametrize(
        ("base_url", "upstream", "prefix"),
        [
            ("https://llm.example.com/v1", Upstream("llm.example.com", 443, True, public_only=True), "/v1"),
            (
                "https://llm.example.com/openai/v1/",
                Upstream("llm.example.com", 443, True, public_only=True),
                "/openai/v1",
            ),
            ("http://10.0.0.1:8000", Upstream("10.0.0.1", 8000, public_only=True), "/v1"),
            ("http://[::1]:8000/", Upstream("::1", 8000, public_only=True), "/v1"),
        ],
    )
    def test_addresses(self, base_url: str, upstream: Upstream, prefix: str) -> None:
        found = origin({"name": "p", "base_url": base_url}).open_provider
        assert found is not None
        assert (found.upstream, found.prefix) == (upstream, prefix)

    def test_an_allowed_private_address_is_connected_to(self) -> None:
        found = origin({"name": "p", "base_url": "http://10.0.0.1", "allow_private_base_url": True}).open_provider
        assert found is not None
        assert found.upstream == Upstream("10.0.0.1", 80)

    def test_a_well_known_provider_needs_no_address(self) -> None:
        found = origin({"name": "openai"}).open_provider
        assert found is not None
        assert found.upstream == Upstream("api.openai.com", 443, True)
        assert found.prefix == "/v1"

    @pytest.mark.parametrize(
        ("provider", "word"),
        [
            ({"name": "who-knows"}, "base_url"),
            ({"name": "p", "base_url": "ftp://llm.example.com"}, "http"),
            ({"name": "p", "base_url": "https://llm.example.com:999999"}, "URL"),
            ({"name": "p", "base_url": "https://llm.example.com", "api_key": "two\r\nlines"}, "api_key"),
            ({"name": "p", "provider_type": "managed_model"}, "deployment"),
        ],
    )
    def test_what_no_request_could_be_sent_to(self, provider: dict[str, Any], word: str) -> None:
        with pytest.raises(UnusableProvider, match=word) as caught:
            origin(provider)
        assert caught.value.origin == "localhost"
        assert caught.value.provider == provider["name"]

    def test_the_key_is_in_a_header_and_in_no_repr(self) -> None:
        found = origin(HOSTED).provider_for("big")
        assert isinstance(found, HostedProvider)
        assert (b"authorization", b"Bearer sk-hosted-secret") in found.headers
        assert "sk-hosted" not in repr(found)


class TestSurfaces:
    @pytest.mark.parametrize("prefix", ["/v1", "/api/v1", ""])
    def test_prefixes(self, prefix: str) -> None:
        target = find_target("POST", prefix + "/chat/completions")
        assert (target.surface, target.path, target.model_id) == ("chat_completions", "/chat/completions", None)
        assert find_target("POST", prefix + "/completions").surface == "completions"
        assert find_target("POST", prefix + "/embeddings").surface == "embeddings"
        assert find_target("GET", prefix + "/models").surface == "models"
        assert find_target("GET", prefix + "/models/a").model_id == "a"

    @pytest.mark.parametrize("model", ["Qwen/Qwen2.5:0.5b#q4", "a b", "über", "100%", "a/b/c", "x%2Fy"])
    def test_model_ids_encoded_and_raw(self, model: str) -> None:
        assert find_target("GET", "/v1/models/" + quote(model, safe="")).model_id == model
        if "%" not in model:
            assert find_target("GET", "/v1/models/" + model).model_id == model

    @pytest.mark.parametrize("encoded", ["%ff%fe", "x" * 513])
    def test_bad_model_ids(self, encoded: str) -> None:
        with pytest.raises(InvalidRequest):
            find_target("GET", "/v1/models/" + encoded)

    @pytest.mark.parametrize(
        "path", ["/v1/responses", "/v1/responses/r_1", "/messages", "/api/v1/files/f/content", "/v1/audio/speech"]
    )
    def test_known_but_not_served(self, path: str) -> None:
        with pytest.raises(SurfaceNotServed):
            find_target("POST", path)

    @pytest.mark.parametrize(
        "path", ["/", "", "*", "/v1", "/v1/", "/v1/models/", "/v1/chat", "/v1/chat/completions/", "/v1/responsesx",
                 "/v2/models", "/v1/../models", "/V1/models"],
    )  # fmt: skip
    def test_unknown(self, path: str) -> None:
        with pytest.raises(UnknownPath):
            find_target("GET", path)

    def test_methods(self) -> None:
        for method, path, allow in [
            ("GET", "/v1/chat/completions", ("POST", "OPTIONS")),
            ("DELETE", "/v1/models", ("GET", "HEAD", "OPTIONS")),
            ("DELETE", "/v1/models/x", ("GET", "HEAD", "OPTIONS")),
        ]:
            with pytest.raises(MethodNotAllowed) as caught:
                find_target(method, path)
            assert caught.value.allow == allow

    def test_a_callers_path_cannot_flood_or_colour_the_message(self) -> None:
        with pytest.raises(UnknownPath) as caught:
            find_target("GET", "/\x1b[31m" + "x" * 5000)
        assert "\x1b" not in str(caught.value)
        assert len(str(caught.value)) < 400
