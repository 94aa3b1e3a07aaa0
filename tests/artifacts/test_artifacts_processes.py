"""Several processes, dying processes, full disks: the store stays right and the next pull finishes."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sbproxy.artifacts.store import FileArtifactStore
from sbproxy.errors.artifacts import RemovalBlocked
from support.hub import Hub
from support.pulls import noise, sha256

pytestmark = pytest.mark.e2e
PROGRAM = Path(__file__).resolve().parents[1] / "support" / "pull_process.py"
FILES = {"weights-a.gguf": noise(900_000, 1), "deep/weights-b.gguf": noise(300_000, 2)}


def job(root: Path, source: str = "hf:Org/Repo", files: dict[str, bytes] = FILES, **options: Any) -> dict[str, Any]:
    listed = {name: [sha256(data), len(data)] for name, data in files.items()}
    return {"root": str(root), "source": source, "files": listed, **options}


def start(work: dict[str, Any], prefix: list[str] | None = None, **options: Any) -> subprocess.Popen[str]:
    command = [*(prefix or []), sys.executable, str(PROGRAM), json.dumps(work)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def outcome(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=50)
    assert process.returncode == 0, err
    return dict(json.loads(out))


def assert_bytes(work: dict[str, Any], files: dict[str, bytes] = FILES) -> None:
    for name, data in files.items():
        assert (Path(work["root"]) / "snapshots" / ("d" * 64) / name).read_bytes() == data


def hub_files(files: dict[str, bytes] = FILES) -> dict[str, bytes]:
    return {f"Org/Repo/{name}": data for name, data in files.items()}


def test_killed_at_every_file_system_call_of_a_local_pull(tmp_path: Path) -> None:
    for name, data in FILES.items():
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / name).write_bytes(data)
    done = outcome(start(job(tmp_path / "stores", f"file:{tmp_path / 'source'}", sweep=True)))
    assert done["deaths"] > 60, "the sweep must reach the commit and what follows it"


def test_killed_at_every_file_system_call_of_a_download(tmp_path: Path) -> None:
    small = {"a.gguf": noise(3000, 3)}
    with Hub(hub_files(small)) as hub:
        done = outcome(start(job(tmp_path / "stores", files=small, hub_url=hub.url, sweep=True)))
    assert done["deaths"] > 60


@pytest.mark.parametrize("seed", range(4))
def test_killed_at_random_moments_of_a_slow_download(tmp_path: Path, seed: int) -> None:
    moments = random.Random(seed)
    with Hub(hub_files()) as hub:
        work = job(tmp_path / "cache", hub_url=hub.url)
        for _ in range(3):
            hub.behave()
            hub.fault("drip", chunk=30_000, pause=0.02, times=9)
            process = start(work)
            asked = len(hub.requests)
            while len(hub.requests) == asked and process.poll() is None:
                time.sleep(0.01)
            time.sleep(moments.uniform(0, 0.5))
            process.send_signal(signal.SIGKILL)
            process.communicate()
        hub.behave()
        hub.settle()
        hub.body_bytes = 0
        fetched = outcome(start(work))["fetched"]
        assert fetched <= sum(map(len, FILES.values()))
        assert hub.body_bytes == fetched
        assert_bytes(work)
        if seed == 0:
            assert any("range" in request.headers for request in hub.asked("cdn"))


def test_two_pulls_at_once_fetch_once(tmp_path: Path) -> None:
    with Hub(hub_files()) as hub:
        hub.fault("drip", chunk=100_000, pause=0.1, times=2)
        work = job(tmp_path / "cache", hub_url=hub.url)
        results = sorted((outcome(process) for process in [start(work), start(work)]), key=lambda r: int(r["fetched"]))
        total = sum(map(len, FILES.values()))
        assert [result["fetched"] for result in results] == [0, total]
        assert results[0]["waited"]
        assert hub.body_bytes == total
        assert_bytes(work)


def test_two_artifacts_that_share_a_file_fetch_it_once(tmp_path: Path) -> None:
    with Hub(hub_files()) as hub:
        hub.fault("drip", chunk=100_000, pause=0.05, times=2)
        works = [job(tmp_path / "cache", hub_url=hub.url, digest=digit * 64) for digit in "ab"]
        results = [outcome(process) for process in [start(work) for work in works]]
        assert sum(result["fetched"] for result in results) == sum(map(len, FILES.values())) == hub.body_bytes


def test_a_lease_of_another_process_blocks_removal_until_that_process_ends(tmp_path: Path) -> None:
    source = tmp_path / "a.gguf"
    source.write_bytes(noise(1000))
    work = job(tmp_path / "cache", f"file:{source}", {"a.gguf": noise(1000)})
    outcome(start(work))
    program = (
        "import sys; from pathlib import Path; from sbproxy.artifacts.store import FileArtifactStore\n"
        "with FileArtifactStore(Path(sys.argv[1]), environ={}).lease('d' * 64):\n"
        "    print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, work["root"]]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=PROGRAM.parents[2])
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        store = FileArtifactStore(Path(work["root"]), environ={})
        with pytest.raises(RemovalBlocked, match="leased"):
            store.remove("d" * 64)
        holder.kill()
        holder.wait()
    assert store.remove("d" * 64).removed


def small_disk(folder: Path) -> list[str] | None:
    """A command prefix that runs a program with a 2 MiB file system on ``folder``; ``None`` where nobody may mount."""
    for unshare in (["unshare", "--mount"], ["unshare", "--map-root-user", "--mount"]):
        mount = ["sh", "-c", 'mount -t tmpfs -o size=2m none "$0" && exec "$@"', str(folder)]
        if shutil.which("unshare") and subprocess.run([*unshare, *mount, "true"], capture_output=True).returncode == 0:
            return [*unshare, *mount]
    return None


def limit_file_size() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def test_a_disk_that_fills_up_keeps_the_part_and_the_next_pull_resumes(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    prefix = small_disk(disk)
    with Hub(hub_files()) as hub:
        work = job(disk / "cache", hub_url=hub.url)
        hub.fault("drip", chunk=200_000, pause=0.15)
        if prefix is not None:
            both = outcome(start({**work, "fill": True}, prefix))
            first, second = both["first"], both["second"]
            assert first["error"] == "disk_full"
            assert "free some space" in first["text"]
        else:
            # Without the right to mount, the kernel's limit of a file's size stops the write in the same place.
            first = outcome(start(work, preexec_fn=limit_file_size))
            hub.behave()
            second = outcome(start(work))
            assert first["error"] == "store_unusable"
        assert first["state"].startswith("Partial(")
        assert any(request.headers.get("range", "") > "bytes=0-" for request in hub.asked("cdn"))
        assert second["fetched"] < sum(map(len, FILES.values()))


def test_a_disk_that_is_too_small_is_told_before_the_first_request(tmp_path: Path) -> None:
    prefix = small_disk(tmp_path)
    large = {"a.gguf": noise(3_000_000)}
    with Hub(hub_files(large)) as hub:
        if prefix is None:
            large_job = job(tmp_path / "cache", files=large, hub_url=hub.url)
            large_job["files"]["a.gguf"][1] = 2**60
        else:
            large_job = job(tmp_path / "cache", files=large, hub_url=hub.url)
        told = outcome(start(large_job, prefix))
        assert (told["error"], told["state"]) == ("disk_full", "Missing()")
        assert hub.requests == []


def test_a_read_only_store_serves_hits_and_refuses_the_rest(tmp_path: Path) -> None:
    source = tmp_path / "a.gguf"
    source.write_bytes(noise(1000))
    cache = tmp_path / "cache"
    work = job(cache, f"file:{source}", {"a.gguf": noise(1000)})
    outcome(start(work))
    # Root passes file modes unless it gives up that right.
    prefix = [] if os.geteuid() else ["setpriv", "--bounding-set", "-dac_override"]
    paths = [cache, *cache.rglob("*")]
    modes = {path: path.stat().st_mode for path in paths}
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert outcome(start(work, prefix))["fetched"] == 0
        refused = outcome(start({**work, "digest": "e" * 64}, prefix))
        assert refused["error"] == "store_unusable"
        assert "check its owner" in refused["text"]
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
