"""Install a stand-in for vLLM or SGLang: a Python with the package in it, and for vLLM the program beside that Python.

The server (:mod:`support.fake_python_server`) has the options and the guarded endpoints of the real one and no model.
``support.fake_engine.instances(folder)`` finds its live processes.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

SERVER = Path(__file__).with_name("fake_python_server.py")
MODES = ("normal", "oom_exit", "bad_file", "port_taken", "never_ready", "tells_key")


def install(
    folder: Path, engine: str, *, version: str = "0.10.0", without: tuple[str, ...] = (), **settings: Any
) -> Path:
    """Write ``folder/bin`` and return the program: ``vllm``, or for SGLang ``python``.

    ``settings``: mode (one of ``MODES``), ignore_term. ``without`` takes options away from this build.
    """
    configure(folder, **settings)
    packages, binaries = folder / "packages", folder / "bin"
    record = packages / f"{engine}-{version}.dist-info"
    record.mkdir(parents=True)
    binaries.mkdir()
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {engine}\nVersion: {version}\n")
    start = f"import runpy, sys\nsys.path.insert(0, {str(SERVER.parent)!r})\nimport fake_python_server\n"
    serve = f"fake_python_server.main({engine!r}, {str(folder)!r}, {','.join(without)!r})\n"
    python = binaries / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(packages))} exec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    if engine == "sglang":
        package = packages / "sglang"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "launch_server.py").write_text(f"{start}if __name__ == '__main__':\n    {serve}")
        return python
    program = binaries / "vllm"
    program.write_text(f"#!{python}\n{start}{serve}")
    program.chmod(0o755)
    return program


def configure(folder: Path, *, mode: str = "normal", ignore_term: bool = False) -> None:
    """How the next start behaves."""
    if mode not in MODES:
        raise ValueError(f"unknown mode {mode!r}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "settings.json").write_text(json.dumps({"mode": mode, "ignore_term": ignore_term}))


def snapshot(folder: Path) -> Path:
    """A folder that the fake takes for a model."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    return folder
