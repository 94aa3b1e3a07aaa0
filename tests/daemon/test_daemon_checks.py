"""What crosses the rooms of a configuration is refused at load, with everything else that is wrong in it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbproxy.admin.passwords import hash_password
from sbproxy.catalog.document import builtin_catalog
from sbproxy.config.core.model_host import DeploymentConfig, ModelHostConfig
from sbproxy.config.load import load_text
from sbproxy.daemon.checks import argument_findings, crossing_findings, load_checked
from sbproxy.engines.core.extra_args import ALLOWED, parse_extra_args
from sbproxy.errors.config import ConfigInvalid, Problem
from sbproxy.errors.engines import UnsafeArgument
from support.daemon import tiny_catalog

D = "proxy.model_host.deployments"


def checked(path: Path, text: str) -> list[str]:
    """Every problem of ``text``, as ``line: key path: …`` in the file ``path``."""
    path.write_text(text)
    return [problem.text().removeprefix(f"{path}:") for problem in problems_of(path)]


def problems_of(path: Path) -> tuple[Problem, ...]:
    with pytest.raises(ConfigInvalid) as caught:
        load_checked(path, {}, resolve_secrets=False)
    assert caught.value.file == str(path)
    return caught.value.problems


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sb.yml"


def test_names_that_the_catalog_lacks(path: Path) -> None:
    found = checked(
        path,
        "proxy:\n"
        "  prt: 1\n"
        "  model_host:\n"
        "    deployments:\n"
        "      a: {model: smollm2-135m-instruc}\n"
        "      b: {model: qwen2.5-0.5b-instruct, variant: q4_k_s}\n"
        "      c: {model: qwen2.5-0.5b-instruct, variant: q4_k_m}\n"
        "      d: {model: 5}\n",
    )
    assert found == [
        (
            "2: proxy.prt: unknown key; allowed: http_bind_port, bind_address, admin, model_host, key_management,"
            " extensions"
        ),
        (
            f'5: {D}.a.model: there is no model "smollm2-135m-instruc" in the catalog;'
            " did you mean 'smollm2-135m-instruct'?"
        ),
        (
            f'6: {D}.b.variant: model qwen2.5-0.5b-instruct has no variant "q4_k_s";'
            " did you mean 'q4_k_m'? allowed: q4_k_m, bf16"
        ),
        f"8: {D}.d.model: expected text (quote it when it looks like a number), found a whole number",
    ]


def test_every_unsafe_argument_is_named_with_its_line(path: Path) -> None:
    found = checked(
        path,
        "proxy:\n"
        "  model_host:\n"
        "    deployments:\n"
        "      a:\n"
        "        model: smollm2-135m-instruct\n"
        "        extra_args:\n"
        "          - --model\n"
        "          - /etc/passwd\n"
        "          - --threads\n"
        "          - '4'\n"
        "          - --api-key=hunter2\n"
        "          - --threads=8\n"
        "          - --poll\n",
    )
    at = f"{D}.a.extra_args"
    assert found == [
        f"7: {at}[0]: '--model' is not allowed: the model belongs to the model host",
        f"11: {at}[4]: '--api-key' is not allowed: access to the engine belongs to the model host",
        f"12: {at}[5]: '--threads' is not allowed: it is given twice",
        f"13: {at}[6]: '--poll' is not allowed: its value is missing",
    ]


def test_arguments_are_checked_whatever_else_is_wrong_beside_them(path: Path) -> None:
    text = "proxy: {model_host: {deployments: {a: {modle: x, warm: 5, extra_args: [--host, 0.0.0.0]}}}}\n"
    path.write_text(text)
    assert [problem.path for problem in problems_of(path)] == [
        f"{D}.a.extra_args[0]",
        f"{D}.a.model",
        f"{D}.a.modle",
        f"{D}.a.warm",
    ]


words = st.lists(
    st.sampled_from([*sorted(ALLOWED), "-t", "4", "q8", "--model", "--threads=4", "--x=1", "-", ""]), max_size=6
)


@given(words)
def test_arguments_are_refused_at_load_exactly_when_the_engine_would_refuse_them(args: list[str]) -> None:
    host = ModelHostConfig(deployments={"d": DeploymentConfig(model="smollm2-135m-instruct", extra_args=args)})
    config = load_text("proxy: {}", path=Path("sb.yml"), environ={}).config
    config = config.model_copy(update={"proxy": config.proxy.model_copy(update={"model_host": host})})
    found = list(crossing_findings(config, builtin_catalog()))
    try:
        parse_extra_args(tuple(args))
        refused = None
    except UnsafeArgument as error:
        refused = f"{error.argument!r} is not allowed: {error.reason}"
    assert [each.reason for each in found][:1] == ([refused] if refused else [])


@pytest.mark.parametrize(
    ("catalog", "expected"),
    [
        (None, ["3: proxy.model_host.catalog_file: catalog DIR/c.yml: No such file or directory"]),
        ("schema_version: 2\nmodels: {}\n", ["DIR/c.yml:1: catalog_revision: this key is required and missing"]),
        ("[\n", ["DIR/c.yml:2: YAML syntax"]),
    ],
)
def test_a_catalog_that_cannot_be_used_is_told_with_all_the_rest(
    path: Path, catalog: str | None, expected: list[str]
) -> None:
    if catalog is not None:
        (path.parent / "c.yml").write_text(catalog)
    found = checked(
        path,
        "proxy:\n"
        "  prt: 1\n"
        "  model_host: {catalog_file: c.yml, deployments: {d: {model: any, extra_args: [--model, x], replicas: 0}}}\n",
    )
    own = ["2: proxy.prt", f"3: {D}.d.extra_args[0]", f"3: {D}.d.replicas"]
    places = [line.replace(str(path.parent), "DIR").strip() for line in found]
    assert len(places) == len(own) + len(expected)
    assert all(any(place.startswith(each) for place in places) for each in own + expected), places


def test_names_are_not_looked_up_in_another_catalog_than_the_configured_one(path: Path) -> None:
    path.write_text("proxy: {model_host: {catalog_file: '', deployments: {d: {model: of-mine}}}}\n")
    assert [problem.path for problem in problems_of(path)] == ["proxy.model_host.catalog_file"]


@pytest.mark.parametrize(
    ("engine", "refused"),
    [("vllm", [0, 2]), ("sglang", [0, 1]), ("mistralrs", [0, 1, 2]), ("llama_cpp", [0, 1, 2])],
)
def test_arguments_are_looked_up_in_the_list_of_the_engine(engine: str, refused: list[int]) -> None:
    args = ["--port=1", "--enforce-eager", "--disable-radix-cache"]
    found = argument_findings(DeploymentConfig.model_validate({"model": "m", "engine": engine, "extra_args": args}), ())
    assert [each.path[-1] for each in found] == refused


def test_where_two_engines_may_come_one_that_takes_an_argument_is_enough() -> None:
    catalog = builtin_catalog()
    model = next(iter(catalog.models.values()))
    both = dataclasses.replace(model, variants=(dataclasses.replace(model.variants[0], engines=("vllm", "llama_cpp")),))
    args = ["--threads", "4", "--enforce-eager", "--host=x"]
    deployment = DeploymentConfig(model=model.id, extra_args=args)
    found = list(argument_findings(deployment, (), dataclasses.replace(catalog, models={model.id: both})))
    assert [each.path[-1] for each in found] == [3]


def test_a_variant_that_no_machine_could_run(path: Path) -> None:
    (found,) = checked(path, "proxy: {model_host: {deployments: {d: {model: qwen2.5-0.5b-instruct, variant: bf16}}}}\n")
    assert found == (
        f"1: {D}.d.variant: no machine can run it with this version:"
        " bf16: its engine must be asked for by name: mistralrs"
    )


def test_a_password_hash_that_cannot_be_read(path: Path) -> None:
    good = hash_password("s3cret")
    text = "proxy:\n  admin:\n    operators:\n" + "".join(
        f"      - {{username: {name}, password_hash: '{text}'}}\n" for name, text in (("a", good), ("b", "scrypt$x"))
    )
    (found,) = checked(path, text)
    assert found == (
        "5: proxy.admin.operators[1].password_hash: it must have the form scrypt$n$r$p$salt$hash;"
        " write the line of: sbproxy admin hash-password --password-stdin"
    )


def test_needs_no_secret_and_hands_out_the_catalog(path: Path) -> None:
    tiny_catalog(path.parent)
    path.write_text("proxy: {admin: {password: ${UNSET}}, model_host: {catalog_file: catalog.yml}}\n")
    result = load_checked(path, {}, resolve_secrets=False)
    assert result.loaded.secrets_resolved is False
    assert list(result.catalog.models) == ["tiny-model"]
    with pytest.raises(ConfigInvalid, match="'UNSET' is not set"):
        load_checked(path, {})


def test_a_setting_that_the_engine_lacks_is_said_at_load(path: Path) -> None:
    found = checked(
        path,
        "proxy:\n"
        "  model_host:\n"
        "    deployments:\n"
        "      a: {model: smollm2-135m-instruct, swap_space_gib: 2, chunked_prefill: {max_batched_tokens: 64}}\n"
        "      b: {model: qwen2.5-0.5b-instruct, variant: bf16, engine: mistralrs, cpu_offload_gib: 1}\n",
    )
    assert sorted(found) == sorted(
        [
            (
                f"4: {D}.a.swap_space_gib: llama_cpp has no swap_space_gib; remove it, or use an engine that has it"
                " (vllm)"
            ),
            (
                f"4: {D}.a.chunked_prefill: llama_cpp has no chunked_prefill; remove it, or use an engine that has it"
                " (vllm, sglang)"
            ),
            (
                f"5: {D}.b.cpu_offload_gib: mistralrs has no cpu_offload_gib; remove it, or use an engine that has it"
                " (vllm, sglang)"
            ),
        ]
    )
