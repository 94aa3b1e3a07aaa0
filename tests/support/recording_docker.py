"""A stand-in for ``docker`` and ``podman``: writes down every call, and runs "containers" as processes of this machine.

It knows exactly the commands and options that the project says, and refuses every other one as the real tools do. A
container outlives the ``run`` that started it, as with the real ones. ``install`` puts it on a PATH.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RUN_VALUED = {
    *("--pull", "--name", "--label", "--network", "--publish", "--log-driver", "--tmpfs", "--user", "--userns"),
    *("--cap-drop", "--security-opt", "--pids-limit", "--mount", "--shm-size", "--gpus", "--device", "--env"),
    *("--env-file", "--entrypoint"),
}
RUN_BARE = {"--rm", "--init", "--read-only"}
DEFAULTS: dict[str, Any] = {"publishes": True, "reachable": True, "rootless": False, "pull_fails": "", "images": []}


def install(folder: Path, kind: str, engine: Path, **settings: Any) -> Path:
    """Write ``folder/bin/<kind>``. ``engine`` is the ``bin`` folder whose programs stand for those of every image."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    (folder / "settings.json").write_text(json.dumps(DEFAULTS | settings))
    program = folder / "bin" / kind
    words = [sys.executable, "-S", "-E", str(Path(__file__)), kind, str(folder), str(engine)]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    program.chmod(0o755)
    return program


def calls(folder: Path) -> list[list[str]]:
    """Every command line so far, in order."""
    path = folder / "calls.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def containers(folder: Path) -> list[dict[str, Any]]:
    """Those that were not removed."""
    return [json.loads(path.read_text()) for path in (folder / "containers").glob("*.json")]


def networks(folder: Path) -> list[str]:
    return sorted(path.stem for path in (folder / "networks").glob("*.json"))


class Tool:
    def __init__(self, kind: str, folder: Path, engine: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.engine = engine
        self.settings = json.loads((folder / "settings.json").read_text())
        for name in ("containers", "networks"):
            (folder / name).mkdir(exist_ok=True)

    def main(self, words: list[str]) -> int:
        with (self.folder / "calls.jsonl").open("a") as file:
            file.write(f"{json.dumps(words)}\n")
        if not self.settings["reachable"]:
            return self.fail("Cannot connect to the Docker daemon at unix:///var/run/docker.sock.")
        match words:
            case ["info", "--format", "{{json .}}"]:
                return self.info()
            case ["image", "inspect", image]:
                return self.inspect_image(image)
            case ["pull", image]:
                return self.pull(image)
            case ["network", "create", *options, name]:
                return self.create_network(options, name)
            case ["network" | "container" as what, "inspect", name]:
                return self.inspect(what, name)
            case ["network", "rm", name]:
                (self.folder / "networks" / f"{name}.json").unlink()
                return 0
            case ["container", "rm", "--force", "--volumes", name]:
                return self.remove(name)
            case ["stop", "--time", seconds, name]:
                return self.stop(name, int(seconds))
            case ["run", *rest]:
                return self.run(rest)
        return self.fail(f"unknown command: {self.kind} {' '.join(words)}", 125)

    def fail(self, text: str, status: int = 1) -> int:
        sys.stderr.write(f"Error response from daemon: {text}\n")
        return status

    def info(self) -> int:
        security = ["name=seccomp,profile=builtin", *(["name=rootless"] if self.settings["rootless"] else [])]
        docker = {"ServerVersion": "28.2.2", "SecurityOptions": security}
        sys.stdout.write(json.dumps(docker if self.kind == "docker" else {"version": {"Version": "5.4.0"}}))
        return 0

    def inspect_image(self, image: str) -> int:
        if image not in self.settings["images"]:
            return self.fail(f"No such image: {image}")
        sys.stdout.write(json.dumps([{"RepoDigests": [image]}]))
        return 0

    def pull(self, image: str) -> int:
        if self.settings["pull_fails"]:
            return self.fail(self.settings["pull_fails"])
        for layer in ("a1", "b2"):
            sys.stdout.write(f"{layer}: Pull complete\n")
        self.settings["images"].append(image)
        (self.folder / "settings.json").write_text(json.dumps(self.settings))
        return 0

    def create_network(self, options: list[str], name: str) -> int:
        label = options[options.index("--label") + 1].partition("=")
        content = {"Name": name, "Internal": "--internal" in options, "Labels": {label[0]: label[2]}}
        (self.folder / "networks" / f"{name}.json").write_text(json.dumps(content))
        return 0

    def inspect(self, what: str, name: str) -> int:
        path = self.folder / f"{what}s" / f"{name}.json"
        try:
            content = json.loads(path.read_text())
        except FileNotFoundError:
            return self.fail(f"No such container: {name}" if what == "container" else f"network {name} not found")
        sys.stdout.write(json.dumps([content if what == "network" else self.described(content)]))
        return 0

    def described(self, content: dict[str, Any]) -> dict[str, Any]:
        port = content["port"]
        bound = {f"{port}/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(port)}]} if self.settings["publishes"] else {}
        address = {"IPAddress": "" if self.settings["publishes"] else "127.0.0.1", "IPPrefixLen": 8}
        networks = {content["network"]: address}
        return {"Config": {"Labels": content["labels"]}, "NetworkSettings": {"Ports": bound, "Networks": networks}}

    def remove(self, name: str) -> int:
        path = self.folder / "containers" / f"{name}.json"
        if not path.exists():
            return self.fail(f"No such container: {name}")
        end(json.loads(path.read_text())["pid"], 0)
        path.unlink(missing_ok=True)
        return 0

    def stop(self, name: str, seconds: int) -> int:
        path = self.folder / "containers" / f"{name}.json"
        if not path.exists():
            return self.fail(f"No such container: {name}")
        end(json.loads(path.read_text())["pid"], seconds)
        return 0

    def run(self, words: list[str]) -> int:
        options: dict[str, list[str]] = {}
        rest = list(words)
        while rest and rest[0].startswith("-"):
            name = rest.pop(0)
            if name in RUN_VALUED:
                options.setdefault(name, []).append(rest.pop(0))
            elif name in RUN_BARE:
                options[name] = []
            else:
                return self.fail(f"unknown flag: {name}", 125)
        image, *command = rest
        if image not in self.settings["images"]:
            return self.fail(f"No such image: {image}", 125)
        program = self.engine / {"vllm": "vllm", "python3": "python"}[options["--entrypoint"][0]]
        if "--name" not in options:
            return subprocess.run([str(program), *command], env=self.environ(options), check=False).returncode
        return self.attached(options, program, command)

    def attached(self, options: dict[str, list[str]], program: Path, command: list[str]) -> int:
        name, network = options["--name"][0], options["--network"][0]
        if not (self.folder / "networks" / f"{network}.json").exists():
            return self.fail(f"network {network} not found", 125)
        mounts = [dict(part.partition("=")[::2] for part in each.split(",")) for each in options.get("--mount", [])]
        places = {each["dst"]: each["src"] for each in mounts} | {"0.0.0.0": "127.0.0.1"}
        words = [places.get(word, word) for word in command]
        engine = subprocess.Popen(
            [str(program), *words], env=self.environ(options), start_new_session=True, stdin=subprocess.DEVNULL
        )
        state = {
            "name": name,
            "pid": engine.pid,
            "network": network,
            "port": int(options["--publish"][0].split(":")[1]),
            "labels": dict(each.partition("=")[::2] for each in options["--label"]),
        }
        path = self.folder / "containers" / f"{name}.json"
        path.write_text(json.dumps(state))
        signal.signal(signal.SIGTERM, lambda *_: engine.terminate())
        status = engine.wait()
        path.unlink(missing_ok=True)
        return status if status >= 0 else 128 - status

    def environ(self, options: dict[str, list[str]]) -> dict[str, str]:
        lines = list(options.get("--env", []))
        for path in options.get("--env-file", []):
            lines += Path(path).read_text().split()
        return {"PATH": os.environ["PATH"], **dict(line.partition("=")[::2] for line in lines)}


def end(pid: int, seconds: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM if seconds else signal.SIGKILL)
        deadline = time.monotonic() + (seconds or 10)
        while alive(pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


if __name__ == "__main__":
    raise SystemExit(Tool(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])).main(sys.argv[4:]))
