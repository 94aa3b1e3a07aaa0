"""HTTP/1.1 on the wire: the server that runs a handler for each request, and the pool of upstream connections."""

from sbproxy.gateway.http.limits import ServerLimits
from sbproxy.gateway.http.pool import UpstreamPool
from sbproxy.gateway.http.server import HttpServer

__all__ = ["HttpServer", "ServerLimits", "UpstreamPool"]
