"""``${VAR}``: what a variable's content may do to a document, and what it may not (contracts section 2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbproxy.config.core.interpolation import expand
from sbproxy.config.core.tree import Node, Scalar, Table, plain
from sbproxy.config.load import Loaded, load_text
from sbproxy.config.yaml_text import read_tree
from sbproxy.errors.config import ConfigInvalid, ConfigUnreadable


def load(text: str, **environ: str) -> Loaded:
    return load_text(text, path=Path("sb.yml"), environ=environ)


def data(text: str, **environ: str) -> Any:
    reading = read_tree(text, file="sb.yml", environ=environ)
    assert reading.root is not None, reading.problems
    return plain(reading.root)


def test_a_plain_scalar_gets_the_type_of_what_it_becomes() -> None:
    assert load("proxy: {http_bind_port: ${PORT}}", PORT="9001").config.proxy.http_bind_port == 9001
    assert load("proxy: {admin: {enabled: ${ON}}}", ON="true").config.proxy.admin.enabled is True
    assert data("a: ${X}", X="0.5") == {"a": 0.5}
    assert data("a: '${X}'", X="5") == {"a": "5"}
    assert data("a: 1${X}", X="5") == {"a": 15}


def test_a_variable_never_becomes_nothing() -> None:
    assert data("a: ${X}\nb: ${Y}\nc: ${Z}", X="", Y="null", Z="~") == {"a": "", "b": "null", "c": "~"}


def test_keys_are_filled_in_and_checked_for_duplicates_afterwards() -> None:
    assert data("${X}: 1", X="k") == {"k": 1}
    reading = read_tree("k: 1\n${X}: 2", file="sb.yml", environ={"X": "k"})
    assert [p.text() for p in reading.problems] == ["sb.yml:2: k: duplicate key; it is first written at line 1"]


def test_a_bare_reference_may_stand_in_a_flow_mapping() -> None:
    assert data("{a: ${X}, b: [${X}, x${Y}]}", X="1") == {"a": 1, "b": [1, "x${Y}"]}
    reading = read_tree('a: "\\${X}"', file="sb.yml", environ={})
    assert reading.problems[0].text().startswith("sb.yml:1: YAML syntax: ")
    assert "characters U+FDD0 to" in read_tree("a: \ufdd0X", file="sb.yml", environ={}).problems[0].reason


def test_comments_do_not_matter() -> None:
    assert load("# ${UNSET}\nproxy: {} # ${ALSO_UNSET}\n").warnings == ()


def test_what_is_not_set_stays_as_written_with_a_warning() -> None:
    loaded = load("proxy:\n  extensions:\n    a: x-${UNSET}\n    b: ${SET:-d}\n")
    assert loaded.config.proxy.extensions == {"a": "x-${UNSET}", "b": "${SET:-d}"}
    assert [(w.line, w.path, w.reason.split(";")[0]) for w in loaded.warnings] == [
        (3, "proxy.extensions.a", "environment variable 'UNSET' is not set"),
        (4, "proxy.extensions.b", "'${' does not begin a reference"),
    ]


def test_there_is_no_second_pass() -> None:
    assert data("a: ${X}", X="${Y}", Y="secret") == {"a": "${Y}"}


def test_growth_is_bounded() -> None:
    reading = read_tree("a: " + "${X}" * 20, file="sb.yml", environ={"X": "x" * 100_000})
    assert "longer than" in reading.problems[0].text()
    many = "\n".join(f"k{n}: ${{X}}" for n in range(200))
    reading = read_tree(many, file="sb.yml", environ={"X": "x" * 100_000})
    assert "grows too large" in reading.problems[0].text()


def shape(node: Node) -> Any:
    """The structure without the values."""
    if isinstance(node, Scalar):
        return "."
    if isinstance(node, Table):
        return [(entry.key, shape(entry.value)) for entry in node.entries]
    return [shape(item) for item in node.items]


printable = st.text(st.characters(blacklist_categories=("Cs",)), max_size=40)
hostile = st.sampled_from(
    ["a: b", "\n- x", "{a: 1}", "[1, 2]", "'", '"', "# c", "*a", "&a", "!t x", "\nk: v", "${P}", "---", ": "]
)
content = st.one_of(printable, hostile, st.tuples(hostile, printable).map("".join))
TEMPLATE = "a: ${X}\nb: [${X}, '${X}', \"${X}\"]\nc: {d: x${X}y}\ne: |\n  ${X}\nf: >-\n  ${X} z\n"


@given(content)
def test_content_never_adds_structure(value: str) -> None:
    reading = read_tree(TEMPLATE, file="sb.yml", environ={"X": value})
    if reading.root is None or reading.problems:
        # The only other outcome: a number that is out of range.
        assert all("accepted" in p.reason or "out of range" in p.reason for p in reading.problems)
        return
    without = read_tree(TEMPLATE, file="sb.yml", environ={"X": "x"}).root
    assert without is not None
    assert shape(reading.root) == shape(without)
    document = plain(reading.root)
    assert document["b"][1] == document["b"][2] == value
    assert document["c"]["d"] == f"x{value}y" or isinstance(document["c"]["d"], str)


@given(st.text("${}AB_ ", max_size=30), st.dictionaries(st.sampled_from(["A", "B", "_A"]), st.text("${}A", max_size=5)))
def test_expansion_replaces_exactly_the_references(written: str, environ: dict[str, str]) -> None:
    expansion = expand(written, environ)
    assert all(f"${{{name}}}" in written and name not in environ for name in expansion.missing)
    if not any(f"${{{name}}}" in written for name in environ):
        assert expansion.text == written


yamlish = st.lists(
    st.sampled_from(
        ["proxy", "origins", ":", " ", "\n", "  ", "- ", "{", "}", "[", "]", "admin", "port", "model_host", "1", "true",
         "'", '"', "&a ", "*a", "!x ", "|", ">", "?", "#", ",", "~", "${X}", "${", "<<", "---", "\t", "é", "\\U"]
    ),
    max_size=40,
).map("".join)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.one_of(yamlish, st.text(max_size=60)))
def test_any_text_is_loaded_or_refused(text: str) -> None:
    try:
        loaded = load(text, X="a: b")
    except (ConfigInvalid, ConfigUnreadable) as error:
        refused = error.text()
    else:
        refused = ""
        assert len(loaded.revision) == len(loaded.content_hash) == 12
    assert refused == "" or all(line.startswith("sb.yml") for line in refused.splitlines())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", "yes"), ("no", "no"), ("on", "on"), ("1:30", "1:30"), ("2024-01-01", "2024-01-01"), ("1_000", "1_000"),
        ("0.10.0", "0.10.0"), ("b9905", "b9905"), ("true", True), ("FALSE", False), ("~", None), ("", None),
        ("0x1F", 31), ("0o17", 15), ("017", 17), ("+5", 5), ("-5", -5), ("1e3", 1000.0), (".5", 0.5), ("5.", 5.0),
        ("!!str 5", "5"), ("! 5", "5"), ("'5'", "5"),
    ],
)  # fmt: skip
def test_types_of_plain_scalars(text: str, value: object) -> None:
    read = data(f"k: {text}")["k"]
    assert (read, type(read)) == (value, type(value))


BOMB = "k0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"k{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (BOMB, "more than 100000 values"),
        ("x: " + "[" * 5000, "nested deeper than 64 levels"),
        ("\n".join(f"a{n}: &a{n} [[[[[[*a{n - 1}]]]]]]" if n else "a0: &a0 []" for n in range(60)), "nested deeper"),
        ("a: &x [*x]", "alias *x has no complete anchor before it"),
        ("a: *nowhere", "alias *nowhere"),
        ('a: "\\UFFFFFFFF"', "names no character"),
        ('a: "\\uD800"', "half of a surrogate pair"),
        ("a: \x01", "character U+0001 is not allowed"),
        ("? [a]\n: b", "a key must be text"),
        ("", "the file is empty"),
        ("# only a comment\n", "the file is empty"),
        ("x" * ((4 << 20) + 1), "larger than 4 MiB"),
    ],
    ids=lambda value: value[:20],
)  # fmt: skip
def test_text_that_cannot_be_followed(text: str, reason: str) -> None:
    reading = read_tree(text, file="sb.yml")
    assert reason in reading.problems[0].text()


def test_anchors_are_shared_text_and_separate_values() -> None:
    loaded = load("origins:\n  a: &o {action: {type: ai_proxy, providers: [{name: openai, api_key: k}]}}\n  b: *o\n")
    assert loaded.config.origins["a"] == loaded.config.origins["b"]
