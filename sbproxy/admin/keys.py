"""``/admin/keys``: mint, read, change, lifecycle, usage and the policy preview (document 2; contracts section 7)."""

from __future__ import annotations

from typing import Any, cast

from aiohttp import web

from sbproxy.admin.key_audit import Operation, key_audit
from sbproxy.admin.key_store_boundary import key_store_boundary
from sbproxy.admin.key_views import key_view, with_propagation
from sbproxy.admin.ports import AdminDeps
from sbproxy.admin.replies import refuse, reply_json
from sbproxy.admin.typed_body import typed_body
from sbproxy.api.envelope import ApiRequest
from sbproxy.api.keys import (
    MAX_PREVIEW_BODY,
    EvictBody,
    KeyPatchBody,
    KeyPolicyBody,
    LifecycleBody,
    PreviewBody,
    RotateBody,
)
from sbproxy.errors.admin import InvalidBody
from sbproxy.errors.governance import GovernanceError
from sbproxy.errors.keys import KeyManagementOff
from sbproxy.keys.core.policy import Ask, Principal
from sbproxy.keys.core.policy_fields import policy_schema
from sbproxy.keys.core.preview import Sample, UsageSample
from sbproxy.keys.core.record import DEFAULT_TENANT
from sbproxy.keys.core.times import parse_rfc3339, rfc3339
from sbproxy.keys.ports import KeyAction, KeyAdministration, KeyChanged, KeyMinted

PREFIX = "/admin/keys"
LONGEST_ID = 256


class KeyRoutes:
    def __init__(self, deps: AdminDeps) -> None:
        self._deps = deps

    def routes(self) -> list[web.RouteDef]:
        one = f"{PREFIX}/{{id}}"
        routes = [
            web.get(PREFIX, self.index),
            web.post(PREFIX, self.mint),
            # Before the route of one key, which would take it for an id.
            web.get(f"{PREFIX}/policy-schema", self.schema),
            web.get(one, self.detail),
            web.patch(one, self.change),
            web.delete(one, self.delete),
            web.get(f"{one}/usage", self.usage),
            web.post(f"{one}/effective-policy/preview", self.preview),
            web.post(f"{one}/revoke", self.revoke),
            web.post(f"{one}/block", self.block),
            web.post(f"{one}/unblock", self.unblock),
            web.post(f"{one}/rotate", self.rotate),
            web.post("/admin/cache/key-policy/evict", self.evict),
        ]
        return [web.RouteDef(at.method, at.path, key_store_boundary(at.handler), at.kwargs) for at in routes]

    async def index(self, _request: web.Request) -> web.Response:
        records, now = await self._plane().keys.list_keys(), self._deps.now()
        return reply_json({"keys": [key_view(record, now) for record in records]})

    async def schema(self, _request: web.Request) -> web.Response:
        """Served even while key management is off."""
        return reply_json(policy_schema())

    async def detail(self, request: web.Request) -> web.Response:
        record = await self._plane().keys.get_key(_id(request))
        return reply_json({"key": key_view(record, self._deps.now())})

    async def mint(self, request: web.Request) -> web.Response:
        """201 with the token, which no other answer ever holds again."""
        keys = self._plane().keys
        done = await keys.mint(_said(await typed_body(request, KeyPolicyBody, optional=True)))
        return reply_json(self._answer(request, "create", done, token=done.token), 201)

    async def change(self, request: web.Request) -> web.Response:
        keys, body = self._plane().keys, await typed_body(request, KeyPatchBody)
        said = _said(body)
        done = await keys.change(_id(request), said.pop("expected_revision"), said)
        return reply_json(self._answer(request, "update", done))

    async def delete(self, request: web.Request) -> web.Response:
        done = await self._plane().keys.delete_key(_id(request))
        key_audit(request, "delete", "key", key_view(done.record, self._deps.now()), None)
        body = {"key_id": done.record.key_id, "deleted": True}
        return reply_json(with_propagation(body, done.propagation))

    async def revoke(self, request: web.Request) -> web.Response:
        return await self._lifecycle(request, "revoke")

    async def block(self, request: web.Request) -> web.Response:
        return await self._lifecycle(request, "block")

    async def unblock(self, request: web.Request) -> web.Response:
        return await self._lifecycle(request, "unblock")

    async def rotate(self, request: web.Request) -> web.Response:
        keys, body = self._plane().keys, await typed_body(request, RotateBody, optional=True)
        done: KeyMinted = await keys.rotate(_id(request), body.expected_revision, body.grace_secs)
        grace = rfc3339(done.grace_expires_at)
        return reply_json(self._answer(request, "rotate", done, token=done.token, grace_expires_at=grace))

    async def usage(self, request: web.Request) -> web.Response:
        plane = self._plane()
        record = await plane.keys.get_key(_id(request))
        if plane.usage is None:
            return refuse(503, "governance backend unavailable", code="governance_unavailable")
        try:
            return reply_json({"usage": dict(await plane.usage.snapshot(record))})
        except GovernanceError as error:
            return refuse(503, "governance backend unavailable", code=error.code)

    async def preview(self, request: web.Request) -> web.Response:
        """Reads only, but it is a POST: the gate asks for the admin role."""
        keys = self._plane().keys
        body = await typed_body(request, PreviewBody, optional=True, limit=MAX_PREVIEW_BODY)
        return reply_json(await keys.preview(_id(request), _sample(body), _moment(body.at)))

    async def evict(self, request: web.Request) -> web.Response:
        plane = self._deps.keys
        if plane is None:
            return refuse(409, "dynamic key plane not enabled", code=KeyManagementOff.code)
        body = await typed_body(request, EvictBody, optional=True)
        return reply_json(with_propagation({"evicted": body.id or "all"}, await plane.keys.evict(body.id)))

    async def _lifecycle(self, request: web.Request, action: KeyAction) -> web.Response:
        keys, body = self._plane().keys, await typed_body(request, LifecycleBody, optional=True)
        done = await keys.act(_id(request), action, body.expected_revision)
        return reply_json(self._answer(request, action, done))

    def _plane(self) -> KeyAdministration:
        plane = self._deps.keys
        if plane is None:
            raise KeyManagementOff
        return plane

    def _answer(self, request: web.Request, op: Operation, done: KeyChanged, **first: Any) -> dict[str, Any]:
        now = self._deps.now()
        after = key_view(done.record, now)
        key_audit(request, op, "key", None if done.before is None else key_view(done.before, now), after)
        return with_propagation({**first, "key": after}, done.propagation)


def _id(request: web.Request) -> str:
    return request.match_info["id"][:LONGEST_ID]


def _said(body: ApiRequest) -> dict[str, Any]:
    """Only what the caller wrote."""
    said = body.model_dump(exclude_unset=True)
    if "principal_selectors" in said:
        selectors = cast("KeyPolicyBody", body).principal_selectors
        said["principal_selectors"] = [selector.model_dump(exclude_unset=True) for selector in selectors]
    return said


def _sample(body: PreviewBody) -> Sample:
    principal, usage = body.principal, body.usage
    ask = Ask(
        model=body.model,
        provider=body.provider,
        tools=None if body.tools is None else tuple(body.tools),
        principal=None
        if principal is None
        else Principal(
            principal.virtual_key, principal.team, principal.project, principal.user,
            tuple(principal.roles), principal.claims,
        ),
        origin_tenant_id=body.origin_tenant_id or DEFAULT_TENANT,
        active_pii_rules=None if body.active_pii_rules is None else tuple(body.active_pii_rules),
    )  # fmt: skip
    return Sample(
        ask,
        body.prompt_injection_detected,
        body.estimated_tokens,
        body.estimated_micro_usd,
        None if usage is None else UsageSample(**usage.model_dump()),
    )


def _moment(text: str | None) -> float | None:
    try:
        return None if text is None else parse_rfc3339(text)
    except ValueError as error:
        raise InvalidBody(f"at: {error}") from None
