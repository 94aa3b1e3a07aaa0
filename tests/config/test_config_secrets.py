"""Secret positions: which forms are followed, when, and where a secret may never appear (contracts section 2)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sbproxy.config.core.shape import secret_patterns
from sbproxy.config.load import Loaded, load_text
from sbproxy.config.printed import as_json, as_yaml
from sbproxy.errors.config import ConfigInvalid


def load(password: str, *, resolve_secrets: bool = True, **environ: str) -> Loaded:
    text = f"proxy:\n  admin:\n    password: {password}\n"
    return load_text(text, path=Path("sb.yml"), environ=environ, resolve_secrets=resolve_secrets)


def secret(loaded: Loaded) -> str:
    return loaded.config.proxy.admin.password.get_secret_value()


def refusal(password: str, **environ: str) -> str:
    with pytest.raises(ConfigInvalid) as caught:
        load(password, **environ)
    (problem,) = caught.value.problems
    assert problem.path == "proxy.admin.password"
    return problem.reason


def test_positions() -> None:
    assert secret_patterns() == {
        ("proxy", "admin", "password"),
        ("proxy", "admin", "operators", "*", "password"),
        ("origins", "*", "action", "providers", "*", "api_key"),
        ("origins", "*", "credentials", "*", "key"),
        ("proxy", "key_management", "crypto", "master_key"),
        ("proxy", "key_management", "crypto", "pepper"),
        ("proxy", "key_management", "governance", "backend", "url"),
        ("proxy", "key_management", "seed", "credentials", "*", "secret"),
        ("proxy", "key_management", "seed", "keys", "*", "key"),
        ("proxy", "key_management", "store", "url"),
    }


def test_forms(tmp_path: Path) -> None:
    file = tmp_path / "pw"
    file.write_text("from file\n")
    assert secret(load("literal")) == "literal"
    assert secret(load("${PW}", PW="s3")) == "s3"
    assert secret(load("a-${PW}-b", PW="s3")) == "a-s3-b"
    assert secret(load("env:PW", PW="s3")) == "s3"
    assert secret(load(f"file:{file}")) == "from file"


def test_a_file_loses_one_trailing_newline(tmp_path: Path) -> None:
    file = tmp_path / "pw"
    file.write_bytes(b" spaced \r\n")
    assert secret(load(f"file:{file}")) == " spaced "
    assert secret(load("file:${DIR}/pw", DIR=str(tmp_path))) == " spaced "


def test_a_number_in_a_variable_stays_text() -> None:
    assert secret(load("${PW}", PW="0123")) == "0123"
    assert secret(load("${PW}", PW="true")) == "true"


def test_what_a_variable_holds_is_not_followed(tmp_path: Path) -> None:
    file = tmp_path / "pw"
    file.write_text("x")
    assert secret(load("${PW}", PW=f"file:{file}")) == f"file:{file}"
    assert secret(load("${PW}", PW="env:HOME")) == "env:HOME"
    assert secret(load("${PW}", PW="${OTHER}", OTHER="x")) == "${OTHER}"


def test_refused_files(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 65537)
    (tmp_path / "binary").write_bytes(b"\xff")
    (tmp_path / "lines").write_bytes(b"a\nb\n")
    (tmp_path / "empty").write_bytes(b"\n")
    os.mkfifo(tmp_path / "pipe")
    assert "larger than 64 KiB" in refusal(f"file:{tmp_path}/large")
    assert "is not UTF-8 text" in refusal(f"file:{tmp_path}/binary")
    assert "control characters" in refusal(f"file:{tmp_path}/lines")
    assert "is empty" in refusal(f"file:{tmp_path}/empty")
    assert "is not a regular file" in refusal(f"file:{tmp_path}/pipe")
    assert "cannot be read: Is a directory" in refusal(f"file:{tmp_path}")


def test_empty_and_unset_variables() -> None:
    assert refusal("${PW}", PW="") == "the secret is empty"
    assert refusal("${PW}") == "environment variable 'PW' is not set"
    assert refusal("a-${PW}") == "environment variable 'PW' is not set"


def test_checking_a_document_follows_nothing() -> None:
    for written in ("${PW}", "env:PW", "file:/does/not/exist"):
        loaded = load(written, resolve_secrets=False)
        assert not loaded.secrets_resolved
        assert secret(loaded) == written
    assert "is not set" in load("${PW}", resolve_secrets=False).warnings[0].reason
    with pytest.raises(ConfigInvalid, match="vault://"):
        load("vault://kv/x", resolve_secrets=False)


def test_the_value_of_a_set_variable_is_not_taken_when_only_checking() -> None:
    assert secret(load("${PW}", resolve_secrets=False, PW="canary")) == "${PW}"


@pytest.mark.parametrize(
    ("written", "shown"),
    [("canary", "***MASKED***"), ("x-${PW}", "***MASKED***"), ("${PW}", "${PW}"), ("env:PW", "env:PW")],
)
def test_shown_only_as_the_reference_that_was_written(written: str, shown: str) -> None:
    loaded = load(written, PW="canary")
    assert f"password: {shown}" in as_yaml(loaded).replace("'", "")
    assert f'"password": "{shown}"' in as_json(loaded)
    assert "canary" not in as_yaml(loaded) + as_json(loaded) + repr(loaded) + str(loaded)


def test_the_revision_does_not_depend_on_a_secret() -> None:
    assert load("${PW}", PW="a").revision == load("${PW}", PW="b").revision
    assert load("${PW}", PW="a").config != load("${PW}", PW="b").config


def test_opaque_blocks_are_masked_by_the_name_of_the_key() -> None:
    nested = "nested: [{api_key: canary}], headers: {x: canary}, ref: {secret: env:X}, n: 1"
    text = f"proxy:\n  extensions: {{token: canary, {nested}}}\n"
    loaded = load_text(text, path=Path("sb.yml"), environ={})
    assert "canary" not in as_yaml(loaded)
    assert "env:X" in as_yaml(loaded)
    assert loaded.config.proxy.extensions["token"] == "canary"
