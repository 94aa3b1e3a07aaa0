"""`service install|uninstall|status` against a recording stand-in of systemctl, and the unit against systemd itself."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbproxy_cli.service.unit import ServicePlan, quoted, run_options
from support.cli import Ran, sbproxy
from support.snapshot import check_snapshot

MODEL = "smollm2-135m-instruct"
STAND_IN = """\
#!{python}
import json, os, sys
here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, "calls"), "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
answers = json.load(open(os.path.join(here, "answers.json")))
verb = sys.argv[3]
code, out, err = answers.get(verb, [0, "", ""])
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(code)
"""
ACTIVE = "LoadState=loaded\nActiveState=active\nSubState=running\nMainPID=4321\nResult=success\n"
DEAD = "LoadState=loaded\nActiveState=failed\nSubState=failed\nMainPID=0\nResult=exit-code\n"


class Systemd:
    """A folder that stands for the user's home, with a systemctl on PATH that writes down what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.bin = folder / "bin"
        self.home.mkdir()
        self.bin.mkdir()
        program = self.bin / "systemctl"
        program.write_text(STAND_IN.replace("{python}", sys.executable))
        program.chmod(0o755)
        self.answer(show=[0, ACTIVE, ""])

    @property
    def unit(self) -> Path:
        return self.home / ".config/systemd/user/sbproxy.service"

    @property
    def banner(self) -> Path:
        return self.home / ".local/state/sbproxy/service.txt"

    @property
    def calls(self) -> list[list[str]]:
        path = self.bin / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def answer(self, **by_verb: list[object]) -> None:
        (self.bin / "answers.json").write_text(
            json.dumps({key.replace("_", "-"): each for key, each in by_verb.items()})
        )

    def run(self, *argv: str) -> Ran:
        env = {
            "HOME": str(self.home),
            "PATH": str(self.bin),
            "XDG_CONFIG_HOME": None,
            "XDG_STATE_HOME": None,
            "HF_TOKEN": "hf_a-secret-of-the-shell",
        }
        return sbproxy("service", *argv, env=env)


@pytest.fixture
def systemd(tmp_path: Path) -> Systemd:
    return Systemd(tmp_path)


def test_install_writes_the_unit_and_starts_it(systemd: Systemd, tmp_path: Path) -> None:
    ran = systemd.run("install", MODEL, "--port", "8123", "--cache-dir", str(tmp_path / "c"))
    assert (ran.code, ran.out.splitlines()[1]) == (0, "state: active (running), process 4321"), ran.err
    prefix = ["--user", "--no-pager"]
    assert systemd.calls[:3] == [
        [*prefix, "daemon-reload"],
        [*prefix, "enable", "sbproxy.service"],
        [*prefix, "restart", "sbproxy.service"],
    ]
    text = systemd.unit.read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    assert line == (
        f'ExecStart="{sys.executable}" "-m" "sbproxy_cli" "run" "{MODEL}" "--variant" "q4_1" "--engine" "llama_cpp"'
        f' "--port" "8123" "--cache-dir" "{tmp_path}/c"'
    )
    assert f"StandardOutput=truncate:{systemd.banner}" in text
    assert "UMask=0077" in text
    assert "secret" not in text
    assert stat.S_IMODE(systemd.unit.stat().st_mode) == 0o644
    assert stat.S_IMODE(systemd.banner.stat().st_mode) == 0o600
    assert stat.S_IMODE(systemd.banner.parent.stat().st_mode) == 0o700


def test_install_as_json_and_again(systemd: Systemd) -> None:
    body = json.loads(systemd.run("install", MODEL, "--format", "json").out)
    assert (body["schema_version"], body["command"], body["model"]) == (1, "service.install", MODEL)
    assert (body["unit"], body["access"], body["state"]) == (str(systemd.unit), str(systemd.banner), "active")
    assert body["argv"][:5] == [sys.executable, "-m", "sbproxy_cli", "run", MODEL]
    assert systemd.run("install", MODEL, "--name", "mine").code == 0
    assert '"--name" "mine"' in systemd.unit.read_text()


def test_a_dry_run_as_json_is_one_object(systemd: Systemd) -> None:
    body = json.loads(systemd.run("install", MODEL, "--dry-run", "--format", "json").out)
    assert (body["command"], body["dry_run"], body["unit"]) == ("service.install", True, str(systemd.unit))
    assert body["text"] == systemd.run("install", MODEL, "--dry-run").out
    assert not systemd.unit.exists()


def test_a_refused_unit_is_taken_away_again(systemd: Systemd) -> None:
    systemd.answer(restart=[1, "", "Job for sbproxy.service failed.\nSee status."])
    ran = systemd.run("install", MODEL)
    assert (ran.code, ran.out) == (2, "")
    assert "systemctl --user restart sbproxy.service: See status.; see: journalctl" in ran.err
    assert not systemd.unit.exists()
    systemd.answer(show=[0, ACTIVE, ""])
    systemd.run("install", MODEL, "--name", "first")
    before = systemd.unit.read_text()
    systemd.answer(enable=[1, "", "no"])
    assert systemd.run("install", MODEL, "--name", "second").code == 2
    assert systemd.unit.read_text() == before


def test_uninstall(systemd: Systemd) -> None:
    ran = systemd.run("uninstall")
    assert (ran.code, ran.out) == (0, "no service is installed\n")
    assert systemd.calls == []
    systemd.run("install", MODEL)
    body = json.loads(systemd.run("uninstall", "--format", "json").out)
    assert (body["command"], body["removed"]) == ("service.uninstall", True)
    assert [call[2:] for call in systemd.calls[-2:]] == [["disable", "--now", "sbproxy.service"], ["daemon-reload"]]
    assert not systemd.unit.exists()
    assert not systemd.banner.exists()


def test_a_unit_of_somebody_else_stays(systemd: Systemd) -> None:
    systemd.unit.parent.mkdir(parents=True)
    systemd.unit.write_text("[Service]\nExecStart=/bin/true\n")
    for argv in (["install", MODEL], ["uninstall"]):
        ran = systemd.run(*argv)
        assert ran.code == 2
        assert "was not written by 'sbproxy service install'" in ran.err
    assert systemd.unit.read_text().startswith("[Service]")
    assert systemd.calls == []


def test_status(systemd: Systemd) -> None:
    systemd.answer(show=[0, "LoadState=not-found\nActiveState=inactive\nSubState=dead\nMainPID=0\n", ""])
    ran = systemd.run("status")
    assert (ran.code, ran.out) == (1, "no service is installed; sbproxy service install MODEL makes one\n")
    systemd.answer(show=[0, ACTIVE, ""])
    systemd.run("install", MODEL)
    ran = systemd.run("status")
    assert (ran.code, ran.out.splitlines()[0]) == (0, "state: active (running), process 4321")
    systemd.answer(show=[0, DEAD, ""])
    ran = systemd.run("status", "--format", "json")
    assert ran.code == 1
    assert json.loads(ran.out) == {
        "schema_version": 1, "command": "service.status", "unit": str(systemd.unit), "running": False,
        "installed": True, "state": "failed", "substate": "failed", "pid": 0, "result": "exit-code",
        "access": str(systemd.banner),
    }  # fmt: skip


def test_without_systemd(systemd: Systemd) -> None:
    systemd.answer(show=[1, "", "Failed to connect to bus: No medium found\n"])
    ran = systemd.run("status")
    assert ran.code == 2
    assert "no systemd of this user can be reached: Failed to connect to bus: No medium found" in ran.err
    assert "loginctl enable-linger" in ran.err
    (systemd.bin / "systemctl").unlink()
    ran = systemd.run("install", MODEL)
    assert ran.code == 2
    assert "there is no systemctl on PATH" in ran.err
    assert not systemd.unit.exists()


@pytest.mark.parametrize(
    "argv", [["hf:a/b"], ["no-such-model"], [MODEL, "--variant", "zz"], [MODEL, "--port", "1", "--admin-port", "1"]]
)
def test_what_run_refuses_is_refused_before_anything_is_written(systemd: Systemd, argv: list[str]) -> None:
    assert systemd.run("install", *argv).code == 2
    assert systemd.calls == []
    assert not systemd.unit.parent.exists()


def test_control_characters_are_no_part_of_a_unit(systemd: Systemd) -> None:
    ran = systemd.run("install", MODEL, "--name", "a\nExecStartPost=/bin/evil")
    assert ran.code == 2
    assert not systemd.unit.exists()


def test_the_unit() -> None:
    plan = ServicePlan(("/opt/python", "-m", "sbproxy_cli"), MODEL, ("--port", "8080"), "/home/ann/service.txt")
    check_snapshot("cli/service-unit.txt", plan.text())


def test_only_given_flags_are_written() -> None:
    assert run_options([("--a", "1"), ("--b", None), ("--c", "x y")]) == ("--a", "1", "--c", "x y")


@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=40))
def test_a_quoted_word_is_one_word_and_nothing_in_it_is_expanded(word: str) -> None:
    inner = quoted(word)[1:-1]
    assert inner.replace("$$", "").count("$") == 0
    assert inner.replace("%%", "").count("%") == 0
    plain = inner.replace("%%", "%").replace("$$", "$").replace('\\"', '"').replace("\\\\", "\\")
    assert plain == word or "\\" in word
    assert '"' not in inner.replace("\\\\", "").replace('\\"', "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    plan = ServicePlan((sys.executable, "-m", "sbproxy_cli"), MODEL, ("--name", 'a "b" $c %d \\e'), str(tmp_path / "f"))
    unit = tmp_path / "sbproxy.service"
    unit.write_text(plan.text())
    (tmp_path / "run").mkdir(mode=0o700)
    ran = subprocess.run(
        ["systemd-analyze", "verify", "--user", str(unit)],
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "run")},
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
