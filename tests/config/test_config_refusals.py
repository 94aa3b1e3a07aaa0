"""Every refusal of sb.yml names its line, its key path and its reason (contracts sections 1-5, 14, 47)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbproxy.config.load import load_text
from sbproxy.errors.config import ConfigInvalid, Problem

DIGEST = "a" * 64


def problems(text: str, **environ: str) -> tuple[Problem, ...]:
    with pytest.raises(ConfigInvalid) as caught:
        load_text(text, path=Path("sb.yml"), environ=environ)
    assert caught.value.problems
    return caught.value.problems


def host(*lines: str) -> str:
    """A document whose model_host block holds ``lines``; the first of them is line 3."""
    return "proxy:\n  model_host:\n" + "".join(f"    {line}\n" for line in lines)


def admin(*lines: str) -> str:
    """A document whose admin block holds ``lines``; the first of them is line 3."""
    return "proxy:\n  admin:\n" + "".join(f"    {line}\n" for line in lines)


def deployment(*lines: str) -> str:
    """One deployment ``d``; the first line is line 5."""
    return host("deployments:", "  d:", *(f"    {line}" for line in lines))


def providers(*lines: str, deployments: str = "{d: {model: m}}") -> str:
    """One origin with providers; the first line is line 7."""
    head = f"proxy: {{model_host: {{deployments: {deployments}}}}}\norigins:\n  localhost:\n    action:\n"
    return head + "      type: ai_proxy\n      providers:\n" + "".join(f"        {line}\n" for line in lines)


D = "proxy.model_host.deployments.d"
P = "origins.localhost.action.providers"

CASES = [
    # text as written
    ("proxy: {}\nproxy: {}\n", 2, "proxy", "duplicate key; it is first written at line 1"),
    (host("deployments:", "  a: {model: m}", "  a: {model: n}"), 5, "proxy.model_host.deployments.a", "line 4"),
    ("proxy: !env PROXY\n", 1, "proxy", 'the tag "!env" is not supported; write ${NAME} instead'),
    ("proxy: !!python/name:os.system {}\n", 1, "proxy", "is not supported"),
    ("origins:\n  <<: {}\n", 2, "origins", "merge keys (<<) are not supported"),
    ("proxy: {\n", 2, "", "YAML syntax"),
    ("- proxy\n", 1, "", "the document is not a mapping"),
    ("proxy: {}\n---\nproxy: {}\n", 2, "", "a second document begins here"),
    # names and types
    (admin("prot: 1"), 3, "proxy.admin.prot", "unknown key; did you mean 'port'? allowed: enabled, port"),
    ("proxy:\n  http_bind_port: '8080'\n", 2, "proxy.http_bind_port", "expected a whole number, found text"),
    ("proxy:\n  http_bind_port: 80.5\n", 2, "proxy.http_bind_port", "expected a whole number, found a number"),
    ("proxy:\n  http_bind_port: 0\n", 2, "proxy.http_bind_port", "must be at least 1"),
    ("proxy:\n  http_bind_port: 65536\n", 2, "proxy.http_bind_port", "must be at most 65535"),
    ("proxy:\n  bind_address: localhost\n", 2, "proxy.bind_address", "must be an IP address literal"),
    ("proxy:\n  model_host:\n", 2, "proxy.model_host", "expected a mapping, found nothing"),
    ("proxy: []\n", 1, "proxy", "expected a mapping, found a list"),
    (admin("enabled: yes"), 3, "proxy.admin.enabled", "expected true or false, found text"),
    (admin("port: 9007199254740992"), 3, "proxy.admin.port", "beyond ±9007199254740991"),
    (admin("password: 12345"), 3, "proxy.admin.password", "expected text (quote it"),
    (deployment("model: m", "engine: vlm"), 6, f"{D}.engine", "\"vlm\" is not one of the choices; did you mean 'vllm'"),
    (deployment("pull: manual"), 4, f"{D}.model", "required and missing"),
    (host("deployments:", "  a b: {model: m}"), 4, 'proxy.model_host.deployments."a b"', "may hold only letters"),
    (host("engines:", "  vlm: {}"), 4, "proxy.model_host.engines.vlm", "is not an engine; did you mean 'vllm'"),
    # documented, not in this version
    ("rate_limits: {}\n", 1, "rate_limits", "is not supported by this version"),
    ("proxy:\n  cluster: {}\n", 2, "proxy.cluster", "is not supported by this version"),
    ("proxy:\n  https_bind_port: 8443\n", 2, "proxy.https_bind_port", "is not supported by this version"),
    ("origins:\n  a:\n    action: {type: static, body: x}\n", 3, "origins.a.action.type", "static is not supported"),
    (host("authority: cluster_authority"), 3, "proxy.model_host.authority", "cluster_authority is not supported by"),
    (deployment("model: m", "heterogeneous_variants: true"), 6, f"{D}.heterogeneous_variants", "is not supported by"),
    (deployment("model: m", "required_labels: {a: b}"), 6, f"{D}.required_labels", "is not supported by this version"),
    (deployment("model: m", "spread_by: [zone]"), 6, f"{D}.spread_by", "is not supported by this version"),
    (providers("- {name: anthropic, api_key: k}"), 7, f"{P}[0].name", "protocol of anthropic is not supported"),
    (providers("- {name: x, provider_type: azure}"), 7, f"{P}[0].provider_type", "azure is not supported"),
    (providers("- {name: openai, weight: 2}"), 7, f"{P}[0].weight", "is not supported by this version"),
    (
        "origins: {a: {action: {type: ai_proxy, virtual_keys: []}}}\n",
        1,
        "origins.a.action.virtual_keys",
        "not accepted",
    ),
    # model host
    (deployment('model: ""'), 5, f"{D}.model", "must not be empty"),
    (deployment("model: m", "max_concurrency: 0"), 6, f"{D}.max_concurrency", "must be at least 1"),
    (deployment("model: m", "queue_timeout_ms: 0"), 6, f"{D}.queue_timeout_ms", "must be at least 1"),
    (deployment("model: m", "replicas: 0"), 6, f"{D}.replicas", "must be at least 1"),
    (deployment("model: m", "replicas: 2"), 6, f"{D}.replicas", "needs a variant, the one that all of them run"),
    (deployment("model: m", "spread_by: [z, z]"), 6, f"{D}.spread_by[1]", "stands twice"),
    (deployment("model: m", "spread_by: [a b]"), 6, f"{D}.spread_by[0]", "a label is 1 to 128"),
    (deployment("model: m", "spread_by: [a,b,c,d,e,f,g,h,i]"), 6, f"{D}.spread_by", "at most 8 labels, found 9"),
    (deployment("model: m", 'required_labels: {"": b}'), 6, f'{D}.required_labels.""', "must not be empty"),
    (deployment("model: m", 'required_labels: {a: ""}'), 6, f"{D}.required_labels.a", "must not be empty"),
    (host('catalog_file: ""'), 3, "proxy.model_host.catalog_file", "must not be empty"),
    (host('catalog_file: "a\\nb"'), 3, "proxy.model_host.catalog_file", "must not hold control characters"),
    (host(f"catalog_file: {'é' * 2049}"), 3, "proxy.model_host.catalog_file", "at most 4096 bytes"),
    (host("authority: admin_managed"), 2, "proxy.model_host.store_path", "admin_managed needs a store_path"),
    (host("safety_margin: 1.0"), 3, "proxy.model_host.safety_margin", "must be less than 1"),
    (host("safety_margin: .nan"), 3, "proxy.model_host.safety_margin", "infinite numbers and NaN are not accepted"),
    (host("handoff_timeout_ms: 86400001"), 3, "proxy.model_host.handoff_timeout_ms", "must be at most 86400000"),
    (host("max_parallel_prepares: 0"), 3, "proxy.model_host.max_parallel_prepares", "must be greater than 0"),
    (host("shutdown_deadline_ms: 0"), 3, "proxy.model_host.shutdown_deadline_ms", "must be greater than 0"),
    (host("cache: {directory: models}"), 3, "proxy.model_host.cache.directory", "must be an absolute path"),
    (host("cache: {directory: ~/models}"), 3, "proxy.model_host.cache.directory", "must be an absolute path"),
    (
        host("engines: {llama_cpp: {version: latest}}"),
        3,
        "proxy.model_host.engines.llama_cpp.version",
        "never 'latest'",
    ),
    (host("engines: {llama_cpp: {launch: uv}}"), 3, "proxy.model_host.engines.llama_cpp.launch", "uv is only for"),
    (host("engines: {vllm: {image: x}}"), 3, "proxy.model_host.engines.vllm.image", "only used with launch: container"),
    (host("engines: {vllm: {launch: container}}"), 3, "proxy.model_host.engines.vllm.image", "needs an image pinned"),
    (
        host("engines: {vllm: {launch: container, image: 'vllm:v1'}}"),
        3,
        "proxy.model_host.engines.vllm.image",
        "must be pinned by digest",
    ),
    (host("engines: {llama_cpp: {sha256: abc}}"), 3, "proxy.model_host.engines.llama_cpp.sha256", "64 lower-case hex"),
    (host("engines: {vllm: {shm_size_gib: 2}}"), 3, "proxy.model_host.engines.vllm.shm_size_gib", "only set with"),
    (host("engines: {vllm: {shm_size_gib: 0}}"), 3, "proxy.model_host.engines.vllm.shm_size_gib", "greater than 0"),
    # admin
    (admin("enabled: true", "bind: 0.0.0.0"), 2, "proxy.admin.password", "the default password is refused"),
    (admin("enabled: true", "allow_ips: [10.0.0.0/8]"), 2, "proxy.admin.password", "allow_ips holds 10.0.0.0/8"),
    (admin("enabled: true", "port: 8080"), 4, "proxy.admin.port", "taken by proxy.http_bind_port"),
    (admin("bind: localhost"), 3, "proxy.admin.bind", "must be an IP address literal"),
    (admin("allow_ips: [localhost]"), 3, "proxy.admin.allow_ips[0]", "must be an IP address or a network"),
    (admin("allow_ips: [10.0.0.1/8]"), 3, "proxy.admin.allow_ips[0]", "no bits set after the prefix"),
    (admin("cors_origins: [https://a.example/x]"), 3, "proxy.admin.cors_origins[0]", "without a path"),
    (admin("rate_limit_per_minute: 0"), 3, "proxy.admin.rate_limit_per_minute", "must be at least 1"),
    (admin("operators: [{username: o}]"), 3, "proxy.admin.operators[0].password", "needs a password or a password_h"),
    (
        admin("operators: [{username: o, password: p, password_hash: h}]"),
        3,
        "proxy.admin.operators[0].password_hash",
        "either a password or a password_hash",
    ),
    (admin("operators: [{username: admin, password: p}]"), 3, "proxy.admin.operators[0].username", "must differ"),
    (admin("operators:", "  - {username: o, password: p, role: root}"), 4, "proxy.admin.operators[0].role", '"root"'),
    (admin("tls: {cert: c.pem}"), 3, "proxy.admin.tls.key", "required and missing"),
    # origins
    ("origins:\n  API.example.com: {}\n", 2, 'origins."API.example.com"', "must be in lower case"),
    ("origins:\n  a.example:8080: {}\n", 2, 'origins."a.example:8080"', "must not hold a port"),
    ("origins:\n  a.*.example: {}\n", 2, 'origins."a.*.example"', "whole first label"),
    ("origins:\n  '*': {}\n", 2, 'origins."*"', "whole first label"),
    ("origins:\n  bücher.example: {}\n", 2, 'origins."bücher.example"', "punycode"),
    ("origins:\n  https://a.example: {}\n", 2, 'origins."https://a.example"', "must not hold a port"),
    ("origins:\n  a: {action: {type: ai_proxy, providers: []}}\n", 2, "origins.a.action.providers", "at least 1"),
    (providers("- {name: openai}", "- {name: openai}"), 8, f"{P}[1].name", "already the name of providers[0]"),
    (
        providers(
            "- {name: l, provider_type: managed_model, deployment: d, models: [q]}",
            "- {name: l, provider_type: managed_model, deployment: e, models: [q]}",
            deployments="{d: {model: m}, e: {model: m}}",
        ),
        8,
        f"{P}[1].name",
        '"q" of "l" already is deployment d',
    ),
    (providers("- {name: l, provider_type: managed_model}"), 7, f"{P}[0].deployment", "needs the id of a deployment"),
    (
        providers("- {name: l, provider_type: managed_model, deployment: dd}"),
        7,
        f"{P}[0].deployment",
        "there is no deployment \"dd\" in proxy.model_host.deployments; did you mean 'd'",
    ),
    (providers("- {name: l, provider_type: managed_model, deployment: d, api_key: k}"), 7, f"{P}[0].api_key", "has no"),
    (
        providers("- {name: l, provider_type: managed_model, deployment: d, base_url: u}"),
        7,
        f"{P}[0].base_url",
        "has no",
    ),
    (
        providers("- {name: l, provider_type: managed_model, deployment: d, serve: {models: [{model: m}]}}"),
        7,
        f"{P}[0].deployment",
        "a provider with a serve block has no deployment",
    ),
    (providers("- {name: openai, deployment: d}"), 7, f"{P}[0].deployment", "only a provider of provider_type managed"),
    (providers("- {name: opnai}"), 7, f"{P}[0].base_url", "needs a base_url or a provider_type; did you mean 'openai'"),
    (
        providers("- {name: x, provider_type: managed_modle}"),
        7,
        f"{P}[0].provider_type",
        "did you mean 'managed_model'",
    ),
    (providers("- {name: openai, models: [a], default_model: b}"), 7, f"{P}[0].default_model", '"b" is not in models'),
    (
        providers("- {name: l, provider_type: managed_model, deployment: d, default_model: b}"),
        7,
        f"{P}[0].default_model",
        '"b" is not in models',
    ),
    (providers("- {name: x, base_url: 'ftp://a.example'}"), 7, f"{P}[0].base_url", "http:// or https:// URL"),
    (providers("- {name: x, base_url: 'https://u:p@a.example'}"), 7, f"{P}[0].base_url", "must not hold credentials"),
    (providers("- {name: x, base_url: 'https://a.example/?k=1'}"), 7, f"{P}[0].base_url", "query or a fragment"),
    (providers("- {name: x, base_url: 'http://localhost:1/v1'}"), 7, f"{P}[0].base_url", "private or loopback"),
    (providers("- {name: x, base_url: 'http://10.1.2.3/v1'}"), 7, f"{P}[0].base_url", "private or loopback"),
    (providers("- {name: x, base_url: 'http://[::ffff:127.0.0.1]/v1'}"), 7, f"{P}[0].base_url", "private or loopback"),
    (providers("- {name: x, base_url: 'http://169.254.169.254/v1'}"), 7, f"{P}[0].base_url", "private or loopback"),
    (providers("- {name: x, base_url: 'http://2130706433/v1'}"), 7, f"{P}[0].base_url", "in its usual form"),
    (providers("- {name: openai, api_key: 'sk key'}"), 7, f"{P}[0].api_key", "printable ASCII without spaces"),
    (providers("- {name: openai, api_key: sk-é}"), 7, f"{P}[0].api_key", "printable ASCII without spaces"),
    # secrets
    (admin("password: ${UNSET}"), 3, "proxy.admin.password", "environment variable 'UNSET' is not set"),
    (admin("password: env:UNSET"), 3, "proxy.admin.password", "environment variable 'UNSET' is not set"),
    (admin("password: env:1X"), 3, "proxy.admin.password", "name of an environment variable"),
    (admin("password: ${A:-b}"), 3, "proxy.admin.password", "does not begin a reference"),
    (admin("password: file:pw"), 3, "proxy.admin.password", "must be followed by an absolute path"),
    (admin("password: file:/does/not/exist"), 3, "proxy.admin.password", "/does/not/exist cannot be read"),
    (admin("password: vault://kv/pw"), 3, "proxy.admin.password", "vault:// is not supported by this version"),
    (admin("password: secret:pw"), 3, "proxy.admin.password", "secret:<name> was removed"),
    (admin('password: ""'), 3, "proxy.admin.password", "the secret is empty"),
    (admin('password: "a\\nb"'), 3, "proxy.admin.password", "control characters"),
    (admin("password: '***MASKED***'"), 3, "proxy.admin.password", "not a secret"),
]


@pytest.mark.parametrize(("text", "line", "path", "reason"), CASES, ids=[f"{c[2]}-{c[3][:30]}" for c in CASES])
def test_refused_with_line_path_and_reason(text: str, line: int, path: str, reason: str) -> None:
    found = problems(text)
    matching = [p for p in found if p.path == path and reason in p.text()]
    assert matching, [p.text() for p in found]
    assert matching[0].line == line
    assert matching[0].text().startswith(f"sb.yml:{line}: {path + ': ' if path else ''}")


def test_everything_at_once_in_the_order_of_the_lines() -> None:
    found = problems(
        "proxy:\n"
        "  http_bind_port: x\n"
        "  admin: {prot: 1}\n"
        "  model_host:\n"
        "    deployments:\n"
        "      a: {model: m, replicas: 2}\n"
        "      a: {model: m}\n"
        "origins:\n"
        "  H:\n"
        "    action: {type: ai_proxy, providers: [{name: 1}, {name: l, provider_type: managed_model, deployment: z}]}\n"
    )
    assert [(p.line, p.path) for p in found] == [
        (2, "proxy.http_bind_port"),
        (3, "proxy.admin.prot"),
        (6, "proxy.model_host.deployments.a.replicas"),
        (7, "proxy.model_host.deployments.a"),
        (9, "origins.H"),
        (10, "origins.H.action.providers[0].name"),
        (10, "origins.H.action.providers[1].deployment"),
    ]


def test_a_wrong_value_is_not_reported_again_by_the_rules_that_look_at_it() -> None:
    text = providers(
        "- {name: l, provider_type: managed_model, deployment: d}",
        "- {name: x, base_url: 5}",
        "- {name: y, provider_type: []}",
        deployments="{d: {modle: m}}",
    )
    assert [p.path for p in problems(text)] == [
        f"{D}.model",
        f"{D}.modle",
        f"{P}[1].base_url",
        f"{P}[2].provider_type",
    ]


E = "proxy.model_host.engines.vllm"
A = "proxy.admin"
ENGINE = {
    f"{E}.version": "version: latest",
    f"{E}.sha256": "sha256: zz",
    f"{E}.image": "image: foo:latest",
    f"{E}.path": 'path: ""',
    f"{E}.acceleration": "acceleration: rocm",
    f"{E}.imagge": "imagge: x",
    f"{E}.shm_size_gib": "shm_size_gib: 2",
}
DEPLOYMENT = {
    f"{D}.model": "model: 5",
    f"{D}.replicas": "replicas: 2",
    f"{D}.spread_by": "spread_by: [z]",
    f"{D}.required_labels.a": 'required_labels: {a: ""}',
    f"{D}.pull": "pull: often",
    f"{D}.engine": "engine: vlm",
    f"{D}.cold_start": "cold_start: sometimes",
    f"{D}.maxcontext": "maxcontext: 1",
}
ADMIN = {
    f"{A}.port": "port: 8080",
    f"{A}.password": "bind: 0.0.0.0",
    f"{A}.username": "username: 5",
    f"{A}.cors_origins[1]": "cors_origins: [https://a.example, x]",
    f"{A}.allow_ips[0]": "allow_ips: [localhost]",
    f"{A}.operators[1].password": "operators: [{username: 1, password: p}, {username: o}]",
    f"{A}.ratelimit": "ratelimit: 1",
}
PROVIDER = {
    f"{P}[0].name": "name: 5",
    f"{P}[0].base_url": "base_url: 'ftp://a.example'",
    f"{P}[0].deployment": "deployment: d",
    f"{P}[0].default_model": "models: [a], default_model: b",
    f"{P}[0].api_key": "api_key: 'sk key'",
    f"{P}[0].timeout_ms": "timeout_ms: 0",
    f"{P}[0].weight": "weight: 2",
}


def flow(lines: tuple[str, ...]) -> str:
    return "{" + ", ".join(lines) + "}"


BLOCKS = {
    "engine": (ENGINE, lambda *lines: host("engines: {vllm: " + flow(lines) + "}")),
    "deployment": (DEPLOYMENT, lambda *lines: host("deployments: {d: " + flow(lines) + "}")),
    "admin": (ADMIN, lambda *lines: admin("enabled: true", *lines)),
    "provider": (PROVIDER, lambda *lines: providers("- " + flow(lines))),
}


@pytest.mark.parametrize("block", BLOCKS)
@given(data=st.data())
def test_no_problem_hides_another_of_the_same_block(block: str, data: st.DataObject) -> None:
    wrong, document = BLOCKS[block]
    chosen = data.draw(st.lists(st.sampled_from(sorted(wrong)), unique=True, min_size=1))
    found = {problem.path for problem in problems(document(*(wrong[path] for path in chosen)))}
    assert set(chosen) <= found


def test_a_key_that_is_missing_hides_no_rule_of_its_block() -> None:
    text = host("deployments: {d: {modle: m, replicas: 2, spread_by: [z]}}")
    reasons = [(p.path, p.reason.partition(" is not")[0]) for p in problems(text)]
    assert reasons == [
        (f"{D}.model", "this key is required and missing"),
        (f"{D}.modle", "unknown key"),
        (
            f"{D}.replicas",
            "more than one replica needs a variant, the one that all of them run; 'sbproxy models show' lists them",
        ),
        (f"{D}.spread_by", "spreading replicas"),
    ]


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        # A rule that reads a wrong value is silent, because its finding may only follow from that value.
        (host("engines: {vllm: {launch: contaner, image: 'x:1'}}"), [f"{E}.image", f"{E}.launch"]),
        (host("engines: {vllm: {launch: container, imagee: 'x:1'}}"), [f"{E}.imagee"]),
        (admin("enabled: true", "bind: 0.0.0.0", "password: [x]"), [f"{A}.password"]),
        (admin("enabled: 1", "bind: 0.0.0.0", "port: 8080"), [f"{A}.enabled"]),
        (admin("operators: [{username: 5, password: p}, {username: x, password: p}]"), [f"{A}.operators[0].username"]),
        (providers("- {name: openai, models: 5, default_model: b}"), [f"{P}[0].models"]),
        (providers("- {nam: x}", "- {name: x, base_url: 'https://a.example'}"), [f"{P}[0].name", f"{P}[0].nam"]),
        ("origins: {a: {action: {type: ai_proxy, providers: {}}}}\n", ["origins.a.action.providers"]),
        (host("cache: {budget_gib: .nan}"), ["proxy.model_host.cache.budget_gib"]),
    ],
)
def test_what_only_follows_from_a_wrong_value_is_not_told(text: str, paths: list[str]) -> None:
    assert sorted(p.path for p in problems(text)) == sorted(paths)


def test_indexes_are_those_of_the_text() -> None:
    text = providers("- 5", "- {name: openai}", "- {name: openai}")
    assert [(p.path, p.reason) for p in problems(text)] == [
        (f"{P}[0]", "expected a mapping, found a whole number"),
        (f"{P}[2].name", '"openai" is already the name of providers[1]; names must differ'),
    ]


def test_a_misspelt_password_is_not_reported_as_the_default_one() -> None:
    found = problems(admin("enabled: true", "bind: 0.0.0.0", "pasword: mine"))
    assert [(p.path, p.near) for p in found] == [("proxy.admin.pasword", "password")]


def test_a_document_full_of_mistakes_is_cut() -> None:
    found = problems("proxy: {" + ", ".join(f"x{n}: 1" for n in range(300)) + "}\n")
    assert len(found) == 201
    assert found[-1].text() == "sb.yml: and 100 more problems"


def test_a_secret_never_stands_in_an_error() -> None:
    text = providers(
        "- {name: l, provider_type: managed_model, deployment: d, api_key: canary-1}",
        "- {name: x, base_url: 'https://u:canary-2@a.example', api_key: \"canary-3\\n\"}",
        "- {name: y, api_key: [canary-4]}",
        "- {name: z, api_key: '${KEY}', extra: 1}",
        "- {name: w, base_url: 'https://u:canary-6@a.example'}",
        "- {name: v, api_key: 'vault://canary-7', models: canary-8}",
    )
    found = problems(text, KEY="canary-5")
    assert len(found) >= 7
    assert "canary" not in repr(found) + "\n".join(p.text() for p in found)


@pytest.mark.parametrize("host", ["127.1", "0x7f.1", "017700000001", "1.2.3.4.5", "a..b", "-a", "a_b.example\u3002com"])
def test_hosts_in_an_unusual_form(host: str) -> None:
    (problem,) = problems(providers(f"- {{name: x, base_url: 'http://{host}/v1', allow_private_base_url: true}}"))
    assert problem.path == f"{P}[0].base_url"


def test_unknown_top_level_keys_only_warn() -> None:
    loaded = load_text("proxi: {}\nproxy: {}\n", path=Path("sb.yml"), environ={})
    assert [w.text() for w in loaded.warnings] == [
        "sb.yml:1: proxi: unknown top-level key, ignored; did you mean 'proxy'? allowed: proxy, origins"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "proxy: {}",
        "origins: {}",
        providers("- {name: ollama}", "- {name: gpt, provider_type: openai, api_key: k}"),
        providers("- {name: x, base_url: 'http://10.0.0.1/v1', allow_private_base_url: true}"),
        providers("- {name: x, base_url: 'https://llm.example.com/v1'}"),
        providers("- {name: l, provider_type: managed_model, deployment: d, default_model: d}"),
        "origins: {'*.example.com': {action: {type: ai_proxy, providers: [{name: openai}]}}}",
        "origins: {'[::1]': {action: {type: ai_proxy, providers: [{name: openai}]}}}",
        admin("enabled: true", "bind: 0.0.0.0", "password: mine"),
        admin("enabled: true", "allow_ips: [127.0.0.1, '::1', 10.0.0.0/8]", "password: mine"),
        admin("enabled: false", "bind: 0.0.0.0", "port: 8080"),
        "proxy: {bind_address: 127.0.0.1, admin: {enabled: true, port: 8080, bind: 127.0.0.2}}",
        deployment("model: m", "cold_start: reject", "max_queue_depth: 0", "kv_quant: int8", "extra_args: ['--x']"),
        deployment("model: m", "replicas: 1", "tensor_parallel: 1", "spread_by: []", "required_labels: {}"),
        "proxy: {extensions: {anything: [1, {at: all}]}}",
    ],
)
def test_accepted(text: str) -> None:
    assert load_text(text, path=Path("sb.yml"), environ={}).warnings == ()
