"""The replacement of the configuration file: durable beside it first, then in place with one rename, or not at all."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from sbproxy.daemon.config_file import StagedFile, shown_text
from sbproxy.errors.config import ConfigNotWritten, ConfigUnreadable

LEFTOVER = ".sb.yml.sbproxy-new"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "sb.yml"
    path.write_text("old: 1\n")
    return path


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_published_with_the_mode_it_had(config: Path, mode: int) -> None:
    config.chmod(mode)
    with StagedFile(config, b"new: 1\n") as staged:
        assert config.read_text() == "old: 1\n"
        assert stat.S_IMODE((config.parent / LEFTOVER).stat().st_mode) == mode
        staged.publish()
    assert config.read_text() == "new: 1\n"
    assert stat.S_IMODE(config.stat().st_mode) == mode
    assert list(config.parent.iterdir()) == [config]


def test_what_is_not_published_is_gone(config: Path) -> None:
    with StagedFile(config, b"new: 1\n"):
        pass
    with pytest.raises(KeyError), StagedFile(config, b"new: 1\n"):
        raise KeyError
    assert config.read_text() == "old: 1\n"
    assert list(config.parent.iterdir()) == [config]


def test_what_a_crash_left_behind_is_replaced(config: Path) -> None:
    (config.parent / LEFTOVER).write_text("half")
    with StagedFile(config, b"new: 1\n") as staged:
        staged.publish()
    assert config.read_text() == "new: 1\n"


def test_a_link_planted_in_its_place_is_not_followed(config: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("mine")
    (tmp_path / LEFTOVER).symlink_to(other)
    with StagedFile(config, b"new: 1\n") as staged:
        staged.publish()
    assert other.read_text() == "mine"


def test_a_file_that_is_gone_refuses(config: Path) -> None:
    config.unlink()
    with pytest.raises(ConfigNotWritten, match="nothing has changed"):
        StagedFile(config, b"new: 1\n")
    with pytest.raises(ConfigUnreadable):
        shown_text(config)


def test_a_rename_that_fails_says_what_runs(config: Path) -> None:
    with StagedFile(config, b"new: 1\n") as staged:
        (config.parent / LEFTOVER).unlink()
        with pytest.raises(ConfigNotWritten, match="the new configuration runs"):
            staged.publish()
    assert config.read_text() == "old: 1\n"


def test_shown_text_masks(config: Path) -> None:
    config.write_text("api_key: sk-0123456789abcdefghij # a\n")
    assert shown_text(config) == 'api_key: "[REDACTED]" # a\n'
    config.write_bytes(b"\xff")
    with pytest.raises(ConfigUnreadable, match="UTF-8"):
        shown_text(config)
