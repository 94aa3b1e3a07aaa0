"""`completions SHELL`: every command is offered, and each script is run by its shell where that shell is here."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from sbproxy_cli.app import app
from sbproxy_cli.argv import COMMANDS
from support.cli import environment, sbproxy

SHELLS = ("bash", "zsh", "fish", "powershell", "elvish")
BIN = Path(sys.executable).parent


def run(argv: list[str], **env: str) -> subprocess.CompletedProcess[str]:
    variables = environment(PATH=f"{BIN}:/usr/bin:/bin", TERM="dumb", **env)
    return subprocess.run(argv, capture_output=True, text=True, env=variables, timeout=60, check=False)


def needs(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not on this machine")


def test_the_arrangement_knows_every_command() -> None:
    """A command that is missing there is read as a path to serve."""
    assert set(COMMANDS) == set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_name_the_command(shell: str) -> None:
    ran = sbproxy("completions", shell)
    assert (ran.code, ran.err) == (0, "")
    assert "_SBPROXY_COMPLETE" in ran.out


@pytest.mark.parametrize(
    ("shell", "check"),
    [
        pytest.param("bash", ["bash", "-n"], marks=needs("bash")),
        pytest.param("zsh", ["zsh", "-n"], marks=needs("zsh")),
        pytest.param("fish", ["fish", "--no-execute"], marks=needs("fish")),
        pytest.param("elvish", ["elvish", "-compileonly"], marks=needs("elvish")),
    ],
)
def test_scripts_parse(shell: str, check: list[str], tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(sbproxy("completions", shell).out)
    ran = run([*check, str(script)], HOME=str(tmp_path))
    # Outside of an interactive session elvish has no editor to give the completer to; every other name it must know.
    complaints = [line for line in ran.stderr.splitlines() if "edit:" not in line and line.startswith("compilation")]
    if shell == "elvish":
        assert complaints == []
    else:
        assert (ran.returncode, ran.stderr) == (0, "")


ASKED = [("plan", "plan"), ("dev", "devices"), ("ser", "serve service")]


@pytest.mark.e2e
@needs("bash")
@pytest.mark.parametrize(
    ("typed", "offered"), [*ASKED, ("models p", "pull prune ps"), ("service ", "install uninstall status")]
)
def test_bash_completes(typed: str, offered: str) -> None:
    script = sbproxy("completions", "bash").out
    words = ["sbproxy", *typed.split(" ")]
    quoted = " ".join(f"'{word}'" for word in words)
    ask = (
        f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _sbproxy_completion sbproxy;"
        " printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    ran = run(["bash", "-c", f"{script}\n{ask}"])
    assert set(offered.split()) == set(ran.stdout.split()), ran.stderr


@pytest.mark.e2e
@needs("fish")
@pytest.mark.parametrize(("typed", "offered"), ASKED)
def test_fish_completes(typed: str, offered: str, tmp_path: Path) -> None:
    script = tmp_path / "sbproxy.fish"
    script.write_text(sbproxy("completions", "fish").out)
    ran = run(["fish", "-c", f"source {script}; complete --do-complete 'sbproxy {typed}'"], HOME=str(tmp_path))
    assert {line.split("\t")[0] for line in ran.stdout.splitlines()} == set(offered.split()), ran.stderr


@pytest.mark.e2e
@needs("zsh")
def test_zsh_is_answered(tmp_path: Path) -> None:
    """Its completer evaluates one `_arguments` line, which here is caught instead."""
    script = tmp_path / "_sbproxy"
    script.write_text(sbproxy("completions", "zsh").out)
    body = (
        "compdef() { :; }; _arguments() { print -r -- $*; };"
        f" source {script}; words=(sbproxy models p); CURRENT=3; _sbproxy_completion"
    )
    ran = run(["zsh", "-f", "-c", body], HOME=str(tmp_path))
    assert "pull" in ran.stdout, ran.stderr
    assert "prune" in ran.stdout
    assert "ps" in ran.stdout


@pytest.mark.e2e
@needs("elvish")
def test_elvish_completes(tmp_path: Path) -> None:
    """The completer's own lines, without the editor that they are handed to."""
    body = sbproxy("completions", "elvish").out.replace(
        "set edit:completion:arg-completer[sbproxy] =", "var complete ="
    )
    script = tmp_path / "ask.elv"
    script.write_text(f"{body}\n$complete sbproxy ser\n")
    ran = run(["elvish", str(script)], HOME=str(tmp_path))
    assert "serve" in ran.stdout, ran.stderr
    assert "service" in ran.stdout
