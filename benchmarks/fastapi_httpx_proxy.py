"""A streaming proxy as a competent engineer writes it with FastAPI and httpx, for comparison only.

One shared client, keep-alive to the engine, raw bytes through StreamingResponse, no per-chunk work of its own,
uvicorn on uvloop and httptools without an access log. Run: `python -m benchmarks.fastapi_httpx_proxy PORT ENGINE_URL`.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import uvicorn
from fastapi import FastAPI, Request
from starlette.background import BackgroundTask
from starlette.responses import StreamingResponse

_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade", "host"}
)


def make_app(engine_url: str) -> FastAPI:
    """Relays every POST below /v1/ to `engine_url`; anything that goes wrong upstream becomes a plain 500."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=512)
        timeout = httpx.Timeout(300.0, connect=2.0, pool=None)
        async with httpx.AsyncClient(base_url=engine_url, limits=limits, timeout=timeout) as client:
            app.state.client = client
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/v1/{path:path}")
    async def relay(path: str, request: Request) -> StreamingResponse:
        client: httpx.AsyncClient = request.app.state.client
        headers = [(name, value) for name, value in request.headers.items() if name not in _HOP_BY_HOP]
        upstream_request = client.build_request(
            "POST", f"/v1/{path}", params=request.query_params, headers=headers, content=await request.body()
        )
        upstream = await client.send(upstream_request, stream=True)
        return StreamingResponse(
            upstream.aiter_raw(),
            status_code=upstream.status_code,
            headers={name: value for name, value in upstream.headers.items() if name not in _HOP_BY_HOP},
            background=BackgroundTask(upstream.aclose),
        )

    return app


if __name__ == "__main__":
    port, url = sys.argv[1:]
    uvicorn.run(
        make_app(url),
        host="127.0.0.1",
        port=int(port),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
        backlog=4096,
    )
