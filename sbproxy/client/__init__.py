"""Typed asynchronous client of the admin API. Shares with the daemon only the messages of sbproxy.api."""

from sbproxy.client.admin_client import AdminClient
from sbproxy.client.core.feed import JobUpdate, RequestSeen, StreamGap

__all__ = ["AdminClient", "JobUpdate", "RequestSeen", "StreamGap"]
