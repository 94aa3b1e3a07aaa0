"""A pull in a process of its own, for tests that kill it, starve it of disk or run two of it at once.

``python pull_process.py JOB`` where JOB is a JSON object: root, source, files {path: [sha256, size]}, and optionally
hub_url, kill_at (SIGKILL itself at that file-system call), fill (fill the disk at the first byte), sweep (fork one
child for every kill point, check the store after each death, then pull to the end). Prints one JSON line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sbproxy.artifacts.core.model import Missing, Partial, PullProgress, Ready
from sbproxy.artifacts.http_fetcher import Retry
from sbproxy.artifacts.partial import hash_file
from sbproxy.artifacts.store import FileArtifactStore
from sbproxy.catalog.core.model import (
    ArtifactDigest,
    CatalogFile,
    CatalogModel,
    ModelId,
    Requirements,
    ResolvedArtifact,
    Variant,
    VariantId,
)
from sbproxy.errors import SbproxyError

FILE_SYSTEM_CALLS = frozenset(
    {"open", "os.rename", "os.link", "os.symlink", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate",
     "shutil.rmtree", "os.listdir", "os.scandir", "fcntl.flock"}
)  # fmt: skip


def artifact_of(job: dict[str, Any]) -> ResolvedArtifact:
    files = tuple(CatalogFile(path, sha, size) for path, (sha, size) in job["files"].items())
    variant = Variant(
        VariantId("q4"), "gguf", "Q4", ("llama_cpp",), job["source"], "main", files, Requirements(), "preview", "test"
    )
    model = CatalogModel(ModelId("tiny"), "1M", "mit", "tiny", 128, (variant,))
    return ResolvedArtifact("test-1", model, variant, "llama_cpp", ArtifactDigest(job.get("digest", "d" * 64)))


def store_of(job: dict[str, Any]) -> FileArtifactStore:
    return FileArtifactStore(
        Path(job["root"]), environ=os.environ, hub_url=job.get("hub_url"), retry=Retry(3, 0.05, 0.1)
    )


class DiskFiller:
    """A progress sink that leaves no room as soon as the first bytes are written."""

    def __init__(self, root: Path) -> None:
        self._path = root / "filler"

    def __call__(self, step: PullProgress) -> None:
        if step.phase != "downloading" or not step.completed_bytes or self._path.exists():
            return
        with self._path.open("wb", buffering=0) as stream:
            try:
                while True:
                    stream.write(b"x" * 65536)
            except OSError:
                return

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)


def die_at(call: int, root: str) -> None:
    """Arm a kill -9 of this process right before its ``call``-th file-system call below the store."""
    seen = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event not in FILE_SYSTEM_CALLS:
            return
        if event == "fcntl.flock" or any(
            isinstance(item, str | Path) and str(item).startswith(root) for item in arguments
        ):
            seen += 1
            if seen == call:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def pull(job: dict[str, Any], **options: Any) -> dict[str, Any]:
    store, artifact = store_of(job), artifact_of(job)
    steps: list[PullProgress] = []

    def note(step: PullProgress) -> None:
        steps.append(step)
        options.get("sink", lambda _step: None)(step)

    try:
        snapshot = store.ensure(artifact, intent="explicit", policy="on_demand", progress=note)
    except SbproxyError as error:
        return {"error": error.code, "text": str(error), "state": str(store.state(artifact))}
    store.verify(artifact)
    waited = any(step.phase == "queued" for step in steps)
    return {"fetched": snapshot.fetched_bytes, "path": str(snapshot.path), "waited": waited}


def check_after_death(job: dict[str, Any]) -> None:
    """Whatever stands in the store is right: states are honest and every blob has the bytes that it is named after."""
    store, artifact = store_of(job), artifact_of(job)
    match store.state(artifact):
        case Ready():
            store.verify(artifact)
        case Missing() | Partial():
            assert store.inventory() == []
        case state:
            raise AssertionError(f"a killed pull left {state}")
    if store.paths.blobs.is_dir():
        for blob in store.paths.blobs.iterdir():
            assert hash_file(blob, lambda: None)[1] == blob.name


def sweep(job: dict[str, Any]) -> dict[str, Any]:
    """Kill one pull at its first file-system call, one at its second, and so on until one gets through."""
    deaths = 0
    while True:
        each = {**job, "root": f"{job['root']}/{deaths}"}
        child = os.fork()
        if not child:
            die_at(deaths + 1, each["root"])
            outcome = pull(each)
            os._exit(0 if "fetched" in outcome else 9)
        status = os.waitpid(child, 0)[1]
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            return {"deaths": deaths}
        check_after_death(each)
        assert "fetched" in pull(each)
        leftovers = [
            path for path in Path(each["root"]).rglob("*") if path.name.startswith(".tmp-") or path.suffix == ".part"
        ]
        assert leftovers == []
        deaths += 1


def main() -> None:
    job = json.loads(sys.argv[1])
    if job.get("sweep"):
        outcome = sweep(job)
    elif job.get("fill"):
        filler = DiskFiller(Path(job["root"]).parent)
        first = pull(job, sink=filler)
        filler.clear()
        outcome = {"first": first, "second": pull(job)}
    else:
        outcome = pull(job)
    sys.stdout.write(json.dumps(outcome) + "\n")


if __name__ == "__main__":
    main()
