"""The console has a sentence for every failure that it can be told about."""

from __future__ import annotations

import importlib
import pkgutil
import typing

import pytest

import sbproxy.errors
from sbproxy.errors import SbproxyError, leaves
from sbproxy.errors.cli import CliError
from sbproxy.modelhost.core.status import AdmissionReason
from sbproxy_tui.view.sentences import ADMISSION, NEXT_STEP, next_step, sentence_of

for _module in pkgutil.iter_modules(sbproxy.errors.__path__, "sbproxy.errors."):
    importlib.import_module(_module.name)

# A command line's own mistakes never travel to a console.
TOLD = [leaf for leaf in leaves() if not issubclass(leaf, CliError)]


@pytest.mark.parametrize("leaf", TOLD, ids=lambda leaf: leaf.__name__)
def test_every_leaf_has_a_next_step(leaf: type[SbproxyError]) -> None:
    assert sentence_of(leaf), f"{leaf.__name__} has no sentence"


def test_every_row_of_the_table_is_of_use() -> None:
    for kind, sentence in NEXT_STEP.items():
        assert any(issubclass(leaf, kind) for leaf in TOLD)
        assert sentence[0].islower()
        assert not sentence.endswith(".")


def test_every_admission_reason_has_one() -> None:
    assert set(ADMISSION) == set(typing.get_args(AdmissionReason))


def test_a_word_of_a_newer_daemon_is_no_failure() -> None:
    assert next_step("flux_capacitor_empty") is None
    assert next_step("disk_full") == "free some space with: sbproxy models prune"
