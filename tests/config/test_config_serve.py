"""`serve:` blocks: lowered deterministically, and refused by name with file line and key path (document 1)."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sbproxy.config.core.model_host import DeploymentConfig, ReferencePrice
from sbproxy.config.core.serve import RawReference, duration_seconds, raw_reference
from sbproxy.config.load import Loaded, load_text
from sbproxy.config.printed import as_yaml
from sbproxy.daemon.checks import load_checked
from sbproxy.errors.config import ConfigInvalid

ENTRY = "origins.localhost.action.providers[0].serve.models[0]"


def load(text: str, *, path: str = "/etc/sb.yml", secrets: bool = True) -> Loaded:
    return load_text(text, path=Path(path), environ={"KEY": "k"}, resolve_secrets=secrets)


def block(*models: str, provider: str = "name: local", serve: str = "", host: str = "localhost") -> str:
    """One origin with one serve provider. The provider is line 6, ``serve`` settings follow line 7, then models."""
    settings = f"            {serve}\n" if serve else ""
    rows = "".join(f"              - {model}\n" for model in models)
    return (
        f"origins:\n  {host}:\n    action:\n      type: ai_proxy\n      providers:\n        - {provider}\n"
        f"          serve:\n{settings}            models:\n{rows}"
    )


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigInvalid) as caught:
        load(text)
    return [problem.text().removeprefix("/etc/sb.yml:") for problem in caught.value.problems]


def readable(loaded: Loaded) -> str:
    """The printed document, with the default password in the place of its mask."""
    return as_yaml(loaded).replace("'***MASKED***'", "changeme")


def only_deployment(loaded: Loaded) -> DeploymentConfig:
    (deployment,) = loaded.config.proxy.model_host.deployments.values()
    return deployment


# --- document 1, "Migrating from provider serve:" ---------------------------------------------------------------------

COMPATIBILITY = """
origins:
  localhost:
    action:
      type: ai_proxy
      providers:
        - name: local
          models: [qwen]
          serve:
            cache_dir: /var/lib/sbproxy/models
            models:
              - {model: qwen2.5-0.5b-instruct, name: qwen, variant: q4_k_m, engine: llama_cpp, keep_alive: 30m}
"""
CANONICAL = """
proxy:
  model_host:
    cache: {directory: /var/lib/sbproxy/models}
    deployments:
      ID: {model: qwen2.5-0.5b-instruct, variant: q4_k_m, engine: llama_cpp, keep_alive_secs: 1800}
origins:
  localhost:
    action:
      type: ai_proxy
      providers:
        - {name: local, provider_type: managed_model, deployment: ID, models: [qwen]}
"""


def test_the_example_of_the_document_is_its_canonical_form() -> None:
    lowered = load(COMPATIBILITY)
    (name,) = lowered.config.proxy.model_host.deployments
    canonical = load(CANONICAL.replace("ID", name))
    assert lowered.config == canonical.config
    assert lowered.revision == canonical.revision
    assert lowered.warnings == ()
    (served,) = lowered.served.values()
    assert served.places == (("origins", "localhost", "action", "providers", 0, "serve", "models", 0),)
    assert canonical.served == {}


def test_config_print_shows_the_lowered_document_and_where_it_is_from() -> None:
    lowered = load(COMPATIBILITY)
    (name,) = lowered.served
    printed = readable(lowered)
    assert f"# {name} is from {ENTRY}\n" in printed
    again = load(printed)
    assert again.config == lowered.config
    assert again.served == {}


# --- lowering ---------------------------------------------------------------------------------------------------------


def test_every_setting_of_an_entry_reaches_its_deployment() -> None:
    entry = (
        "{model: m, name: chat, variant: v, engine: vllm, modality: embedding, max_context: 2048, keep_alive: 1h30m,"
        " kv_quant: fp8, enable_prefix_caching: true, pinned: true, extra_args: [--seed, '1'],"
        " tool_call_parser: hermes, swap_space_gib: 4, cpu_offload_gib: 2.5,"
        " reference: {model: hosted, prompt_micros_per_mtok: 3}}"
    )
    assert only_deployment(load(block(entry))) == DeploymentConfig(
        model="m",
        variant="v",
        engine="vllm",
        modality="embedding",
        max_context=2048,
        keep_alive_secs=5400,
        kv_quant="fp8",
        enable_prefix_caching=True,
        pinned=True,
        extra_args=["--seed", "1"],
        tool_call_parser="hermes",
        swap_space_gib=4.0,
        cpu_offload_gib=2.5,
        reference=ReferencePrice(model="hosted", prompt_micros_per_mtok=3),
    )


def test_without_keep_alive_the_engine_stays() -> None:
    """Contracts section 0, row 20."""
    assert only_deployment(load(block("{model: m}"))).keep_alive_secs is None


def test_each_model_of_a_block_becomes_a_managed_provider_in_its_order() -> None:
    text = (
        block(
            "{model: a, name: big}",
            "{model: b}",
            provider="{name: hosted, base_url: https://host.example/v1, api_key: 'env:KEY', models: [x]}\n"
            "        - name: local\n          default_model: b\n          priority: 3",
        )
        + "        - {name: last, base_url: https://host.example/v1, api_key: 'env:KEY', models: [y]}\n"
    )
    loaded = load(text, secrets=False)
    providers = loaded.config.origins["localhost"].action.providers
    assert [(each.name, each.provider_type, each.models, each.default_model, each.priority) for each in providers] == [
        ("hosted", None, ["x"], None, None),
        ("local/big", "managed_model", ["big"], None, 3),
        ("local/b", "managed_model", ["b"], "b", 3),
        ("last", None, ["y"], None, None),
    ]
    deployments = loaded.config.proxy.model_host.deployments
    assert [deployments[str(each.deployment)].model for each in providers[1:3]] == ["a", "b"]
    printed = yaml.safe_load(as_yaml(loaded))["origins"]["localhost"]["action"]["providers"]
    assert printed[3]["api_key"] == "env:KEY", "a reference stays with the provider that wrote it"


def test_equivalent_entries_merge_over_origins_and_name_every_place() -> None:
    first = block("{model: m, name: chat, keep_alive: 1h}")
    second = block("{name: chat, engine: auto, keep_alive: 60m, model: m, pinned: false}", host="other")
    loaded = load(first + second.removeprefix("origins:\n"))
    (name,) = loaded.config.proxy.model_host.deployments
    assert [origin.action.providers[0].deployment for origin in loaded.config.origins.values()] == [name, name]
    assert [place[1] for place in loaded.served[name].places] == ["localhost", "other"]
    assert " and origins.other." in as_yaml(loaded)


def test_the_id_is_a_digest_of_provider_name_and_entry() -> None:
    def ident(text: str) -> str:
        (name,) = load(text).config.proxy.model_host.deployments
        return name

    base = ident(block("{model: m}"))
    assert (
        base
        == ident(block("{model: m}"))
        == ident(block("{model: m, name: m}"))
        == ident(block("{model: m}", host="b"))
    )
    assert base == ident(block("{model: m}", serve="cache_dir: /x"))
    assert base.startswith("serve-")
    assert len(base) == len("serve-") + 16
    others = {
        ident(block("{model: m}", provider="name: other")),
        ident(block("{model: m, name: n}")),
        ident(block("{model: m, max_context: 1}")),
        ident(block("{model: n, name: m}")),
    }
    assert len(others | {base}) == 5


@given(st.permutations(["model: m", "name: n", "engine: auto", "keep_alive: 90s", "pinned: true", "variant: v"]))
def test_the_order_of_the_keys_does_not_matter(keys: list[str]) -> None:
    assert list(load(block(f"{{{', '.join(keys)}}}")).served) == ["serve-09d1a61ea451a1e3"]


def test_a_repeated_entry_is_one_deployment_and_one_route() -> None:
    loaded = load(block("{model: m, keep_alive: 60s}", "{model: m, keep_alive: 1m}"))
    assert len(loaded.config.proxy.model_host.deployments) == 1
    assert [each.name for each in loaded.config.origins["localhost"].action.providers] == ["local"]


def test_long_names_stay_within_what_a_provider_may_be_called() -> None:
    name = "n" * 128
    loaded = load(block("{model: a}", f"{{model: b, name: {'m' * 200}}}", provider=f"name: {name}"))
    names = [each.name for each in loaded.config.origins["localhost"].action.providers]
    assert len(set(names)) == 2
    assert all(len(each) <= 128 for each in names)
    assert load(readable(loaded)).config == loaded.config


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("1h", 3600), ("1h30m", 5400), ("2d", 172_800), ("1d2h3m4s", 93_784), ("0s", 0)],
)
def test_durations(text: str, seconds: int) -> None:
    assert duration_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "m", "30m1h", "-1m", "1.5h", "30 m", "1w", "٣m", "1000000000000h"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="must be a duration such as 90s, 30m, 1h or 1h30m"):
        duration_seconds(text)


@pytest.mark.parametrize(
    ("model", "meant"),
    [
        ("qwen3-32b", None),
        ("hf:Org/Repo", RawReference("hf", "Org/Repo")),
        ("hf:Org/Repo-GGUF:Q4_K_M", RawReference("hf", "Org/Repo-GGUF", "Q4_K_M")),
        ("file:/models/a.gguf", RawReference("file", "/models/a.gguf")),
    ],
)
def test_references(model: str, meant: RawReference | None) -> None:
    assert raw_reference(model) == meant


@pytest.mark.parametrize(
    "model",
    ["hf:", "hf:Repo", "hf:Org/Repo/x", "hf:Org/../x", "hf:-x/y", "hf:Org/Repo:", "hf:Org/Repo@main", "hf:Org/Re po",
     "file:", "file:a.gguf", "file:/a.bin", "file:/a/../b.gguf", "file:///etc/../x.gguf", "file:/a\n.gguf"],
)  # fmt: skip
def test_what_is_no_reference(model: str) -> None:
    with pytest.raises(ValueError):
        raw_reference(model)


# --- refusals ---------------------------------------------------------------------------------------------------------

INSTEAD = [
    ("speculative: {method: ngram}", "speculative", "remove it"),
    ("lora_adapters: [{name: a, source: b}]", "lora_adapters", "merge them into a catalog v2 model"),
    ("max_loras: 2", "max_loras", "remove it"),
    ("chunked_prefill: {}", "chunked_prefill", "proxy.model_host.deployments, which has chunked_prefill"),
    ("tensor_parallel: 2", "tensor_parallel", "proxy.model_host.deployments, which has tensor_parallel"),
    ("gpu_memory_utilization: 0.9", "gpu_memory_utilization", "the memory plan decides it; remove it"),
    ("max_model_len: 2048", "max_model_len", "it is max_context"),
    ("keep_alive_secs: 3", "keep_alive_secs", "it is keep_alive, a duration such as 30m"),
    ("gguf_file: a.gguf", "gguf_file", "a catalog model names its exact files; write variant"),
    ("keep_alive: 1800", "keep_alive", "expected text (quote it when it looks like a number), found a whole number"),
    ("keep_alive: forever", "keep_alive", "must be a duration such as 90s"),
    ("kv_quant: q8", "kv_quant", "is not one of the choices"),
    ("enable_prefix_cachign: true", "enable_prefix_cachign", "unknown key; did you mean 'enable_prefix_caching'?"),
]


@pytest.mark.parametrize(
    ("setting", "key", "reason"), INSTEAD, ids=[each[1] + str(i) for i, each in enumerate(INSTEAD)]
)
def test_a_setting_that_does_not_survive_is_refused_by_name(setting: str, key: str, reason: str) -> None:
    (problem,) = problems(block(f"{{model: m, {setting}}}"))
    assert problem.startswith(f"9: {ENTRY}.{key}: ")
    assert reason in problem


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("api_key: k", "api_key"),
        ("base_url: https://host.example/v1", "base_url"),
        ("deployment: d", "deployment"),
        ("provider_type: managed_model", "provider_type"),
        ("provider_type: vllm", "provider_type"),
        ("allow_private_base_url: true", "allow_private_base_url"),
        ("model_map: {m: n}", "model_map"),
        ("timeout_ms: 5", "timeout_ms"),
    ],
)
def test_serve_stands_alone_in_its_provider(setting: str, key: str) -> None:
    (problem,) = problems(block("{model: m}", provider=f"name: local\n          {setting}"))
    assert problem.startswith(
        f"7: origins.localhost.action.providers[0].{key}: a provider with a serve block has no {key}"
    )


RAW = [
    ("{model: 'hf:Org/Tiny-1B'}", "name", "a raw reference needs a name for its clients"),
    ("{model: 'file:/m/a.gguf'}", "name", "a raw reference needs a name"),
    ("{model: 'hf:Org/Tiny-1B', name: n, variant: v}", "variant", "has no variants; name a quantization"),
    ("{model: 'file:/m/a.gguf', name: n, gguf_file: b.gguf}", "gguf_file", "the reference names the file itself"),
    ("{model: 'hf:Org/Tiny-1B:Q4_0', name: n, engine: vllm}", "engine", "vllm does not run GGUF files"),
    ("{model: 'hf:Org/Tiny-1B', name: n, gguf_file: a.gguf, engine: sglang}", "engine", "use engine: llama_cpp"),
    ("{model: 'file:/m/a.gguf', name: n, engine: mistralrs}", "engine", "mistralrs does not run GGUF files"),
    ("{model: 'hf:Org/Tiny', name: n}", "model", "does not tell how large the model is (such as 0.5B)"),
    ("{model: 'hf:Org/Tiny-1B', name: n, gguf_file: ../a.gguf}", "gguf_file", "the name of a .gguf file inside"),
    ("{model: 'hf:Org/Tiny-1B', name: n, gguf_file: -x.gguf}", "gguf_file", "the name of a .gguf file inside"),
    ("{model: 'hf:Org', name: n}", "model", "is written hf:Org/Repo or hf:Org/Repo:QUANT"),
    ("{model: 'https://host/x', name: n}", "model", "may hold only letters, digits"),
]  # fmt: skip


@pytest.mark.parametrize(("entry", "key", "reason"), RAW)
def test_raw_references_that_cannot_be_served(entry: str, key: str, reason: str) -> None:
    (problem,) = problems(block(entry))
    assert problem.startswith(f"9: {ENTRY}.{key}: ")
    assert reason in problem


@pytest.mark.parametrize(
    "name", ["Org/Qwen2.5-0.5B-Instruct", "o/SmolLM2-135M-GGUF", "o/Mixtral-8x7B", "o/gemma-270m-it"]
)
def test_repositories_whose_size_can_be_told(name: str) -> None:
    loaded = load(block(f"{{model: 'hf:{name}', name: n}}"))
    (served,) = loaded.served.values()
    assert served.raw == RawReference("hf", name)
    assert only_deployment(loaded).model.startswith("raw-")


def test_raw_references_are_warned_of_at_every_load_and_have_no_canonical_form() -> None:
    loaded = load(block("{model: 'hf:Org/Tiny-1B-GGUF:Q4_0', name: a}", "{model: 'file:/m/b.gguf', name: b}"))
    hub, file = loaded.warnings
    assert (hub.line, hub.path) == (9, f"{ENTRY}.model")
    for word in ("fetches it itself", "access to the network", "may write", "no digest", "catalog v2"):
        assert word in hub.reason
    assert "network" not in file.reason
    assert "no digest" in file.reason
    assert as_yaml(loaded).count("is a raw reference, which has no canonical form: keep its serve block") == 2
    assert loaded.allow_unpinned_refs is False
    assert load(block("{model: m}", serve="allow_unpinned_refs: true")).allow_unpinned_refs is True


def test_one_name_for_two_models_names_both() -> None:
    found = problems(block("{model: a, name: n}", "{model: b, name: n}"))
    assert found == [
        (f'10: {ENTRY.replace("models[0]", "models[1]")}.name: "n" is already another model of this block, models[0]')
    ]


def test_names_of_the_provider_and_of_the_block_must_meet() -> None:
    found = problems(
        block("{model: qwen}", provider="name: local\n          models: [qwne]\n          default_model: x")
    )
    assert [each.split(": ", 2)[0::2] for each in found] == [
        ["7", "the serve block has no model named \"qwne\"; did you mean 'qwen'? allowed: qwen"],
        ["8", '"x" is not in models; allowed: qwen'],
        ["11", "\"qwen\" is not in the provider's models, so no request would reach it; did you mean 'qwne'?"],
    ]


def test_a_provider_that_already_has_the_name_of_a_lowered_one() -> None:
    text = block("{model: a}", "{model: b}") + "        - {name: local/b, base_url: https://host.example/v1}\n"
    (problem,) = problems(text)
    assert problem.startswith("11: origins.localhost.action.providers[1].name: ")
    assert "is also what a model of a serve block's provider is called" in problem


def test_two_providers_of_one_name_stay_refused() -> None:
    text = block("{model: a}") + "        - name: local\n          serve: {models: [{model: b}]}\n"
    assert [each.split(": ")[1] for each in problems(text)] == ["origins.localhost.action.providers[1].name"]


def test_everything_wrong_is_said_at_once() -> None:
    text = block(
        "{model: a, keep_alive: soon}",
        "{model: 'hf:Org/Big-7B'}",
        "{model: b, lora_adapters: []}",
        provider="name: local\n          api_key: k",
        serve="cache_dir: models",
    )
    assert [each.split(": ")[:2] for each in problems(text)] == [
        ["7", "origins.localhost.action.providers[0].api_key"],
        ["9", "origins.localhost.action.providers[0].serve.cache_dir"],
        ["11", "origins.localhost.action.providers[0].serve.models[0].keep_alive"],
        ["12", "origins.localhost.action.providers[0].serve.models[1].name"],
        ["13", "origins.localhost.action.providers[0].serve.models[2].lora_adapters"],
    ]


def test_an_empty_block_is_refused() -> None:
    (problem,) = problems(
        "origins: {localhost: {action: {type: ai_proxy, providers: [{name: l, serve: {models: []}}]}}}"
    )
    assert "must hold at least 1" in problem


def test_what_the_catalog_and_the_engines_refuse_is_told_at_the_entry(tmp_path: Path) -> None:
    path = tmp_path / "sb.yml"
    path.write_text(
        block(
            "{model: smollm2-135m-instruc}",
            "{model: qwen2.5-0.5b-instruct, variant: q4_k_s}",
            "{model: smollm2-135m-instruct, engine: llama_cpp, extra_args: [--host, 0.0.0.0]}",
            "{model: 'hf:Org/Tiny-1B-GGUF', name: raw, extra_args: [--api-key, x]}",
        )
    )
    with pytest.raises(ConfigInvalid) as caught:
        load_checked(path, {}, resolve_secrets=False)
    found = [(each.line, each.path.removeprefix(ENTRY[:-3]), each.near) for each in caught.value.problems]
    assert found == [
        (9, "[0].model", "smollm2-135m-instruct"),
        (10, "[1].variant", "q4_k_m"),
        (11, "[2].extra_args[0]", None),
        (12, "[3].extra_args[0]", None),
    ]


def test_a_raw_reference_needs_no_catalog(tmp_path: Path) -> None:
    path = tmp_path / "sb.yml"
    path.write_text(block("{model: 'hf:Org/Tiny-1B-GGUF', name: a}", "{model: 'hf:Org/Tiny-1B', name: b}"))
    loaded = load_checked(path, {}, resolve_secrets=False).loaded
    assert [each.engine for each in loaded.config.proxy.model_host.deployments.values()] == ["llama_cpp", "vllm"]
    assert len(loaded.warnings) == 2
