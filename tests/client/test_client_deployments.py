"""The client's replacement of the deployment map against the real admin application."""

from __future__ import annotations

import pytest

from sbproxy.admin.ports import DesiredMap
from sbproxy.client import AdminClient
from sbproxy.errors.client import DaemonRefused
from sbproxy.errors.modelhost import RevisionConflict
from support.admin_world import ADMIN, DIGEST, admin_world


async def test_a_map_is_sent_whole_with_its_revision() -> None:
    async with admin_world() as world, AdminClient(str(world.server.make_url("/")), *ADMIN) as client:
        with pytest.raises(DaemonRefused) as caught:
            await client.replace_deployments(None, {})
        assert (caught.value.status, caught.value.reason_code) == (403, "authority_read_only")

        world.host.state = DesiredMap("admin_managed", {}, None)
        done = await client.replace_deployments(None, {"new": {"model": "one", "cold_start": "reject"}})
        assert (done.revision, done.content_digest, done.plan.added) == (2, DIGEST, ["new"])
        (seen,) = world.host.replacements
        assert (seen.expected_revision, seen.deployments["new"].cold_start) == (None, "reject")

        world.host.failure = RevisionConflict(1, 4)
        with pytest.raises(DaemonRefused) as caught:
            await client.replace_deployments(1, {})
        assert (caught.value.status, caught.value.reason_code) == (409, "revision_conflict")
        assert "revision 4" in caught.value.message
