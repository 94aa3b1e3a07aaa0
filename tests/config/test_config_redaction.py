"""The text that the configuration editor shows: no secret in it, and all else as written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbproxy.config.redacted_text import mask_lines, redacted

TEXT = """\
# a note: sk-abcdefghijklmnopqrstuvwx was the old key
proxy:
  admin: {enabled: true, password: hunter2hunter2, port: 9090}   # keep me
  x: &p "al\\
    iased-secret"
  operators:
    - username: ann
      password: &q 'lite''ral-secret'
    - username: bob
      password: *p
    - {username: "${WHO}", password: "${VAR}", token: [list-secret, env:TOKEN]}
  private_key: |
    block-secret

    more-block-secret
  next: file:/etc/x
origins:
  h:
    headers: {X-Foo: header-secret, Y: env:FOO, Z: "vault://kv/a"}
    api_key: >-
      folded-secret
      tail-secret
    base_url: https://user:url-secret@host/v1
    note: Bearer abcdefghijklmnop
"""
SHOWN = """\
# a note: [REDACTED] was the old key
proxy:
  admin: {enabled: true, password: "[REDACTED]", port: 9090}   # keep me
  x: &p "[REDACTED]"
  operators:
    - username: ann
      password: &q "[REDACTED]"
    - username: bob
      password: *p
    - {username: "${WHO}", password: "${VAR}", token: ["[REDACTED]", env:TOKEN]}
  private_key: "[REDACTED]"
  next: file:/etc/x
origins:
  h:
    headers: {X-Foo: "[REDACTED]", Y: env:FOO, Z: "vault://kv/a"}
    api_key: "[REDACTED]"
    base_url: https://user:[REDACTED]@host/v1
    note: Bearer [REDACTED]
"""


def test_secrets_are_masked_and_the_rest_is_byte_for_byte() -> None:
    assert redacted(TEXT) == SHOWN
    assert redacted(SHOWN) == SHOWN


@pytest.mark.parametrize(
    "harmless", ["", "a: 1\n", "# only a comment", "password:\n", "password: ''\n", "a: [b, c]\r\n"]
)
def test_what_holds_no_secret_stays(harmless: str) -> None:
    assert redacted(harmless) == harmless


def test_text_that_is_no_yaml_hides_all_behind_a_secret_key() -> None:
    broken = TEXT.replace("origins:", "origins: [")
    shown = redacted(broken)
    assert "secret" not in shown
    assert "hunter2" not in shown
    assert "next: file:/etc/x" in shown
    only_broken = "a: b: c\npassword:\n  multi-secret\n  line-secret\nport: 1\n{b: 1, api_key: flow-secret, c: 2}\n"
    assert redacted(only_broken) == (
        "a: b: c\npassword: [REDACTED]\n  [REDACTED]\n  [REDACTED]\nport: 1\n{b: 1, api_key: [REDACTED]\n"
    )


@given(st.text(max_size=200))
def test_it_never_raises(text: str) -> None:
    redacted(text)
    mask_lines(text)


@given(st.text(alphabet="abc: \n-[]{}'\"#&*|>pw", max_size=80))
def test_no_prefix_lets_a_secret_out(prefix: str) -> None:
    """A line of its own that names a secret key is masked whatever stands before it, YAML or not, unless what stands
    before it makes it part of something else, which then is no key of ours."""
    shown = redacted(f"{prefix}\npassword: Zq7Zq7Zq7\n")
    inside_quotes = prefix.count('"') or prefix.count("'")
    block = "|" in prefix or ">" in prefix
    if not inside_quotes and not block and "#" not in prefix:
        assert "Zq7" not in shown


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (SHOWN, (3, 4, 7, 10, 11, 15, 16, 17, 18)),
        ("# [REDACTED]\na: b\n", ()),
        ("a: 1\nb: [REDACTED]\n", (2,)),
        ("b:\n  - REDACTED\n", ()),
        ("b: [", ()),
    ],
)
def test_where_the_mask_stands(text: str, lines: tuple[int, ...]) -> None:
    assert mask_lines(text) == lines
