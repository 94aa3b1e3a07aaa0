"""What is a secret in a query, in the request log and in log lines alike."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbproxy.observe.core.redact import MASK, Redactor, names_secret, redact_query

SECRET_NAMES = (
    "key", "api-key", "API_KEY", "token", "access_token", "sig", "X-Amz-Signature", "X-Amz-Credential", "pass",
    "password", "pwd", "passphrase", "secret", "client_secret", "auth", "Authorization", "code", "session_id", "jwt",
)  # fmt: skip
PLAIN_NAMES = ("limit", "after", "model", "api-version", "q", "order", "page")
VALUE = st.text(st.characters(codec="utf-8", exclude_characters="&;\n"), min_size=1, max_size=20).map(
    lambda text: quote(text, safe="=/:")
)


@st.composite
def _spelled(draw: st.DrawFn, names: tuple[str, ...]) -> str:
    """A name with some of its characters percent-encoded, as a server behind us would still read it."""
    name = draw(st.sampled_from(names))
    encoded = draw(st.sets(st.integers(0, len(name) - 1)))
    return "".join(f"%{ord(each):02x}" if at in encoded else each for at, each in enumerate(name))


PARAMETERS = st.lists(
    st.tuples(_spelled(SECRET_NAMES) | _spelled(PLAIN_NAMES), VALUE, st.sampled_from("&;")), min_size=1, max_size=6
)


@given(PARAMETERS)
def test_secret_values_go_and_everything_else_stays(parameters: list[tuple[str, str, str]]) -> None:
    query = "".join(f"{name}={value}{end}" for name, value, end in parameters)
    expected = "".join(f"{name}={MASK if names_secret(name) else value}{end}" for name, value, end in parameters)
    assert redact_query(query) == expected
    assert redact_query(expected) == expected


@given(_spelled(SECRET_NAMES))
def test_a_secret_name_is_one_however_it_is_spelled(name: str) -> None:
    assert names_secret(name)


@given(_spelled(PLAIN_NAMES))
def test_an_ordinary_name_is_none(name: str) -> None:
    assert not names_secret(name)


@given(st.text(max_size=60))
def test_any_text_is_taken(query: str) -> None:
    assert redact_query(redact_query(query)) == redact_query(query)


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_log_lines_follow_the_same_rule(name: str) -> None:
    line = Redactor().redact(f"GET https://a.test/x?limit=2&{name}=hunter2#top failed; retry=3")
    assert line == f"GET https://a.test/x?limit=2&{name}={MASK}#top failed; retry=3"
