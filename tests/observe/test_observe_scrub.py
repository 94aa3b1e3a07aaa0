"""What a terminal or a log line may show, and what is masked in it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbproxy.observe.core.redact import MASK, Redactor
from sbproxy.observe.core.scrub import scrub


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain text", "plain text"),
        ("größer — 日本語 🙂", "größer — 日本語 🙂"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[38;2;1;2;3mred", "red"),
        ("a\x1b]0;evil title\x07b", "ab"),
        ("a\x1b]8;;http://host.invalid\x1b\\link\x1b]8;;\x1b\\b", "alinkb"),
        ("a\x1bPsome dcs\x1b\\b", "ab"),
        ("a\x9b31mb", "ab"),
        ("a\x9d0;title\x9cb", "ab"),
        ("a\x1bcb", "ab"),
        ("a\x1b", "a"),
        ("a\x1b[", "a"),
        ("two\nlines\r\n\tand a tab", "two lines   and a tab"),
        ("nul\x00 bell\x07 back\x08", "nul bell back"),
        ("user\u202egnp.exe", "usergnp.exe"),
        ("zero\u200bwidth\ufeff", "zerowidth"),
        ("line\u2028separator", "line separator"),
        ("no\u00a0break", "no break"),
        ("lone \ud800 surrogate", "lone  surrogate"),
        ("tag\U000e0041", "tag"),
        ("", ""),
    ],
)
def test_scrub(raw: str, shown: str) -> None:
    assert scrub(raw) == shown


def test_scrub_cuts_and_says_so() -> None:
    assert scrub("abcdef", 6) == "abcdef"
    assert scrub("abcdefg", 6) == "abcde…"
    assert scrub("\x1b[31m" * 100 + "x" * 5000, 10) == "x" * 9 + "…"
    # Beyond a bounded head nothing is looked at, whatever it is.
    assert scrub("\x1b[31m" * 1000 + "x" * 5000, 10) == ""
    with pytest.raises(ValueError, match="limit"):
        scrub("x", 0)


@settings(deadline=None)
@given(st.text(), st.integers(1, 50))
def test_scrub_laws(raw: str, limit: int) -> None:
    shown = scrub(raw, limit)
    assert len(shown) <= limit
    assert shown.isprintable()
    assert scrub(shown, limit) == shown


def test_scrub_is_cheap_to_import() -> None:
    code = "import sys, sbproxy.observe.core.scrub; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert not {"asyncio", "prometheus_client", "aiohttp", "pydantic", "logging"} & set(loaded.stdout.split())


@pytest.mark.parametrize(
    ("raw", "masked"),
    [
        ("Authorization: Bearer abc.def", f"Authorization: {MASK}"),
        ("sent bearer abc.def now", f"sent bearer {MASK} now"),
        ("Basic YWRtaW46eA==", f"Basic {MASK}"),
        ("Cookie: sb_admin_session=x.y; other=z", f"Cookie: {MASK}"),
        ("{'authorization': 'Token t', 'host': 'h'}", f"{{'authorization': '{MASK}', 'host': 'h'}}"),
        ('"set-cookie":"a=b","x":1', f'"set-cookie":"{MASK}","x":1'),
        ("x-api-key=sk-123 and more", f"x-api-key={MASK}"),
        ("the bearer of this letter", "the bearer of this letter"),
        ("nothing to hide", "nothing to hide"),
    ],
)
def test_credentials_are_masked_by_shape(raw: str, masked: str) -> None:
    found = Redactor().redact(raw)
    assert found == masked
    assert Redactor().redact(found) == found


def test_registered_values_are_masked_wherever_they_stand() -> None:
    redactor = Redactor(["hunter2", "hunter2-longer", "abc", "first line\nsecond line"])
    redactor.register(["late.secret+*"])
    assert redactor.redact("xhunter2-longery hunter2 late.secret+*") == f"x{MASK}y {MASK} {MASK}"
    assert redactor.redact("abc stays: it is too short to look for") == "abc stays: it is too short to look for"
    assert "second line" not in redactor.redact("... second line ...")
    assert "hunter2" not in repr(redactor)


@settings(deadline=None)
@given(st.text(min_size=4), st.text(), st.text())
def test_a_registered_value_never_survives(secret: str, before: str, after: str) -> None:
    lines = [line for line in secret.splitlines() if len(line) >= 4]
    redacted = Redactor([secret]).redact(before + secret + after)
    for line in lines:
        assert line not in redacted.replace(MASK, "")
