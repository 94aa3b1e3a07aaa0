"""Each foreseen failure has an exit code at every verb (contracts section 9)."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import sbproxy.errors
from sbproxy.errors import SbproxyError, leaves
from sbproxy.errors.admin import AdminListenFailed
from sbproxy.errors.artifacts import TransportFailed
from sbproxy.errors.catalog import UnknownModel
from sbproxy.errors.cli import (
    ApplyLocked,
    ConfigNotNamed,
    ModelNotReady,
    NotACatalogModel,
    PlanStale,
    PlanUnusable,
    ServiceUnavailable,
    SystemRefused,
)
from sbproxy.errors.client import CredentialMissing, DaemonRefused, DaemonSilent, DaemonUnreachable, Unauthorized
from sbproxy.errors.config import ConfigInvalid, ConfigUnreadable
from sbproxy_cli.exit_codes import CAUSES, cause, exit_code

for _module in pkgutil.iter_modules(sbproxy.errors.__path__, "sbproxy.errors."):
    importlib.import_module(_module.name)


@pytest.mark.parametrize("leaf", sorted(leaves(), key=lambda leaf: leaf.__qualname__), ids=lambda leaf: leaf.__name__)
def test_every_leaf_has_a_place(leaf: type[SbproxyError]) -> None:
    assert cause(leaf) in ("usage", "input", "runtime")


def test_the_root_is_no_place() -> None:
    assert SbproxyError not in CAUSES


@pytest.mark.parametrize(
    ("verb", "error", "code"),
    [
        ("serve", ConfigInvalid("sb.yml", ()), 1),
        ("serve", AdminListenFailed("127.0.0.1", 1, "in use"), 1),
        ("serve", ConfigNotNamed(), 2),
        ("validate", ConfigInvalid("sb.yml", ()), 2),
        ("doctor", ConfigUnreadable("sb.yml", "gone"), 2),
        ("run", UnknownModel("x"), 2),
        ("run", NotACatalogModel("hf:a/b"), 2),
        ("run", ModelNotReady("m:v", "no memory"), 1),
        ("models pull", TransportFailed("x", "y"), 2),
        ("models show", UnknownModel("x"), 2),
        ("models ps", DaemonUnreachable("http://x", "refused"), 2),
        ("models ps", CredentialMissing("http://x"), 2),
        ("plan", ConfigUnreadable("sb.yml", "gone"), 1),
        ("plan", ConfigInvalid("sb.yml", ()), 3),
        ("apply", SystemRefused("sb.yml", "gone"), 1),
        ("apply", CredentialMissing("http://x"), 1),
        ("apply", PlanUnusable("p", "no"), 1),
        ("apply", ConfigInvalid("sb.yml", ()), 3),
        ("apply", DaemonRefused(400, "config_invalid", "no"), 4),
        ("apply", Unauthorized("http://x", "admin"), 4),
        ("apply", PlanStale("it", "a", "b"), 5),
        ("apply", ApplyLocked("sb.yml.applylock"), 6),
        ("apply", DaemonUnreachable("http://x", "refused"), 7),
        ("apply", DaemonSilent("http://x", "PUT", 60), 7),
        ("service status", ServiceUnavailable("no bus"), 2),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_code(verb: str, error: SbproxyError, code: int) -> None:
    assert exit_code(verb, error) == code
