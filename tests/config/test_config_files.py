"""Reading files, cross-checks with a catalog, restart-required fields, the place of the cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbproxy.config.cache_root import SYSTEM_ROOT, cache_root, writable
from sbproxy.config.core.changes import restart_required
from sbproxy.config.core.document import SbConfig
from sbproxy.config.core.provider_catalog import base_url
from sbproxy.config.load import load_file, load_text
from sbproxy.errors.config import ConfigInvalid, ConfigUnreadable, EnvironmentInvalid


def unreadable(path: Path) -> str:
    with pytest.raises(ConfigUnreadable) as caught:
        load_file(path, {})
    assert caught.value.file == str(path)
    return caught.value.reason


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"proxy: {}\n# \xe9\n")
    (tmp_path / "large").write_bytes(b"#" * ((4 << 20) + 1))
    assert unreadable(tmp_path / "none") == "there is no such file"
    assert unreadable(tmp_path) == "is a directory, expected a file"
    assert unreadable(tmp_path / "latin") == "is not UTF-8 text (line 2)"
    assert unreadable(tmp_path / "large") == "larger than 4 MiB"
    assert unreadable(tmp_path / "a\0b") == "is not a file name"
    assert "cannot be read" in unreadable(tmp_path / "latin" / "below")


def test_a_file_names_itself_in_its_problems(tmp_path: Path) -> None:
    path = tmp_path / "sb.yml"
    path.write_text("proxy: {x: 1}\n")
    with pytest.raises(ConfigInvalid) as caught:
        load_file(path, {})
    assert str(caught.value).startswith(f"{path}:1: proxy.x: unknown key; ")


def test_the_catalog_file_is_found_from_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sb.yml"
    path.write_text("proxy: {model_host: {catalog_file: c.yml}}\n")
    monkeypatch.chdir(tmp_path)
    loaded = load_file(Path("sb.yml"), {})
    assert loaded.config.proxy.model_host.catalog_file == str(tmp_path / "c.yml")


def config(text: str) -> SbConfig:
    return load_text(text, path=Path("sb.yml"), environ={}).config


def test_what_only_a_restart_applies() -> None:
    running = config("proxy: {}")
    candidate = config(
        "proxy: {http_bind_port: 1, bind_address: 127.0.0.1,"
        " admin: {enabled: true, password: x, allow_ips: [127.0.0.1]}}"
    )
    assert restart_required(running, candidate) == (
        "proxy.http_bind_port",
        "proxy.bind_address",
        "proxy.admin.enabled",
        "proxy.admin.password",
        "proxy.admin.allow_ips",
    )
    assert restart_required(running, running) == ()


def test_what_a_reload_applies() -> None:
    running = config("proxy: {model_host: {deployments: {d: {model: m}}}}")
    candidate = config("proxy: {model_host: {deployments: {d: {model: n}}}, extensions: {a: 1}}\norigins: {}")
    assert restart_required(running, candidate) == ()


def test_place_of_the_cache() -> None:
    home = {"HOME": "/home/o"}
    assert cache_root("/srv/m", {"HF_HOME": "/hub"}, can_write=lambda _: True) == Path("/srv/m")
    assert cache_root(None, {"HF_HOME": "/hub", **home}, can_write=lambda _: True) == Path("/hub")
    assert cache_root(None, {"HF_HOME": "", **home}, can_write=lambda _: True) == SYSTEM_ROOT
    assert cache_root(None, home, can_write=lambda path: path != SYSTEM_ROOT) == Path("/home/o/.cache/sbproxy/models")
    with pytest.raises(EnvironmentInvalid, match="HF_HOME: must be an absolute path"):
        cache_root(None, {"HF_HOME": "hub"})
    with pytest.raises(EnvironmentInvalid, match=r"HOME: is not set and .* set proxy\.model_host\.cache\.directory"):
        cache_root(None, {}, can_write=lambda _: False)


def test_writable_looks_at_what_would_hold_the_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert writable(tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()
    assert not writable(tmp_path / "file" / "b")


def test_base_urls() -> None:
    def provider(text: str) -> str | None:
        document = f"origins: {{a: {{action: {{type: ai_proxy, providers: [{text}]}}}}}}"
        return base_url(config(document).origins["a"].action.providers[0])

    assert provider("{name: openai}") == "https://api.openai.com/v1"
    assert provider("{name: local, provider_type: ollama}") == "http://127.0.0.1:11434/v1"
    assert provider("{name: openai, base_url: 'https://proxy.example.com/v1/'}") == "https://proxy.example.com/v1"
    assert provider("{name: mine, base_url: 'https://llm.example.com/v1'}") == "https://llm.example.com/v1"
