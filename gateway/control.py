"""Everything that is not the data path: model list, health, metrics and the state of the fleet, on FastAPI.

Its errors have the same shape as the proxy's. Nothing here is on the way of a streamed token.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from time import time_ns
from uuid import uuid4

import msgspec
from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.exceptions import HTTPException

from gateway.config import Config, RouteConfig
from gateway.fleet import Fleet
from gateway.headers import acceptable_request_id
from gateway.proxy import Proxy
from protocol.openai import ModelCard, error_body, models_body

_KINDS = {404: "not_found", 405: "method_not_allowed", 500: "internal", 503: "unavailable"}


class Control:
    """The endpoints of one gateway's control plane, and the FastAPI application that serves them."""

    def __init__(self, config: Config, fleet: Fleet, proxy: Proxy, registry: CollectorRegistry) -> None:
        self._routes = {route.model: route for route in config.routes}
        self._fleet = fleet
        self._proxy = proxy
        self._registry = registry
        self._started_s = time_ns() // 1_000_000_000

    def app(self, on_close: Callable[[], None]) -> FastAPI:
        """The application. Its lifespan keeps the fleet's checks running and ends with `on_close`."""

        @asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            async with asyncio.TaskGroup() as background:
                checks = background.create_task(self._fleet.run())
                yield
                checks.cancel()
            on_close()

        app = FastAPI(title="weir", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
        for method, path, endpoint in (
            ("GET", "/v1/models", self.models),
            ("GET", "/v1/models/{model:path}", self.model),
            ("GET", "/healthz", self.healthz),
            ("GET", "/readyz", self.readyz),
            # What clients of a single engine ask before they begin.
            ("GET", "/health", self.readyz),
            ("GET", "/metrics", self.metrics),
            ("GET", "/admin/endpoints", self.endpoints),
            ("POST", "/admin/endpoints/{name}/drain", self.drain),
            ("POST", "/admin/endpoints/{name}/resume", self.resume),
        ):
            app.add_api_route(path, endpoint, methods=[method])
        app.add_exception_handler(HTTPException, _refused)
        app.add_exception_handler(Exception, _failed)
        return app

    async def models(self) -> Response:
        return _json(models_body([self._card(route) for route in self._routes.values()]))

    async def model(self, model: str) -> Response:
        if model not in self._routes:
            known = ", ".join(self._routes)
            raise HTTPException(404, f"The model `{model}` is not served here; available models: {known}.")
        return _json(msgspec.json.encode(self._card(self._routes[model])))

    async def healthz(self) -> Response:
        """The process lives and its loop turns."""
        return _json(b'{"status":"ok"}')

    async def readyz(self) -> Response:
        """Requests are welcome: not shutting down, and some engine can answer."""
        if not self._proxy.ready:
            raise HTTPException(503, "This gateway is shutting down.")
        if not any(pool.available for pool in self._fleet.pools.values()):
            raise HTTPException(503, "No engine of any pool is healthy.")
        return _json(b'{"status":"ready"}')

    async def metrics(self) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

    async def endpoints(self) -> Response:
        """Every endpoint as the gateway sees it now."""
        return _json(msgspec.json.encode([asdict(endpoint) for endpoint in self._fleet.snapshot()]))

    async def drain(self, name: str) -> Response:
        """The endpoint finishes what it has and gets nothing new, until `resume`."""
        return self._set_draining(name, draining=True)

    async def resume(self, name: str) -> Response:
        """The endpoint gets requests again."""
        return self._set_draining(name, draining=False)

    def _set_draining(self, name: str, *, draining: bool) -> Response:
        endpoint = self._fleet.endpoint(name)
        if endpoint is None:
            known = ", ".join(found.name for found in self._fleet.snapshot())
            raise HTTPException(404, f"There is no endpoint `{name}`; endpoints: {known}.")
        endpoint.draining = draining
        self._fleet.refresh()
        snapshot = next(found for found in self._fleet.snapshot() if found.name == name)
        return _json(msgspec.json.encode(asdict(snapshot)))

    def _card(self, route: RouteConfig) -> ModelCard:
        """A served model as its engines describe it: the shortest context of all that may answer."""
        lengths = [
            length
            for pool, weight in route.split.items()
            if weight > 0
            for endpoint in self._fleet.pools[pool].endpoints
            for card in endpoint.models
            if card.get("id") == route.model and isinstance(length := card.get("max_model_len"), int)
        ]
        return ModelCard(
            id=route.model,
            created=self._started_s,
            owned_by="weir",
            max_model_len=min(lengths) if lengths else None,
        )


def _json(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(body, status_code=status, media_type="application/json", headers=headers)


async def _refused(request: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, HTTPException)
    status, message = refusal.status_code, str(refusal.detail)
    if status == 404 and message == "Not Found":
        message = f"No such path: {request.method} {request.url.path}."
    elif status == 405:
        message = f"{request.url.path} does not take {request.method}."
    return _error(request, status, message, refusal.headers or {})


async def _failed(request: Request, _: Exception) -> Response:
    return _error(request, 500, "The gateway failed on this request; its log has the reason.", {})


def _error(request: Request, status: int, message: str, fields: Mapping[str, str]) -> Response:
    given = request.headers.get("x-request-id", "")
    request_id = given if acceptable_request_id(given.encode("latin-1")) else uuid4().hex
    body = error_body(message, kind=_KINDS.get(status, "error"), code=status, request_id=request_id)
    return _json(body, status, {**fields, "x-request-id": request_id})
