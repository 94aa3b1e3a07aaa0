"""Guessing passwords: counted, audited and slowed down, whatever else a request carries and wherever it comes from."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter

import aiohttp
import pytest
from pydantic import SecretStr

from sbproxy.admin.accounts import MAX_CHECKS, Accounts, Credentials
from sbproxy.admin.core.guess_limit import PER_ADDRESS, PER_NAME
from sbproxy.admin.passwords import PasswordHash, hash_password, unmatchable
from sbproxy.config.core.document import OperatorConfig
from support.admin_world import ADMIN, CHIEF, VIEWER, AdminWorld, admin_config, admin_world

WRONG = (ADMIN[0], "guess")
UNAUTHORIZED = {"error": "Unauthorized"}


async def guess(world: AdminWorld, name: str) -> int:
    return (await world.post("/admin/login", {"username": name, "password": "guess"}, None))[0]


async def test_after_so_many_guesses_no_password_is_tried_and_open_sessions_go_on() -> None:
    async with admin_world() as world:
        browser = await world.log_in(CHIEF)
        statuses = [(await world.get("/api/health", WRONG))[0] for _ in range(PER_ADDRESS + 2)]
        assert statuses == [401] * PER_ADDRESS + [429] * 2
        # The right password is not told apart from a guess, by any way in.
        assert (await world.get("/api/health", ADMIN))[0] == 429
        assert await guess(world, ADMIN[0]) == 429
        async with world.call("GET", "/admin/session", WRONG) as refused:
            assert refused.status == 429
            assert 1 <= int(refused.headers["Retry-After"]) <= 60
        assert (await world.get("/api/health", None, headers=browser))[0] == 200
        world.clock.value += 60
        assert (await world.get("/api/health"))[0] == 200


async def test_a_session_does_not_hide_wrong_basic_credentials(caplog: pytest.LogCaptureFixture) -> None:
    """Or else whoever may look could guess the password of who may act."""
    caplog.set_level(logging.INFO, "sbproxy.admin.audit")
    async with admin_world() as world:
        browser = await world.log_in(VIEWER)
        said = [await world.get("/api/health", WRONG, headers=browser) for _ in range(PER_ADDRESS)]
        assert said == [(401, UNAUTHORIZED)] * PER_ADDRESS
        assert (await world.get("/api/health", WRONG, headers=browser))[0] == 429
        assert (await world.get("/api/health", ADMIN, headers=browser))[0] == 429
        world.clock.value += 60
        assert await world.get("/admin/session", WRONG, headers=browser) == (200, {"authenticated": False})
        assert (await world.get("/api/health", ADMIN, headers=browser))[0] == 200
    lines = [vars(record) for record in caplog.records if record.name == "sbproxy.admin.audit"]
    failed = [line for line in lines if (line["operator"], line["outcome"]) == ("admin", "login_failed")]
    assert len(failed) == PER_ADDRESS + 1


async def test_guesses_for_one_name_do_not_lock_another() -> None:
    async with admin_world() as world:
        for name in ("nobody", VIEWER[0]):
            assert [await guess(world, name) for _ in range(PER_ADDRESS + 1)] == [401] * PER_ADDRESS + [429]
        await world.log_in(CHIEF)
        assert (await world.get("/api/health", ADMIN))[0] == 200


async def test_all_of_loopback_is_one_address() -> None:
    async with admin_world() as world:
        statuses: Counter[int] = Counter()
        for last in range(10, 20):
            connector = aiohttp.TCPConnector(local_addr=(f"127.0.0.{last}", 0))
            headers = {"Authorization": aiohttp.encode_basic_auth(*WRONG)}
            async with aiohttp.ClientSession(connector=connector, headers=headers) as client:
                for _ in range(PER_ADDRESS):
                    async with client.get(world.server.make_url("/api/health")) as answer:
                        statuses[answer.status] += 1
        assert statuses == {401: PER_ADDRESS, 429: 9 * PER_ADDRESS}


async def test_parallel_guesses_cannot_outrun_the_count() -> None:
    async with admin_world() as world:
        statuses = Counter(await asyncio.gather(*(guess(world, CHIEF[0]) for _ in range(150))))
        assert statuses == {401: PER_ADDRESS, 429: 150 - PER_ADDRESS}


async def test_programs_that_sign_in_all_the_time_are_not_guessing() -> None:
    """An operator's program tries Basic and then logs in, for every command."""
    async with admin_world() as world:
        for _ in range(PER_ADDRESS + 2):
            assert (await world.get("/api/health", VIEWER))[0] == 401
            await world.log_in(VIEWER)
        for _ in range(PER_NAME + PER_ADDRESS):
            assert (await world.get("/api/health", ADMIN))[0] == 200


async def test_slow_hashes_do_not_pile_up() -> None:
    async with admin_world() as world:
        asked = MAX_CHECKS + 20
        statuses = Counter(await asyncio.gather(*(guess(world, f"made-up-{number}") for number in range(asked))))
        assert statuses[429] > 0
        assert statuses[401] + statuses[429] == asked
        await world.log_in(CHIEF)


async def test_how_long_a_refusal_takes_tells_nothing_about_the_name() -> None:
    operators = [
        OperatorConfig(username=VIEWER[0], password=SecretStr(VIEWER[1]), role="read_only"),
        OperatorConfig(username=CHIEF[0], password_hash=hash_password(CHIEF[1]), role="admin"),
    ]
    accounts = Accounts(admin_config(operators=operators))
    fastest = {}
    for name in (ADMIN[0], VIEWER[0], CHIEF[0], "nobody"):
        took = []
        for _ in range(4):
            started = time.perf_counter()
            assert await accounts.check_login(Credentials(name, "guess")) is None
            took.append(time.perf_counter() - started)
        fastest[name] = min(took)
    # One hash each; without one a refusal takes a hundredth of that.
    assert max(fastest.values()) < 3 * min(fastest.values()), fastest


def test_a_made_up_name_costs_as_much_as_the_costliest_account() -> None:
    cheap, costly = (PasswordHash(n, 8, 1, b"8 bytes!", b"16 bytes or more") for n in (1024, 2**15))
    assert unmatchable([cheap, costly, cheap]).n == 2**15
    assert unmatchable([cheap]).n == 1024
    assert unmatchable([]).n == PasswordHash.parse(hash_password("x")).n
