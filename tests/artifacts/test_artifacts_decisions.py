"""The pure decisions of the store: answers, redirects, records, redaction, garbage."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbproxy.artifacts.core.answer import (
    MAX_HOPS,
    Append,
    AskAgain,
    Head,
    Refuse,
    Restart,
    StartOver,
    Want,
    judge,
    looks_like_page,
    next_hop,
    origin,
    retry_after,
    strong_etag,
)
from sbproxy.artifacts.core.garbage import HeldBlob, HeldPartial, abandoned, orphans
from sbproxy.artifacts.core.records import (
    MAX_RECORD_BYTES,
    ResumeRecord,
    decode_ready,
    decode_resume,
    encode,
    manifest,
    needed_blobs,
    plan,
    ready_record,
)
from sbproxy.artifacts.core.redaction import LIMIT, redact
from sbproxy.artifacts.core.source import check_files, public_source
from sbproxy.catalog.core.model import CatalogFile
from sbproxy.errors.artifacts import UnsafeArtifactPath
from support.pulls import resolved

FILE = CatalogFile("m.gguf", "a" * 64, 100)
TAG = '"v1"'


def verdict(
    status: int, *, offset: int = 0, foreign: bool = False, linked: dict[str, str] | None = None, **headers: str
) -> Any:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return judge(
        Head(status, names, foreign, linked or {}), Want(FILE, "hub", offset, TAG if offset else "", had_token=True)
    )


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (verdict(200, etag=TAG, content_length="100"), Restart(TAG)),
        (verdict(200, etag="W/" + TAG), Restart("")),
        (verdict(200, offset=10, etag='"v2"', content_length="100"), Restart('"v2"')),
        (verdict(206, offset=10, etag=TAG, content_range="bytes 10-99/100"), Append()),
        (verdict(206, offset=10, content_range="bytes 10-50/*"), Append()),
        (verdict(206, offset=10, etag='"v2"', content_range="bytes 10-99/100"), StartOver("its ETag changed")),
        (verdict(206, offset=10), StartOver("a part came without a valid Content-Range")),
        (verdict(206, offset=10, content_range="bytes 0-99/100"), StartOver("bytes 0-99 came, from 10 on was asked")),
        (verdict(206, offset=10, content_range="bytes 10-100/*"), StartOver("bytes 10-100 came, from 10 on was asked")),
        (verdict(206, offset=10, content_range="bytes 10-5/100"), StartOver("bytes 10-5 came, from 10 on was asked")),
        (verdict(416, offset=10), StartOver("HTTP 416, it has fewer bytes now")),
        (verdict(503, retry_after="7"), AskAgain("HTTP 503", 7.0)),
        (verdict(429, retry_after="99999"), AskAgain("HTTP 429", 30.0)),
        (verdict(403, foreign=True), AskAgain("HTTP 403 from the host it redirected to")),
        (verdict(200, content_type="text/html", content_length="100"), Restart("")),
    ],
)
def test_an_answer_means(answer: Any, expected: Any) -> None:
    assert answer == expected


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (verdict(401), "source_denied"),
        (verdict(403), "source_denied"),
        (verdict(404), "source_not_found"),
        (verdict(410), "source_not_found"),
        (verdict(206, content_range="bytes 0-99/100"), "unexpected_response"),
        (verdict(206, offset=10, content_range="bytes 10-199/200"), "size_mismatch"),
        (verdict(200, content_length="99"), "size_mismatch"),
        (verdict(200, content_type="text/html; charset=utf-8"), "unexpected_response"),
        (verdict(200, content_encoding="br"), "unexpected_response"),
        (verdict(200, linked={"x-linked-size": "99"}), "size_mismatch"),
        (verdict(200, linked={"x-linked-etag": f'"{"b" * 64}"'}), "digest_mismatch"),
        (verdict(204), "unexpected_response"),
        (verdict(304), "unexpected_response"),
        (verdict(416), "unexpected_response"),
        (verdict(600), "unexpected_response"),
    ],
)
def test_an_answer_is_refused(answer: Any, code: str) -> None:
    assert isinstance(answer, Refuse)
    assert answer.error.code == code


@given(status=st.integers(100, 999), offset=st.integers(0, 99), headers=st.dictionaries(
    st.sampled_from(["etag", "content-length", "content-range", "content-type", "retry-after", "content-encoding"]),
    st.text(max_size=30)))  # fmt: skip
def test_no_answer_is_beyond_judgement_and_only_good_ones_carry_bytes(
    status: int, offset: int, headers: dict[str, str]
) -> None:
    meaning = judge(Head(status, headers, False, {}), Want(FILE, "hub", offset, TAG if offset else "", had_token=False))
    if isinstance(meaning, Append):
        assert status == 206
        assert offset
    if isinstance(meaning, Restart):
        assert status == 200


def test_numbers_beyond_reason_are_no_numbers() -> None:
    assert verdict(200, content_length="9" * 5000, linked={"x-linked-size": "9" * 5000}) == Restart("")


def test_pages_are_told_from_files() -> None:
    assert looks_like_page(b"\xef\xbb\xbf \n<!DOCTYPE HTML><html>", "m.gguf")
    assert looks_like_page(b"<html lang=en>", "config.json")
    assert not looks_like_page(b"GGUF\x03", "m.gguf")
    assert not looks_like_page(b"<html>", "card.html")


@pytest.mark.parametrize("tag", ["", '""', "v1", 'W/"v1"', '"' + "x" * 600 + '"'])
def test_only_strong_etags_count(tag: str) -> None:
    assert strong_etag(tag) == ""


def test_retry_after_is_bounded_and_tolerant() -> None:
    assert [retry_after(value) for value in (None, "", "-1", "1.5", "Wed, 21 Oct 2026 07:28:00 GMT")] == [None] * 5
    assert retry_after(" 3 ") == 3.0
    assert retry_after("9" * 5000) == 30.0


def test_redirects_stay_within_bounds() -> None:
    assert next_hop("https://hub.example/a/b", "../c", 0) == "https://hub.example/c"
    assert next_hop("http://127.0.0.1:1/a", "https://cdn.example/x", 1) == "https://cdn.example/x"
    for location, hop, reason in [
        ("http://hub.example/a", 0, "from https to http"),
        ("file:///etc/passwd", 0, "usable web address"),
        ("https://cdn.example/a\x1bb", 0, "usable web address"),
        ("https://cdn.example:99999999/", 0, "out of range"),
        ("/again", MAX_HOPS, "more than 8 redirects"),
    ]:
        with pytest.raises(ValueError, match=reason):
            next_hop("https://hub.example/x", location, hop)


def test_an_origin_is_scheme_host_and_port() -> None:
    assert origin("https://hub.example/a") == origin("https://hub.example:443/b")
    assert (
        len(
            {
                origin(url)
                for url in ("https://a.example", "http://a.example", "https://a.example:1", "https://b.example")
            }
        )
        == 4
    )


# -- records ------------------------------------------------------------------------------------------------------

ARTIFACT = resolved("https://me:s3cret@files.example/dir/?sig=s3cret", {"m.gguf": b"x", "n.gguf": b"y"})
READY = ready_record(ARTIFACT, 1_700_000_000_000)


def test_records_come_back_as_they_went() -> None:
    assert decode_ready(encode(READY)) == READY
    resume = ResumeRecord(1, "https://files.example/a", TAG, "a" * 64, 100, 50)
    assert decode_resume(encode(resume)) == resume
    assert list(json.loads(encode(resume))) == [
        "schema_version", "url", "etag", "expected_sha256", "expected_size", "completed_bytes",
    ]  # fmt: skip


def test_records_hold_no_credentials() -> None:
    assert READY.source == "https://files.example/dir/"
    assert b"s3cret" not in encode(READY) + manifest(READY)
    assert public_source("hf:Org/Repo") == "hf:Org/Repo"


@pytest.mark.parametrize("decode", [decode_ready, decode_resume])
@given(data=st.one_of(st.binary(max_size=50), st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["files", "url", "schema_version"]), inner, max_size=3)).map(lambda value: json.dumps(value).encode())))  # fmt: skip  # noqa: E501
def test_nonsense_is_no_record(decode: Any, data: bytes) -> None:
    assert decode(data) is None
    assert isinstance(needed_blobs(data), set)


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 8000,
        b'{"files":' * 8000,
        b'{"files":[{"sha256":' + b"[" * 800 + b"]" * 800 + b"}]}",
        b'{"files":[{"sha256":' + b"9" * 5000 + b"}]}",
        b" " * MAX_RECORD_BYTES + b'{"files":[{"sha256":"a"}]}',
        b"\xff\xfe" * 50,
    ],
    ids=["deep list", "deep object", "deep value", "long number", "too long", "not text"],
)
def test_junk_that_costs_a_parser_much_is_no_record(data: bytes) -> None:
    assert decode_ready(data) is None
    assert decode_resume(data) is None
    assert needed_blobs(data) == set()


@pytest.mark.parametrize("path", ["../../etc/passwd", "/etc/passwd", "a\0b", "half \ud800", "x/" * 600 + "y"])
def test_a_record_that_points_out_of_its_snapshot_is_none(path: str) -> None:
    document = json.loads(encode(READY))
    document["files"][0]["path"] = path
    assert decode_ready(json.dumps(document).encode()) is None


def test_a_record_holds_text_that_can_be_shown() -> None:
    assert decode_ready(json.dumps({**json.loads(encode(READY)), "license": "half \ud800"}).encode()) is None


# -- file lists ---------------------------------------------------------------------------------------------------


def listed(*paths: str) -> tuple[CatalogFile, ...]:
    return tuple(CatalogFile(path, "a" * 64, 1) for path in paths)


@pytest.mark.parametrize(
    "paths",
    [
        ("Weights.gguf", "weights.GGUF"),
        ("stra\u00dfe.gguf", "STRASSE.gguf"),
        ("caf\u00e9.gguf", "cafe\u0301.gguf"),
        ("Artifact.JSON",),
        ("Deep", "deep/a.gguf"),
        ("a/b", "A/B/c"),
        ("a.gguf", "a.gguf"),
        ("/".join(["x" * 200] * 6),),
        ("\u00e9" * 200,),
        ("right-to-left \u202e",),
        ("half \ud800",),
    ],
)
def test_names_that_some_file_system_cannot_keep_apart_or_at_all_are_refused(paths: tuple[str, ...]) -> None:
    with pytest.raises(UnsafeArtifactPath):
        check_files(listed(*paths))


def test_names_that_are_odd_but_plain() -> None:
    check_files(listed("con", "nul.gguf", "a/b", "a/c", "a b", "..a", "...", "x" * 255, "-rf", "\u6a21\u578b.gguf"))


def test_a_long_list_of_files_costs_little() -> None:
    check_files(listed(*(f"part-{number}/of-{number}.gguf" for number in range(20_000))))


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(READY)])
def test_a_record_with_a_wrong_field_is_none(field: str) -> None:
    document = json.loads(encode(READY))
    whole = document.pop(field)
    assert decode_ready(json.dumps(document).encode()) is None
    wrong = {"files": [{"path": "x"}]}.get(field, [whole])
    assert decode_ready(json.dumps({**document, field: wrong}).encode()) is None


@pytest.mark.parametrize(
    "change", [{"url": "u2"}, {"expected_sha256": "b" * 64}, {"expected_size": 99}, {"completed_bytes": 51}]
)
def test_a_resume_record_must_match_in_everything(change: dict[str, Any]) -> None:
    record = ResumeRecord(1, "u", TAG, FILE.sha256, FILE.size_bytes, 50)
    assert record.continues("u", FILE, 50)
    assert record.continues("u", FILE, 100)
    assert not record.continues("u", FILE, 49)
    assert not record.continues("u", FILE, 101)
    assert not dataclasses.replace(record, **change).continues("u", FILE, 50)


def test_what_refers_to_blobs_is_read_from_all_documents() -> None:
    wanted = {file.sha256 for file in ARTIFACT.variant.files}
    for document in (encode(READY), manifest(READY), plan(ARTIFACT.variant.files)):
        assert needed_blobs(document) == wanted
    assert needed_blobs(b'{"files": [1, null, {}]}') == set()


def test_time_never_makes_an_access_older() -> None:
    assert READY.accessed(READY.last_accessed_ms - 5).last_accessed_ms == READY.last_accessed_ms


# -- redaction and garbage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "https://me:s3cret@index.example/simple",
        "https://index.example/a?token=s3cret&x=1", "Authorization: Bearer s3cret",
        "basic s3cret", "token hf_s3cretS3CRETs3cret", "'https://x.example/?s3cret'",
    ],
)  # fmt: skip
def test_secrets_do_not_pass(text: str) -> None:
    assert "s3cret" not in redact(f"before {text} after")


@given(st.text(max_size=2000))
def test_redacted_text_is_one_bounded_printable_line(text: str) -> None:
    line = redact(text)
    assert line.isprintable()
    assert len(line) <= LIMIT + 1


def test_garbage() -> None:
    blobs = [HeldBlob("b", 1), HeldBlob("a", 2), HeldBlob("c", 3)]
    assert orphans(blobs, {"c"}) == [HeldBlob("a", 2), HeldBlob("b", 1)]
    old, young, busy = (
        HeldPartial("1", 1, 10.0, False),
        HeldPartial("2", 1, 9.9, False),
        HeldPartial("3", 1, 1e9, True),
    )
    assert abandoned([old, young, busy], 10.0) == [old]


def test_the_store_loads_no_http_client_before_it_fetches() -> None:
    heavy = "{'httpx', 'ssl', 'pydantic', 'asyncio'}"
    program = f"import sys, sbproxy.artifacts.store; print(sorted(sys.modules.keys() & {heavy}))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == "[]"
