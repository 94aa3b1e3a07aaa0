"""SGLang and mistral.rs are asked for by name: ``engine: auto`` never picks them."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from sbproxy.catalog.core.model import Catalog, CatalogModel, ModelId, Requirements, Variant, VariantId, WorkerFacts
from sbproxy.catalog.core.resolve import resolve
from sbproxy.engines.core import sglang_argv
from sbproxy.engines.registry import NAMES
from sbproxy.errors.catalog import NoCompatibleVariant

EXPLICIT = ("sglang", "mistralrs")


def catalog(*engines: str) -> Catalog:
    variant = Variant(
        VariantId("v"), "safetensors", "bf16", engines, "hf:a/b", "r", (), Requirements(), "stable", "none"
    )
    model = CatalogModel(ModelId("m"), "1B", "mit", "x", 4096, (variant,))
    return Catalog("1", {model.id: model})


def worker(*engines: str) -> WorkerFacts:
    return WorkerFacts(frozenset({"cpu", "cuda"}), frozenset(engines))


@pytest.mark.parametrize("order", list(itertools.permutations(NAMES)))
def test_auto_never_picks_an_explicit_engine(order: tuple[str, ...]) -> None:
    assert resolve(catalog(*order), "m", None, worker(*NAMES), "auto").engine not in EXPLICIT


@pytest.mark.parametrize("engine", EXPLICIT)
def test_by_name_it_is_picked_and_only_by_name(engine: str) -> None:
    assert resolve(catalog("vllm", engine), "m", None, worker(*NAMES), engine).engine == engine
    with pytest.raises(NoCompatibleVariant, match=f"asked for by name: {engine}"):
        resolve(catalog(engine), "m", None, worker(*NAMES), "auto")


def test_a_key_that_looks_like_an_option_is_still_a_key(tmp_path: Path) -> None:
    package = tmp_path / "sglang"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_text(
        "import argparse\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--api-key')\n"
        "print(parser.parse_args().api_key)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", sglang_argv.LAUNCHER],
        env={"PYTHONPATH": str(tmp_path), sglang_argv.KEY_VARIABLE: "-key"},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (ran.stdout, ran.stderr) == ("-key\n", "")
