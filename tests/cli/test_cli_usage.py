"""Flags: what is offered, what is refused, and how."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from sbproxy_cli.invocation import LogFormat, LogLevel
from support.cli import environment, sbproxy

VERSION = re.compile(r"sbproxy \d+\.\d+\.\d+ \(rev ([0-9a-f]{7,12}|unknown), built (\d{4}-\d\d-\d\d|unknown)\)\n")


def test_log_settings_are_those_of_the_log() -> None:
    from sbproxy.observe.log_output import FORMATS, LEVELS

    assert [each.value for each in LogLevel] == list(LEVELS)
    assert [each.value for each in LogFormat] == list(FORMATS)


@pytest.mark.parametrize("argv", [["--version"], ["-V"], ["version"], ["models", "list", "--version"]])
def test_version_line(argv: list[str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "sbproxy_cli", *argv], capture_output=True, text=True, env=environment(), timeout=60
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert VERSION.fullmatch(ran.stdout)


@pytest.mark.parametrize(
    "argv",
    [
        ["models", "list", "--locked"],
        ["serve", "--request-log-level", "debug"],
        ["serve", "--grace-time", "-1"],
        ["serve", "--grace-time", "5", "--shutdown-grace-ms", "5"],
        ["models", "list", "--grace-time", "5"],
        ["--disable-sb-flags"],
        ["serve", "--log-level", "loud"],
        ["serve", "--shutdown-grace-ms", "-1"],
        ["serve", "-f"],
        ["models", "pull", "a", "b", "--variant", "q4"],
        ["models", "pull", "a", "--all"],
        ["models", "pull", "-f", "sb.yml", "--catalog-file", "c.yml"],
        ["models", "list", "--check"],
        ["models", "list", "--shutdown-grace-ms", "5"],
        ["run", "smollm2-135m-instruct", "-f", "sb.yml"],
        ["run", "smollm2-135m-instruct", "--port", "1234", "--admin-port", "1234"],
        ["run", "smollm2-135m-instruct", "--accel", "rocm"],
        ["run"],
        ["completions", "cmd"],
        ["admin", "hash-password"],
    ],
    ids=" ".join,
)
def test_refused_by_the_parser(argv: list[str]) -> None:
    ran = sbproxy(*argv)
    assert ran.code == 2
    assert ran.out == ""
    assert "Usage:" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    "verb",
    [["apply", "-f", "x"], ["devices"], ["models", "ps"], ["models", "stop", "x"], ["models", "remove", "x"], ["tui"]],
)
def test_a_password_on_the_command_line_is_refused_and_not_repeated(verb: list[str]) -> None:
    ran = sbproxy(*verb, "--password", "hunter2")
    assert ran.code == 2
    assert "SB_ADMIN_PASSWORD" in ran.err
    assert "hunter2" not in ran.err + ran.out


def test_without_a_configuration() -> None:
    ran = sbproxy()
    assert ran.code == 2
    assert ran.err.startswith("sbproxy serve: no configuration is named")
    assert "sbproxy run smollm2-135m-instruct" in ran.err
    err = sbproxy("models", "lock").err
    assert err == "sbproxy models lock: no configuration is named; give a file (-f sb.yml) or set SB_CONFIG_FILE\n"


def test_a_misspelt_command_is_read_as_a_path_with_a_hint() -> None:
    ran = sbproxy("modles")
    assert ran.code == 1
    assert "did you mean 'sbproxy models'?" in ran.err
    assert "modles: there is no such file" in ran.err
    assert "there is no command 'bogus'; see 'sbproxy --help'" in sbproxy("bogus").err
    assert "no command" not in sbproxy("conf/sb.yml").err


def test_hash_password_from_stdin() -> None:
    from sbproxy.admin.passwords import PasswordHash, verify_password

    ran = sbproxy("admin", "hash-password", "--password-stdin", stdin="s3cret\n")
    assert (ran.code, ran.err) == (0, "")
    assert verify_password("s3cret", PasswordHash.parse(ran.out.strip()))
    assert not verify_password("s3cret\n", PasswordHash.parse(ran.out.strip()))
    assert sbproxy("admin", "hash-password", "--password-stdin", stdin="\n").code == 2


def test_hash_password_refuses_argv() -> None:
    ran = sbproxy("admin", "hash-password", "--password", "hunter2")
    assert ran.code == 2
    assert "hunter2" not in ran.err


def test_tui_without_a_terminal_says_so() -> None:
    ran = sbproxy("tui")
    assert ran.code == 2
    assert ran.err.startswith("sbproxy tui: the console needs a terminal")
    assert "sbproxy models ps" in ran.err
