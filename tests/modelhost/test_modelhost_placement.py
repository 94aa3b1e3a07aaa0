"""Where a replica may live (contracts section 15): kinds, device sets, degrees, kernel gaps and shortfalls."""

from __future__ import annotations

import pytest

from sbproxy.devices.core.model import Device, Machine
from sbproxy.modelhost.core.gguf import ModelShape
from sbproxy.modelhost.core.memory_fit import Demand, WeightClass
from sbproxy.modelhost.core.placement import Policy, kernel_gap, kinds, options, shortfall, spills
from sbproxy.modelhost.core.residency import Claim, Evict, Holding, House, Place, decide

GIB = 1 << 30
CPU = Device(-1, "cpu", "system memory", 64 * GIB, 60 * GIB)


def card(index: int, free: int, *, name: str = "card", total: int = 24, compute: tuple[int, int] = (8, 0)) -> Device:
    return Device(index, "cuda", name, total * GIB, free * GIB, compute)


def machine(*cards: Device) -> Machine:
    return Machine("linux", "x86_64", 8, (CPU, *cards))


def demand(engine: str = "vllm", *, kv_heads: int = 8, weights: WeightClass = "f16") -> Demand:
    return Demand(8 * GIB, weights, 4096, 1, "chat", engine, "auto", ModelShape(32, kv_heads, 128))


def policy(
    acceleration: str = "auto", accelerators: tuple[str, ...] = ("cpu", "cuda"), tp: int | None = None
) -> Policy:
    return Policy(accelerators, acceleration, tp, 0.1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("acceleration", "accelerators", "expected"),
    [
        ("auto", ("cpu", "cuda"), ["cuda", "cpu"]), ("cuda", ("cpu", "cuda"), ["cuda"]),
        ("cpu", ("cpu", "cuda"), ["cpu"]),
        ("vulkan", ("cpu", "cuda"), ["cuda"]), ("auto", ("cpu",), ["cpu"]), ("auto", ("cuda",), ["cuda"]),
        ("cuda", ("cpu",), []), ("metal", ("cpu", "metal", "cuda"), []),
    ],
)  # fmt: skip
def test_kinds_follow_policy_and_catalog(acceleration: str, accelerators: tuple[str, ...], expected: list[str]) -> None:
    assert kinds(machine(card(0, 10)), policy(acceleration, accelerators)) == expected


def indexes(*cards: Device, engine: str = "vllm", kv_heads: int = 8, tp: int | None = None) -> list[tuple[int, ...]]:
    found = options(machine(*cards), "cuda", demand(engine, kv_heads=kv_heads), policy(tp=tp))
    return [option.indexes for option in found]


def test_single_cards_come_first_by_free_memory_then_groups_of_like_cards() -> None:
    cards = (card(0, 5), card(1, 20), card(2, 9), card(3, 20, name="other"))
    assert indexes(*cards) == [(1,), (3,), (2,), (0,), (1, 2)]
    assert indexes(*cards, engine="llama_cpp") == [(1,), (3,), (2,), (0,)]


def test_a_degree_must_divide_the_kv_heads_and_a_forced_one_stands_alone() -> None:
    cards = tuple(card(index, 20) for index in range(4))
    assert indexes(*cards, kv_heads=2) == [(0,), (1,), (2,), (3,), (0, 1)]
    assert indexes(*cards, kv_heads=3) == [(0,), (1,), (2,), (3,)]
    assert indexes(*cards, tp=4) == [(0, 1, 2, 3)]
    assert indexes(*cards[:3], tp=4) == []


def test_terms_are_per_device_and_the_minimum_counts_for_a_single_one() -> None:
    wide = policy(tp=2)
    option = options(machine(card(0, 20), card(1, 20)), "cuda", demand(), wide)[0]
    assert (option.need.weight_bytes, option.need.device_indexes) == (4 * GIB, (0, 1))
    floor = Policy(("cuda",), "auto", None, 0.1, 23 * GIB)
    single = options(machine(card(0, 20)), "cuda", demand("llama_cpp"), floor)[0]
    assert single.wanted_bytes == 23 * GIB


def test_replicas_of_one_deployment_are_disjoint() -> None:
    cards = (card(0, 20), card(1, 10))
    assert [o.indexes for o in options(machine(*cards), "cuda", demand("llama_cpp"), policy(), {0})] == [(1,)]


def test_fp8_needs_a_card_that_computes_it() -> None:
    old, new = card(0, 20), card(1, 10, compute=(8, 9))
    assert [o.indexes for o in options(machine(old, new), "cuda", demand(weights="fp8"), policy())] == [(1,)]
    assert kernel_gap(machine(old, new), "cuda", demand(weights="fp8")) is None
    gap = kernel_gap(machine(old), "cuda", demand(weights="fp8"))
    assert gap == "FP8 weights need compute capability 8.9, card has 8.0"
    assert kernel_gap(machine(old), "cuda", demand()) is None


@pytest.mark.parametrize(
    ("replicas", "degree", "taken", "reason"),
    [
        (2, 1, (), None),
        (2, 2, (), "replicas 2 x tensor_parallel 2 need 4 cuda devices, this machine has 2"),
        (2, 1, (0, 1), "a replica needs 1 cuda devices, 0 of 2 are left"),
    ],
)
def test_a_shortfall_is_named(replicas: int, degree: int, taken: tuple[int, ...], reason: str | None) -> None:
    assert shortfall(machine(card(0, 1), card(1, 1)), "cuda", replicas, degree, taken) == reason


def test_the_cpu_is_one_pool_for_any_number_of_replicas() -> None:
    assert [o.indexes for o in options(machine(), "cpu", demand("llama_cpp"), policy(), {0, 1})] == [(-1,)]
    assert shortfall(machine(), "cpu", 5, 1, ()) is None
    assert shortfall(machine(), "cpu", 1, 2, ()) == "tensor_parallel 2 needs as many cards, and the CPU is none"
    assert options(machine(), "cpu", demand(), policy(tp=2)) == []


def moe(engine: str = "llama_cpp", **shape: int | None) -> Demand:
    told = {"experts": 8, "expert_feed_forward": 1 << 12, "hidden": 1 << 12} | shape
    return Demand(16 * GIB, "q8", 4096, 1, "chat", engine, "auto", ModelShape(32, 8, 128, **told))  # type: ignore[arg-type]


def test_a_mixture_of_experts_spills_the_fewest_layers_that_fit() -> None:
    """A layer's experts are 3 x 4096 x 4096 x 8 weights of 1.06 bytes each: 407 MiB."""
    here = machine(card(0, 12))
    found = spills(here, "cuda", moe(), policy())
    assert [option.offload_layers for option in found] == list(range(1, 33))
    layer = int(3 * 4096 * 4096 * 8 * 1.06)
    third = found[2]
    assert third.need.weight_bytes == 16 * GIB - 3 * layer
    assert third.taken == {0: third.need.total_bytes, -1: int(3 * layer * 1.1)}
    claim = Claim(("moe", 1), options(here, "cuda", moe(), policy()), found)
    decision = decide(claim, [], House())
    assert isinstance(decision, Place)
    layers = decision.option.offload_layers
    assert decision.option.wanted_bytes <= 12 * GIB < found[layers - 2].wanted_bytes


def test_spilling_is_the_last_resort() -> None:
    wide = machine(card(0, 24))
    claim = Claim(("moe", 1), options(wide, "cuda", moe(), policy()), spills(wide, "cuda", moe(), policy()))
    held = Holding(("old", 1), {0: 8 * GIB}, "idle", 0)
    decision = decide(claim, [held], House())
    assert isinstance(decision, Evict), "an idle model leaves before a slower plan is taken"
    assert decision.option.offload_layers == 0


@pytest.mark.parametrize("demanded", [moe("vllm"), moe(experts=None), moe(hidden=None), demand("llama_cpp")])
def test_only_llama_cpp_spills_and_only_what_it_knows(demanded: Demand) -> None:
    assert spills(machine(card(0, 12)), "cuda", demanded, policy()) == []
    assert spills(machine(card(0, 12)), "cpu", moe(), policy()) == []
