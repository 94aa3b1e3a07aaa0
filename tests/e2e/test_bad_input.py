"""Bad input gets a clear error that names the thing, the reason and the next step, and loses nothing (issue M1)."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sbproxy.devices.inventory import MachineInventory
from support import fake_engine, real_parts
from support.daemon import FAKE_ENGINE_CONFIG, PASSWORD, daemon, free_port, tiny_catalog

pytestmark = pytest.mark.e2e


def sbproxy(*arguments: str, timeout_s: float = 120, **environ: str) -> subprocess.CompletedProcess[str]:
    base = {key: value for key, value in os.environ.items() if not key.startswith(("SB_", "HF_", "SBPROXY_"))}
    return subprocess.run(
        [sys.executable, "-m", "sbproxy_cli", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**base, "SB_ADMIN_PASSWORD": PASSWORD, **environ},
    )


def write(directory: Path, text: str = FAKE_ENGINE_CONFIG, **changes: str) -> Path:
    path = directory / "sb.yml"
    ports = {"{port}": str(free_port()), "{admin_port}": str(free_port()), "{dir}": str(directory)}
    for old, new in {**ports, **changes}.items():
        text = text.replace(old, new)
    path.write_text(text)
    return path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    tiny_catalog(tmp_path)
    fake_engine.install(tmp_path)
    return tmp_path


def refused(path: Path, code: int, *named: str, **environ: str) -> str:
    run = sbproxy("serve", str(path), **environ)
    assert run.returncode == code, run.stderr
    assert run.stdout == ""
    assert "Traceback" not in run.stderr
    for word in named:
        assert word in run.stderr
    return run.stderr


def test_a_missing_file(place: Path) -> None:
    refused(place / "absent.yml", 1, "absent.yml", "no such file")


def test_every_mistake_of_a_file_at_once_each_with_its_line(place: Path) -> None:
    path = write(place, **{"max_concurrency: 4": "max_concurency: 4", "bind_address: 127.0.0.1": "bind_address: lo"})
    text = refused(path, 1, "max_concurrency", "bind_address")
    assert "sb.yml:4: proxy.bind_address" in text
    assert "proxy.model_host.deployments.tiny.max_concurency" in text


def test_an_unset_variable_in_a_secret_position(place: Path) -> None:
    path = write(place)
    run = sbproxy("serve", str(path), SB_ADMIN_PASSWORD="")
    assert run.returncode == 1
    path.write_text(path.read_text().replace("${SB_ADMIN_PASSWORD}", "${SB_NOT_SET_AT_ALL}"))
    refused(path, 1, "SB_NOT_SET_AT_ALL", "proxy.admin.password")


def test_a_catalog_that_does_not_parse(place: Path) -> None:
    (place / "catalog.yml").write_text("schema_version: 2\nmodels: [\n")
    refused(write(place), 1, "catalog.yml")


def test_a_model_that_does_not_exist_names_the_near_one(place: Path) -> None:
    refused(write(place, **{"model: tiny-model": "model: tiny-modle"}), 1, "tiny-modle", "tiny-model")


@pytest.mark.parametrize("which", ["http_bind_port", "port"])
def test_ports_in_use(place: Path, which: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        change = {"http_bind_port": {"{port}": port}, "port": {"{admin_port}": port}}[which]
        refused(write(place, **change), 1, port, "in use")


def test_an_admin_listener_off_loopback_with_the_default_password(place: Path) -> None:
    path = write(
        place, **{"    username: admin": "    bind: 0.0.0.0\n    username: admin", '"${SB_ADMIN_PASSWORD}"': "changeme"}
    )
    refused(path, 1, "proxy.admin")


def test_a_wrong_admin_password(place: Path) -> None:
    with daemon(place, FAKE_ENGINE_CONFIG) as served:
        served.start()
        run = sbproxy("models", "ps", "--admin-url", f"http://127.0.0.1:{served.admin_port}", SB_ADMIN_PASSWORD="wrong")
    assert run.returncode == 2
    assert "SB_ADMIN_PASSWORD" in run.stderr
    assert "wrong" not in run.stderr.replace("wrong password", "")


def test_no_memory_prints_every_term(place: Path) -> None:
    # More than can be free on this machine, and not more than it has: refused by the fit, not by the catalog.
    nearly_all = MachineInventory().probe().cpu.total_bytes - (64 << 20)
    catalog = place / "catalog.yml"
    catalog.write_text(catalog.read_text().replace("min_memory_bytes: 1\n", f"min_memory_bytes: {nearly_all}\n"))
    with daemon(place, FAKE_ENGINE_CONFIG) as served:
        served.start()
        answer = served.chat()
        assert answer.status == 503
        assert answer.json()["error"]["code"] == "insufficient_capacity"
        row = served.status_row()
        assert row["reason_code"] == "insufficient_capacity"
        for term in ("weights", "KV cache", "overhead", "margin", "free"):
            assert term in row["last_error"]


@pytest.mark.real_engine
def test_a_truncated_gguf_is_a_bad_file_and_not_a_crash_loop(place: Path) -> None:
    """Verified bytes that are no whole model: the catalog itself names a truncated file."""
    data = real_parts.real_model_path().read_bytes()[:40_000_000]
    (place / "tiny.gguf").write_bytes(data)
    catalog = place / "catalog.yml"
    text = catalog.read_text()
    old_sha = next(line for line in text.splitlines() if "sha256:" in line)
    old_size = next(line for line in text.splitlines() if "size_bytes:" in line)
    text = text.replace(old_sha, f"            sha256: {hashlib.sha256(data).hexdigest()}")
    catalog.write_text(text.replace(old_size, f"            size_bytes: {len(data)}"))
    shutil.rmtree(place / "llama-server", ignore_errors=True)
    program = real_parts.real_binary(place / "real").program
    config = FAKE_ENGINE_CONFIG.replace("{dir}/llama-server", str(program))
    with daemon(place, config) as served:
        served.start()
        answer = served.chat()
        assert answer.status == 503
        assert str(place) not in answer.body.decode()
        row = served.status_row()
        assert row["state"] == "failed"
        assert "bad_file" in row["last_error"]
        assert served.chat().status == 503, "a bad file stays failed until reset or reload"
        assert served.ask("POST", "/admin/model-host/reset", {"deployment": "tiny"}, admin=True).status == 200
