"""``/admin/credentials``: upstream credentials, whose secrets go in and never come out (document 2)."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from sbproxy.admin.key_audit import Operation, key_audit
from sbproxy.admin.key_store_boundary import key_store_boundary
from sbproxy.admin.key_views import credential_view, with_propagation
from sbproxy.admin.keys import LONGEST_ID
from sbproxy.admin.ports import AdminDeps
from sbproxy.admin.replies import reply_json
from sbproxy.admin.typed_body import typed_body
from sbproxy.api.keys import CredentialBody, CredentialPatchBody
from sbproxy.errors.admin import InvalidBody
from sbproxy.errors.keys import KeyManagementOff
from sbproxy.keys.ports import CredentialChanged, CredentialControl, KeyAction

PREFIX = "/admin/credentials"


class CredentialRoutes:
    def __init__(self, deps: AdminDeps) -> None:
        self._keys = deps.keys

    def routes(self) -> list[web.RouteDef]:
        one = f"{PREFIX}/{{id}}"
        routes = [
            web.get(PREFIX, self.index),
            web.post(PREFIX, self.create),
            web.get(one, self.detail),
            web.patch(one, self.change),
            web.delete(one, self.delete),
            web.post(f"{one}/revoke", self.revoke),
            web.post(f"{one}/block", self.block),
            web.post(f"{one}/unblock", self.unblock),
        ]
        return [web.RouteDef(at.method, at.path, key_store_boundary(at.handler), at.kwargs) for at in routes]

    async def index(self, _request: web.Request) -> web.Response:
        records = await self._control().list_credentials()
        return reply_json({"credentials": [credential_view(record) for record in records]})

    async def detail(self, request: web.Request) -> web.Response:
        return reply_json({"credential": credential_view(await self._control().get_credential(_id(request)))})

    async def create(self, request: web.Request) -> web.Response:
        control, body = self._control(), await typed_body(request, CredentialBody)
        done = await control.create_credential(_said(body), vault_ref=body.vault_ref, secret=body.secret)
        return _answer(request, "create", done, 201)

    async def change(self, request: web.Request) -> web.Response:
        """A body without material leaves the secret as it is."""
        control, body = self._control(), await typed_body(request, CredentialPatchBody)
        done = await control.change_credential(_id(request), _said(body), vault_ref=body.vault_ref, secret=body.secret)
        return _answer(request, "update", done)

    async def delete(self, request: web.Request) -> web.Response:
        done = await self._control().delete_credential(_id(request))
        key_audit(request, "delete", "credential", credential_view(done.record), None)
        return reply_json(with_propagation({"id": done.record.id, "deleted": True}, done.propagation))

    async def revoke(self, request: web.Request) -> web.Response:
        return await self._lifecycle(request, "revoke")

    async def block(self, request: web.Request) -> web.Response:
        return await self._lifecycle(request, "block")

    async def unblock(self, request: web.Request) -> web.Response:
        return await self._lifecycle(request, "unblock")

    async def _lifecycle(self, request: web.Request, action: KeyAction) -> web.Response:
        """No expected revision, and a revoked credential may come back (document 2)."""
        return _answer(request, action, await self._control().act_on_credential(_id(request), action))

    def _control(self) -> CredentialControl:
        if self._keys is None:
            raise KeyManagementOff
        return self._keys.credentials


def _id(request: web.Request) -> str:
    return request.match_info["id"][:LONGEST_ID]


def _said(body: CredentialPatchBody) -> dict[str, Any]:
    """Only what the caller wrote, in the record's words."""
    said = body.model_dump(exclude_unset=True, exclude={"vault_ref", "secret"})
    if "tenant" in said:
        said["tenant_id"] = said.pop("tenant")
    if said.get("header", "").lower() in _NEVER:
        raise InvalidBody(f"header: {said['header']} belongs to the connection, not to a credential")
    return said


_NEVER = frozenset({"host", "connection", "content-length", "content-type", "transfer-encoding", "te", "upgrade"})


def _answer(request: web.Request, op: Operation, done: CredentialChanged, status: int = 200) -> web.Response:
    after = credential_view(done.record)
    before = None if done.before is None else credential_view(done.before)
    key_audit(request, op, "credential", before, after)
    return reply_json(with_propagation({"credential": after}, done.propagation), status)
