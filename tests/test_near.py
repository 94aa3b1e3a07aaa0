"""Names worth offering for a wrong one."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbproxy.near import MOST, near_names

MODELS = ("smollm2-135m-instruct", "qwen3-8b", "qwen3-14b", "qwen3-32b", "llama-3.1-8b-instruct", "gpt-oss-20b")


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("smollm", ("smollm2-135m-instruct",)),
        ("SmolLM2", ("smollm2-135m-instruct",)),
        ("smollm2-135m-instrct", ("smollm2-135m-instruct",)),
        (" qwen3-8b ", ("qwen3-8b", "qwen3-32b", "qwen3-14b")),
        ("Qwen3-8B", ("qwen3-8b", "qwen3-32b", "qwen3-14b")),
        ("qwen", ("qwen3-8b", "qwen3-14b", "qwen3-32b")),
        ("instruct", ("llama-3.1-8b-instruct", "smollm2-135m-instruct")),
        ("8b", ()),
        ("claude", ()),
        ("", ()),
    ],
)
def test_what_is_offered(wrong: str, near: tuple[str, ...]) -> None:
    assert near_names(wrong, MODELS) == near


def test_a_beginning_comes_before_a_piece_and_a_piece_before_like_letters() -> None:
    assert near_names("tiny", ("tinny", "a-tiny", "tiny-model")) == ("tiny-model", "a-tiny", "tinny")


def test_at_most_three_and_names_as_they_are_written() -> None:
    assert near_names("abc", ["Abc-4", "aBC-3", "ABC-2", "abc-1"]) == ("ABC-2", "Abc-4", "aBC-3")


@given(st.text(max_size=12), st.lists(st.text(max_size=12), max_size=8), st.randoms())
def test_the_order_of_the_known_names_does_not_matter(wrong: str, known: list[str], chance: object) -> None:
    found = near_names(wrong, known)
    shuffled = list(known)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    assert near_names(wrong, shuffled) == found
    assert len(found) <= MOST
    assert set(found) <= set(known)
    assert len(set(found)) == len(found)


def test_a_huge_wrong_name_costs_little() -> None:
    started = time.process_time()
    near_names("ab" * 5_000_000, (f"{number}-{'ba' * 200}" for number in range(5000)))
    assert time.process_time() - started < 2
