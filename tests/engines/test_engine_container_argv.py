"""What is said to Docker and Podman: every confinement of document 1, and what it forbids."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from sbproxy.engines.core.container import (
    LABEL,
    ContainerPlan,
    Image,
    Person,
    addresses,
    ask_image,
    belongs,
    container_name,
    create_network,
    exit_code,
    pinned_image,
    run_container,
)
from sbproxy.errors.engines import EngineBlocked, EngineIncompatible

DIGEST = "a" * 64
IMAGE = Image(f"vllm/vllm-openai@sha256:{DIGEST}", DIGEST)
PLAN = ContainerPlan(
    kind="docker",
    name="sbproxy-chat-g3-r0-0123456789ab",
    token="0123456789abcdef0123456789abcdef",
    image=IMAGE,
    entrypoint="vllm",
    command=("serve", "/models", "--port", "4711"),
    port=4711,
    model=Path("/srv/models/snapshots/x"),
    devices=(0, 2),
    environ={"HF_HUB_OFFLINE": "1"},
    secrets_file=Path("/run/sbproxy/secrets"),
    person=Person(1000, 100),
    shm_gib=8,
)


def run(**changes: Any) -> list[str]:
    return list(run_container("vllm", dataclasses.replace(PLAN, **changes)))


def values(words: list[str], name: str) -> list[str]:
    return [words[at + 1] for at, word in enumerate(words) if word == name]


def test_an_image_is_pinned_by_digest_or_refused() -> None:
    assert pinned_image("vllm", IMAGE.reference) == IMAGE
    local = pinned_image("vllm", f"registry.example:5000/team/vllm@sha256:{DIGEST}")
    assert local.digest == DIGEST
    for text in (
        *(
            "vllm/vllm-openai",
            "vllm/vllm-openai:latest",
            "vllm/vllm-openai:v0.10.0",
            f"vllm/vllm-openai@sha256:{'a' * 63}",
        ),
        *(
            f"vllm:v1@sha256:{DIGEST}",
            f"vllm@sha256:{'A' * 64}",
            f"--privileged@sha256:{DIGEST}",
            f"a b@sha256:{DIGEST}",
        ),
        *(f"{IMAGE.reference} --privileged", f"{IMAGE.reference}\n", ""),
    ):
        with pytest.raises(EngineBlocked, match=r"pinned by digest|has a tag"):
            pinned_image("vllm", text)


def test_without_an_image_the_refusal_says_what_to_write() -> None:
    with pytest.raises(EngineBlocked) as caught:
        pinned_image("vllm", None)
    assert "engines.vllm.image: repository@sha256:<digest>" in str(caught.value)


def test_the_network_is_internal_and_the_containers_own() -> None:
    words = create_network(PLAN)
    assert words[:2] == ("network", "create")
    assert "--internal" in words
    assert words[-1] == f"{PLAN.name}-net"
    assert f"{LABEL}={PLAN.token}" in words
    assert values(run(), "--network") == [f"{PLAN.name}-net"]


def test_the_confinement_of_a_container() -> None:
    words = run()
    assert words[0] == "run"
    assert {"--rm", "--init", "--read-only"} <= set(words)
    assert values(words, "--pull") == ["never"]
    assert values(words, "--name") == [PLAN.name]
    assert values(words, "--label") == [f"{LABEL}={PLAN.token}"]
    assert values(words, "--publish") == ["127.0.0.1:4711:4711/tcp"]
    assert values(words, "--mount") == ["type=bind,src=/srv/models/snapshots/x,dst=/models,readonly"]
    assert values(words, "--cap-drop") == ["ALL"]
    assert values(words, "--security-opt") == ["no-new-privileges"]
    assert values(words, "--pids-limit") == ["4096"]
    assert values(words, "--shm-size") == [str(8 * 1024**3)]
    assert values(words, "--user") == ["1000:100"]
    assert values(words, "--log-driver") == ["none"]
    assert values(words, "--env-file") == ["/run/sbproxy/secrets"]
    assert set(values(words, "--env")) == {"HOME=/tmp", "USER=sbproxy", "LOGNAME=sbproxy", "HF_HUB_OFFLINE=1"}
    (tmpfs,) = values(words, "--tmpfs")
    assert tmpfs.startswith("/tmp:rw,exec,nosuid,nodev,size=")
    assert words[words.index("--entrypoint") :] == ["--entrypoint", "vllm", IMAGE.reference, *PLAN.command]


def test_nothing_opens_the_container() -> None:
    forbidden = {"--privileged", "--volume", "-v", "--ipc", "--pid", "--cap-add", "--net", "-p", "-P", "--detach"}
    for kind in ("docker", "podman"):
        words = run(kind=kind)
        assert not forbidden & set(words)
        assert "host" not in words
        assert "all" not in words


def test_exactly_the_chosen_devices() -> None:
    assert values(run(), "--gpus") == ['"device=0,2"']
    podman = run(kind="podman")
    assert values(podman, "--device") == ["nvidia.com/gpu=0", "nvidia.com/gpu=2"]
    assert "--gpus" not in podman
    cpu = run(devices=())
    assert not {"--gpus", "--device"} & set(cpu)


def test_podman_keeps_our_user() -> None:
    assert values(run(kind="podman"), "--userns") == ["keep-id"]
    assert "--userns" not in run()
    assert "--userns" not in run(kind="podman", person=Person(0, 0))


def test_a_repository_gets_a_way_out_and_a_folder_to_write_and_nothing_else_does() -> None:
    plan = dataclasses.replace(PLAN, model=None, hub=Path("/srv/hub"))
    assert "--internal" not in create_network(plan)
    assert values(list(run_container("vllm", plan)), "--mount") == ["type=bind,src=/srv/hub,dst=/hub"]


@pytest.mark.parametrize("path", ["/a,readonly=false", '/a"b', "/a\nb", "relative"])
def test_a_path_that_would_say_more_than_a_path(path: str) -> None:
    with pytest.raises(EngineIncompatible, match="cannot be mounted"):
        run(model=Path(path))


def test_asking_an_image_gives_it_nothing() -> None:
    words = list(ask_image(IMAGE, "vllm", ("serve", "--help=all")))
    assert values(words, "--network") == ["none"]
    assert not {"--mount", "--gpus", "--device", "--publish", "--env-file"} & set(words)
    assert {"--read-only", "--rm"} <= set(words)
    assert words[-4:] == ["vllm", IMAGE.reference, "serve", "--help=all"]


def test_names_are_readable_and_unique() -> None:
    name = container_name("my chat/β", 7, 1, PLAN.token)
    assert name == "sbproxy-my_chat__-g7-r1-0123456789ab"
    assert len(container_name("x" * 500, 1, 0, PLAN.token)) < 128


def inspected(ports: Any, address: str = "172.30.0.2") -> list[dict[str, Any]]:
    networks = {f"{PLAN.name}-net": {"IPAddress": address, "IPPrefixLen": 16}}
    return [{"NetworkSettings": {"Ports": ports, "Networks": networks}}]


def test_where_an_engine_answers_is_the_runtimes_word() -> None:
    bound = {"4711/tcp": [{"HostIp": "127.0.0.1", "HostPort": "4711"}]}
    own = ("172.30.0.2", "172.30.0.0/16")
    assert addresses(inspected(bound), PLAN.name, 4711) == (("127.0.0.1", ""), own)
    # Docker publishes nothing from an internal network.
    assert addresses(inspected({"4711/tcp": None}), PLAN.name, 4711) == (own,)
    assert addresses(inspected({}), PLAN.name, 4711) == (own,)
    wide = {"4711/tcp": [{"HostIp": "0.0.0.0", "HostPort": "4711"}]}
    assert addresses(inspected(wide, ""), PLAN.name, 4711) == ()
    for strange in (None, [], [{}], [{"NetworkSettings": None}], {"a": 1}, inspected("x")):
        assert addresses(strange, PLAN.name, 4711) == ()


def test_only_our_own_label_makes_a_container_ours() -> None:
    assert belongs([{"Config": {"Labels": {LABEL: PLAN.token}}}], PLAN.token)
    assert belongs([{"Labels": {LABEL: PLAN.token}}], PLAN.token)
    for strange in ([{"Config": {"Labels": {LABEL: "other"}}}], [{"Config": {"Labels": None}}], [], None, [{}]):
        assert not belongs(strange, PLAN.token)


@pytest.mark.parametrize(("status", "means"), [(0, 0), (1, 1), (125, 125), (137, -9), (143, -15), (None, None)])
def test_exit_status(status: int | None, means: int | None) -> None:
    assert exit_code(status) == means
