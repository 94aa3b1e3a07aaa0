"""A pass-through on ``sbproxy.gateway.http`` alone: the lower bound of what the gateway can cost.

Run as ``python benchmarks/bare_proxy.py PORT UPSTREAM_PORT``; ``benchmarks/gateway.py`` does.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop

from sbproxy.gateway.exchange import Exchange, Upstream
from sbproxy.gateway.http import HttpServer, UpstreamPool

_JSON = ((b"content-type", b"application/json"),)
_SSE = ((b"content-type", b"text/event-stream"),)


async def main(port: int, upstream_port: int) -> None:
    pool, upstream = UpstreamPool(), Upstream("127.0.0.1", upstream_port)

    async def relay(exchange: Exchange) -> None:
        request = exchange.request
        reply = await pool.send(upstream, "POST", request.path, _JSON, request.body, timeout_s=60)
        try:
            if reply.header(b"content-type") != b"text/event-stream":
                exchange.respond(reply.status, _JSON, await reply.read(1 << 20))
                return
            exchange.start(reply.status, _SSE)

            def take(piece: bytes) -> bool:
                exchange.write(piece)
                return not exchange.paused

            while await reply.pour(take):
                await exchange.drain()
            exchange.finish()
        finally:
            reply.close()

    await HttpServer(relay).start("127.0.0.1", port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2])))
