"""The control plane over HTTP: models, health, metrics, the fleet, and errors in one shape."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.gateway.conftest import CHAT, RunningGateway, StartGateway
from tests.scripted_engine import ScriptedEngine, json_response, running, whole_stream

GONE = "http://127.0.0.1:1"


def lists(engine: ScriptedEngine, cards: bytes) -> None:
    """Makes the engine answer GET /v1/models with these cards, and be healthy."""
    engine._answer_get = lambda path: json_response(b'{"data":[%b]}' % cards)  # type: ignore[method-assign]


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(5):
        while not await condition():
            await asyncio.sleep(0.005)


async def until_lengths_are_known(gateway: RunningGateway) -> None:
    endpoints = [endpoint for pool in gateway.gateway.fleet.pools.values() for endpoint in pool.endpoints]

    async def known() -> bool:
        return all(endpoint.models for endpoint in endpoints)

    await until(known)


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error of a response, whose id is also in its headers."""
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code", "request_id"}
    assert error["code"] == response.status_code
    assert error["request_id"] == response.headers["x-request-id"]
    return error


async def test_models_are_those_of_the_routes_with_the_shortest_context_that_may_answer(
    start_gateway: StartGateway,
) -> None:
    async with running(whole_stream) as long, running(whole_stream) as short, running(whole_stream) as idle:
        lists(long, b'{"id":"other","max_model_len":16},{"id":"m","max_model_len":8192}')
        lists(short, b'{"id":"m","max_model_len":4096}')
        lists(idle, b'{"id":"m","max_model_len":32},{"id":"n"}')
        pools = {
            name: {"engine": "vllm", "endpoints": [{"url": engine.url}], "health": {"interval_s": 0.05}}
            for name, engine in (("long", long), ("short", short), ("idle", idle))
        }
        routes = [
            {"model": "m", "split": {"long": 90, "short": 10, "idle": 0}},
            {"model": "n", "split": {"idle": 1}},
        ]
        async with start_gateway([], pools=pools, routes=routes) as gateway:
            await until_lengths_are_known(gateway)
            found = (await gateway.client.get("/v1/models")).json()
            m = (await gateway.client.get("/v1/models/m")).json()
    assert found["object"] == "list"
    assert [(card["object"], card["id"], card["owned_by"]) for card in found["data"]] == [
        ("model", "m", "weir"),
        ("model", "n", "weir"),
    ]
    assert found["data"][0]["max_model_len"] == 4096
    assert "max_model_len" not in found["data"][1]
    assert m == found["data"][0]


async def test_a_model_whose_name_has_slashes_is_found(start_gateway: StartGateway) -> None:
    routes = [{"model": "meta/llama-3/8b", "split": {"p": 1}}]
    async with start_gateway([GONE], routes=routes) as gateway:
        response = await gateway.client.get("/v1/models/meta/llama-3/8b")
    assert (response.status_code, response.json()["id"]) == (200, "meta/llama-3/8b")


async def test_an_unknown_model_is_404_with_those_that_are_served(start_gateway: StartGateway) -> None:
    routes = [{"model": name, "split": {"p": 1}} for name in ("m", "n")]
    async with start_gateway([GONE], routes=routes) as gateway:
        error = error_of(await gateway.client.get("/v1/models/gpt-9"))
    assert (error["code"], error["type"]) == (404, "not_found")
    assert error["message"] == "The model `gpt-9` is not served here; available models: m, n."


async def test_ready_follows_the_health_of_the_engines(start_gateway: StartGateway) -> None:
    async with (
        running(whole_stream) as one,
        running(whole_stream) as two,
        start_gateway([one.url, two.url]) as gateway,
    ):

        async def ready() -> bool:
            return (await gateway.client.get("/readyz")).status_code == 200

        async def down(engine: int) -> bool:
            return not (await gateway.client.get("/admin/endpoints")).json()[engine]["healthy"]

        assert (await gateway.client.get("/readyz")).json() == {"status": "ready"}
        assert (await gateway.client.get("/health")).status_code == 200
        one.health = 500
        await until(lambda: down(0))
        assert await ready()
        two.health = 500
        await until(lambda: down(1))
        refused = await gateway.client.get("/readyz")
        error = error_of(refused)
        assert (error["code"], error["type"]) == (503, "unavailable")
        assert error["message"] == "No engine of any pool is healthy."
        assert (await gateway.client.get("/healthz")).json() == {"status": "ok"}
        one.health = 200
        await until(ready)


async def test_a_gateway_that_shuts_down_is_alive_but_not_ready(start_gateway: StartGateway) -> None:
    async with running(whole_stream) as engine, start_gateway([engine.url]) as gateway:
        assert (await gateway.client.get("/readyz")).status_code == 200
        gateway.gateway.proxy.ready = False
        error = error_of(await gateway.client.get("/readyz"))
        assert (error["code"], error["message"]) == (503, "This gateway is shutting down.")
        assert (await gateway.client.get("/healthz")).status_code == 200


async def test_metrics_are_prometheus_text_of_the_requests_the_fleet_and_the_process(
    start_gateway: StartGateway,
) -> None:
    async with running(whole_stream) as engine, start_gateway([engine.url]) as gateway:
        await gateway.client.post("/v1/chat/completions", json={**CHAT, "stream": True})
        await gateway.settled()
        response = await gateway.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    families = {family.name: family for family in text_string_to_metric_families(response.text)}
    [requests] = [sample for sample in families["weir_requests"].samples if sample.name == "weir_requests_total"]
    assert (requests.value, requests.labels["pool"], requests.labels["outcome"]) == (1, "p", "ok")
    assert families["weir_endpoint_up"].samples[0].value == 1
    assert families["process_open_fds"].samples[0].value > 0
    assert "python_info" in families


async def test_the_admin_api_shows_every_endpoint(start_gateway: StartGateway) -> None:
    async with running(whole_stream) as engine:
        pool = {"endpoints": [{"url": engine.url}, {"url": GONE, "name": "spare"}]}
        async with start_gateway([], pool=pool) as gateway:

            async def settled() -> bool:
                first, second = (await gateway.client.get("/admin/endpoints")).json()
                return bool(first["models"]) and not second["healthy"]

            await until(settled)
            response = await gateway.client.get("/admin/endpoints")
    first, second = response.json()
    assert response.headers["content-type"] == "application/json"
    assert (first["pool"], first["name"], first["url"], first["engine"]) == ("p", "p-0", engine.url, "vllm")
    assert (first["healthy"], first["in_flight"], first["last_failure"]) == (True, 0, None)
    assert [card["id"] for card in first["models"]] == ["m"]
    assert (second["name"], second["healthy"], second["models"]) == ("spare", False, [])
    assert second["last_failure"].startswith("/health: ")


@pytest.mark.parametrize(
    ("method", "path", "status", "kind", "message"),
    [
        ("GET", "/nope", 404, "not_found", "No such path: GET /nope."),
        ("DELETE", "/v1/models", 405, "method_not_allowed", "/v1/models does not take DELETE."),
        ("POST", "/metrics", 405, "method_not_allowed", "/metrics does not take POST."),
    ],
)
async def test_what_is_not_there_is_refused_in_the_shape_of_the_proxy(
    start_gateway: StartGateway, method: str, path: str, status: int, kind: str, message: str
) -> None:
    async with start_gateway([GONE]) as gateway:
        given = await gateway.client.request(method, path, headers={"x-request-id": "mine"})
        made = [error_of(await gateway.client.request(method, path))["request_id"] for _ in range(2)]
    error = error_of(given)
    assert (given.status_code, error["type"], error["message"]) == (status, kind, message)
    assert error["request_id"] == "mine"
    assert len({*made, "mine"}) == 3
    if status == 405:
        assert given.headers["allow"] == "GET"


async def test_a_fault_of_our_own_is_a_500_in_the_same_shape_and_its_trace_stays_in_the_log(
    start_gateway: StartGateway, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(whole_stream) as engine, start_gateway([engine.url]) as gateway:
        # A card that no engine can send, since it is no JSON: the admin API trips over it.
        gateway.gateway.fleet.pools["p"].endpoints[0].models = [{"id": object()}]
        with caplog.at_level(logging.ERROR):
            response = await gateway.client.get("/admin/endpoints", headers={"x-request-id": "mine"})
        assert (await gateway.client.get("/healthz")).status_code == 200
    error = error_of(response)
    assert (error["code"], error["type"], error["request_id"]) == (500, "internal", "mine")
    assert error["message"] == "The gateway failed on this request; its log has the reason."
    assert "Traceback" not in response.text
    assert "object" not in response.text
    assert "TypeError" in caplog.text
