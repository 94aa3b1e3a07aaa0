"""A stand-in for ``uv``: writes down every call and makes environments from a :mod:`support.fake_python_engine`."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Any


def install(folder: Path, engine: Path, **settings: Any) -> Path:
    """Write ``folder/bin/uv``. ``engine`` is the ``bin`` folder whose programs an install brings.

    ``settings``: fails (text with which ``pip install`` fails), hangs (it never ends).
    """
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    configure(folder, **settings)
    program = folder / "bin" / "uv"
    words = [sys.executable, "-S", "-E", str(Path(__file__)), str(folder), str(engine)]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    program.chmod(0o755)
    return program


def configure(folder: Path, *, fails: str = "", hangs: bool = False) -> None:
    (folder / "settings.json").write_text(json.dumps({"fails": fails, "hangs": hangs}))


def calls(folder: Path) -> list[dict[str, Any]]:
    """``words`` and ``environ`` of every call so far."""
    path = folder / "calls.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main(folder: Path, engine: Path, words: list[str]) -> int:
    settings = json.loads((folder / "settings.json").read_text())
    with (folder / "calls.jsonl").open("a") as file:
        file.write(f"{json.dumps({'words': words, 'environ': dict(os.environ), 'pid': os.getpid()})}\n")
    match words:
        case ["venv", "--no-project", "--no-python-downloads", "--python", python, place]:
            (Path(place) / "bin").mkdir(parents=True)
            (Path(place) / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
            (Path(place) / "bin" / "python").symlink_to(python)
            return 0
        case ["pip", "install", "--python", python, requirement]:
            if settings["hangs"]:
                time.sleep(60)
            if settings["fails"]:
                sys.stderr.write(f"Resolved 1 package\nerror: {settings['fails']}\n")
                return 2
            sys.stderr.write(f"Downloading {requirement}\n")
            for program in engine.iterdir():
                (Path(python).parent / program.name).unlink(missing_ok=True)
                shutil.copy(program, Path(python).parent / program.name)
            return 0
        case ["pip", "uninstall", "--python", _, *_]:
            return 0
        case ["pip", "freeze", "--python", _]:
            sys.stdout.write("torch==2.7.1\nvllm==0.10.0\n")
            return 0
    sys.stderr.write(f"error: unexpected argument: {words}\n")
    return 2


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
