"""The scan of pickle files: checkpoints pass, everything that could run code is named and not published."""

from __future__ import annotations

import collections
import contextlib
import io
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbproxy.artifacts.core.model import Missing, Ready
from sbproxy.artifacts.core.pickle_scan import ALLOWED, LEGACY_MAGIC, UnsafePickle, check_pickle
from sbproxy.artifacts.pickle_files import scan_file
from sbproxy.artifacts.store import FileArtifactStore
from sbproxy.errors.artifacts import PickleUnsafe
from support.pulls import noise, resolved, sha256

# What torch.save writes of one tensor, by hand: torch itself is far too large for these tests.
TENSOR = (
    b"\x80\x02ccollections\nOrderedDict\nq\x00)Rq\x01X\x06\x00\x00\x00weightq\x02ctorch._utils\n_rebuild_tensor_v2\nq\x03"
    b"((X\x07\x00\x00\x00storageq\x04ctorch\nFloatStorage\nq\x05X\x01\x00\x00\x000q\x06X\x03\x00\x00\x00cpuq\x07K\x04tq\x08Q"
    b"K\x00K\x04\x85q\tK\x01\x85q\n\x89ccollections\nOrderedDict\nq\x0b)Rq\x0ctq\rRq\x0es."
)


class Runs:
    """Calls ``function`` when it is unpickled."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._call


def archive(**members: bytes) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as made:
        for name, data in members.items():
            made.writestr(f"archive/{name.replace('__', '/').replace('_', '.')}", data)
    return sink.getvalue()


def checkpoint(data: bytes = TENSOR) -> bytes:
    return archive(data_pkl=data, version=b"3\n", data__0=noise(16))


def legacy(*more: bytes, weights: bytes = b"") -> bytes:
    head = [pickle.dumps(each, 2) for each in (LEGACY_MAGIC, 1001, {"little_endian": True})]
    return b"".join([*head, TENSOR, pickle.dumps(["0"], 2), weights, *more])


def scanned(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "file.bin").write_bytes(data)
    scan_file(tmp_path / "file.bin")


@pytest.mark.parametrize(
    "data",
    [
        checkpoint(),
        legacy(weights=b"\x00\xffcos\nsystem\n" + noise(500)),
        TENSOR,
        pickle.dumps({"a": [1, 2.5, None, True, b"x", (3, "y")]}),
        *(pickle.dumps(collections.OrderedDict(a={1, 2}, b=frozenset("c")), protocol) for protocol in range(2, 6)),
        *(pickle.dumps([bytearray(b"x"), complex(1, 2)], protocol) for protocol in range(2, 6)),
    ],
)
def test_what_only_rebuilds_data_passes(tmp_path: Path, data: bytes) -> None:
    scanned(tmp_path, data)


HOSTILE: dict[str, Callable[..., Any]] = {
    "os.system": os.system,
    "builtins.eval": eval,
    "builtins.exec": exec,
    "builtins.getattr": getattr,
    "builtins.__import__": __import__,
    "pickle.loads": pickle.loads,
    "io.open": open,
}


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("function", HOSTILE)
def test_what_runs_code_is_named(tmp_path: Path, function: str, protocol: int) -> None:
    hostile = pickle.dumps({"weight": Runs(HOSTILE[function], "true")}, protocol)
    for data in (hostile, checkpoint(hostile), TENSOR + hostile, legacy().replace(TENSOR, hostile)):
        with pytest.raises(UnsafePickle) as caught:
            scanned(tmp_path, data)
        named = (
            str(caught.value.named)
            .replace("__builtin__", "builtins")
            .replace("posix", "os")
            .replace("_pickle", "pickle")
        )
        assert named == function
        assert named.rpartition(".")[2] in str(caught.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        # The name comes out of the memo, is put together below other values, or is no text at all.
        (b"\x80\x04\x8c\x02os\x94\x8c\x06system\x940h\x00h\x01\x93.", "os.system"),
        (b"\x80\x04\x8c\x02os\x8c\x06systemK\x010\x93.", "at run time"),
        (b"\x80\x04\x8c\x02os2\x93.", "at run time"),
        (b"\x80\x04K\x01\x8c\x06system\x93.", "at run time"),
        (b"\x80\x04\x93.", "at run time"),
        (b"\x80\x04h\x05\x8c\x06system\x93.", "at run time"),
        # PUT over a name that was harmless when it was memoized.
        (b"\x80\x04\x8c\x0bcollections\x94\x8c\x02osq\x000\x8c\x01x0h\x00\x8c\x06system\x93.", "os.system"),
        (b"(S'true'\nios\nsystem\n.", "os.system"),
        (b"\x80\x02\x82\x01.", "registered number"),
        (b"\x80\x05\x97.", "buffers"),
        (b"\x80\x04\x8c\x0btorch.utils\x8c\x08__file__\x93.", "torch.utils.__file__"),
        (b"ccollections\nOrderedDict.__init__.__globals__\n.", "OrderedDict.__init__"),
        (b"ctorch.storage\n_load_from_bytes\n.", "_load_from_bytes"),
        (b"not a pickle", "cannot be read"),
        (b"\x80\x04\x8c\xff", "cannot be read"),
        (b"", "cannot be read"),
        (TENSOR + b"garbage", "cannot be read"),
        (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x00", "MiB of pickles"),
    ],
)  # fmt: skip
def test_disguises(tmp_path: Path, data: bytes, words: str) -> None:
    with pytest.raises(UnsafePickle, match=words):
        scanned(tmp_path, data)


def named_twice() -> bytes:
    """Its one pickle has a harmless name in the extra field that some readers prefer (Info-ZIP, 0x7075)."""
    name, shown = b"archive/data.pkl", b"archive/notes.txt"
    info = zipfile.ZipInfo(name.decode())
    info.extra = struct.pack("<HHBL", 0x7075, 5 + len(shown), 1, zlib.crc32(name)) + shown
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as made:
        made.writestr("archive/first.pkl", TENSOR)
        made.writestr(info, HARM)
    return sink.getvalue()


HARM = pickle.dumps(Runs(os.system, "true"), 2)


def tar_behind_pickles() -> bytes:
    """Its first member's name is a whole legacy checkpoint, and its body is what the oldest loader would read."""
    sink = io.BytesIO()
    head = b"".join(pickle.dumps(each, 2) for each in (LEGACY_MAGIC, 1001, {}, {}, []))
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.USTAR_FORMAT) as made:
        info = tarfile.TarInfo("x" * 99)
        info.size = len(HARM)
        made.addfile(info, io.BytesIO(HARM))
    block = bytearray(sink.getvalue())
    block[:100] = head.ljust(100, b"\x01")
    block[148:156] = b" " * 8
    block[148:156] = f"{sum(block[:512]):06o}\0 ".encode()
    return bytes(block)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (archive(data__0=b"x"), "without a pickle"),
        (archive(DATA_PKL=HARM), "system"),
        (archive(data_pkl=TENSOR, extra_pkl=HARM), "system"),
        (archive(data_pkl=TENSOR) + archive(data_pkl=HARM), "something before or after"),
        (archive(data_pkl=TENSOR, DATA_PKL=TENSOR), "two members"),
        (checkpoint()[:-30], "cannot be read as an archive"),
        (b"PK\x03\x04" + bytes(100), "cannot be read as an archive"),
        (checkpoint(TENSOR[:-1]), "cannot be read"),
        # PyTorch takes this for a stream of pickles, whatever is at its end.
        (HARM + archive(data_pkl=TENSOR), "system"),
        (tar_behind_pickles(), "tar archive"),
        (named_twice(), "two names|system"),
        (archive(data_pkl=TENSOR, data_pkl0zz=HARM).replace(b"data.pkl0zz", b"data.pkl\0zz"), "two names"),
    ],
)
def test_archives_that_two_readers_could_understand_differently(tmp_path: Path, data: bytes, words: str) -> None:
    with pytest.raises(UnsafePickle, match=words):
        scanned(tmp_path, data)


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=60), head=st.sampled_from([b"", b"\x80\x04", b"\x80\x02c", TENSOR[:40]]))
def test_no_bytes_make_it_stumble(data: bytes, head: bytes) -> None:
    said = "nothing"
    try:
        check_pickle(io.BytesIO(head + data))
    except UnsafePickle as refused:
        said = str(refused)
    assert said.isprintable()


OPCODES = [
    b"\x8c\x02os", b"\x8c\x06system", b"\x8c\x0bcollections", b"\x8c\x0bOrderedDict", b"Vos\n", b"Vsystem\n",
    b"\x94", b"\x93", b"0", b"1", b"2", b"(", b"K\x01", b"N", b"]", b"}", b")", b"R", b"\x85", b"\x86", b"t",
    b"h\x00", b"h\x01", b"h\x02", b"h\x03", b"q\x00", b"q\x01", b"q\x02", b"q\x03",
    b"a", b"s", b"u", b"e", b"b", b"\x81", b"ccollections\nOrderedDict\n",
]  # fmt: skip


class Asked(pickle.Unpickler):
    """The real unpickler, which only notes what it would have imported."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.names: set[str] = set()

    def find_class(self, module: str, name: str) -> Any:
        self.names.add(f"{module} {name}")
        return collections.OrderedDict


@settings(max_examples=1500, deadline=None)
@given(parts=st.lists(st.sampled_from(OPCODES), min_size=2, max_size=14), closing=st.sampled_from([b"", b"\x93"]))
def test_what_passes_makes_a_real_unpickler_ask_for_nothing_else(parts: list[bytes], closing: bytes) -> None:
    data = b"\x80\x04" + b"".join(parts) + closing + b"."
    passed = True
    try:
        check_pickle(io.BytesIO(data))
    except UnsafePickle:
        passed = False
    asked = Asked(data)
    with contextlib.suppress(Exception):
        asked.load()
    assert not passed or asked.names <= ALLOWED


# -- before publication -------------------------------------------------------------------------------------------


def artifact_of(folder: Path, data: bytes, **options: Any) -> Any:
    folder.mkdir(exist_ok=True)
    (folder / "pytorch_model.bin").write_bytes(data)
    return resolved(
        f"file:{folder}", {"pytorch_model.bin": data}, artifact_format="pickle", allow_pickle=True, **options
    )


def test_a_scanned_checkpoint_is_published(tmp_path: Path) -> None:
    store = FileArtifactStore(tmp_path / "cache", environ={})
    artifact = artifact_of(tmp_path / "source", checkpoint())
    snapshot = store.ensure(artifact, intent="explicit", policy="on_demand")
    assert snapshot.file("pytorch_model.bin").read_bytes() == checkpoint()
    assert isinstance(store.state(artifact), Ready)


def test_a_hostile_checkpoint_leaves_nothing(tmp_path: Path) -> None:
    store = FileArtifactStore(tmp_path / "cache", environ={})
    artifact = artifact_of(tmp_path / "source", checkpoint(HARM))
    with pytest.raises(PickleUnsafe) as caught:
        store.ensure(artifact, intent="explicit", policy="on_demand")
    error = caught.value
    assert (error.file, error.named, error.policy) == ("pytorch_model.bin", f"{os.system.__module__}.system", True)
    assert "system" in str(error)
    assert "choose a safetensors or gguf variant" in str(error)
    assert store.state(artifact) == Missing()
    assert list(store.paths.blobs.iterdir()) == []


def test_bytes_that_are_here_already_are_scanned_all_the_same(tmp_path: Path) -> None:
    store = FileArtifactStore(tmp_path / "cache", environ={})
    data = checkpoint(HARM)
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "notes.txt").write_bytes(data)
    plain = resolved(f"file:{tmp_path / 'plain'}", {"notes.txt": data}, variant="plain")
    store.ensure(plain, intent="explicit", policy="on_demand")
    artifact = artifact_of(tmp_path / "source", data)
    with pytest.raises(PickleUnsafe):
        store.ensure(artifact, intent="explicit", policy="on_demand")
    assert store.paths.blob(sha256(data)).exists(), "it belongs to the other one, for which it is no pickle"
    assert not store.paths.record(artifact.digest).exists()
