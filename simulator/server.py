"""Serves one stand-in engine over HTTP: a raw ASGI application on uvicorn, and the life of its process.

Start: listen, say where on stdout, step. SIGTERM: drain as the kind does (the port stays open; vLLM then
refuses new requests, SGLang is unhealthy but takes them), and leave when the last answer is out or time is
up. What happens on a connection is in `generate` and `control`.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable
from types import FrameType

import uvicorn
import uvloop

from simulator import control, generate
from simulator.answer import compact
from simulator.deployment import Deployment, build
from simulator.exchange import ClientGone, Exchange, Message, Receive, Send
from simulator.options import ServerOptions

Handler = Callable[[Deployment, Exchange], Awaitable[None]]

_HANDLERS: dict[str, Handler] = {
    "chat": generate.chat,
    "completions": generate.completions,
    "models": control.models,
    "health": control.health,
    "health_generate": control.health_generate,
    "ready": control.ready,
    "version": control.version,
    "load": control.load,
    "loads": control.loads,
    "tokenize": control.tokenize,
    "metrics": control.metrics,
    "abort_requests": control.abort_requests,
    "abort_request": control.abort_request,
    "reset_prefix_cache": control.reset_prefix_cache,
    "flush_cache": control.flush_cache,
    "server_info": control.server_info,
    "model_info": control.model_info,
}


class Application:
    """The ASGI application: finds the handler of a path and method."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._routes = {
            path: {method: _HANDLERS[name] for method, name in methods.items()}
            for path, methods in deployment.wire.ROUTES.items()
        }

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        methods = self._routes.get(exchange.path)
        if methods is None:
            await exchange.reply(404, compact({"detail": "Not Found"}))
            return
        handler = methods.get(exchange.method)
        if handler is None:
            allow = (b"allow", ", ".join(methods).encode())
            await exchange.reply(405, compact({"detail": "Method Not Allowed"}), b"application/json", allow)
            return
        try:
            await handler(self._deployment, exchange)
        except ClientGone:
            return


class _Server(uvicorn.Server):
    """uvicorn, except that the first SIGTERM or SIGINT drains before it stops listening; a second one stops at once."""

    def __init__(self, config: uvicorn.Config, deployment: Deployment, greeting: str) -> None:
        super().__init__(config)
        self._deployment = deployment
        self._greeting = greeting
        self._loop = asyncio.get_running_loop()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        sys.stdout.write(self._greeting)
        sys.stdout.flush()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self._deployment.told_to_stop.is_set():
            self._loop.call_soon_threadsafe(self._deployment.told_to_stop.set)
        else:
            super().handle_exit(sig, frame)


def serve(options: ServerOptions) -> int:
    """Run an engine until it is told to stop; returns the process's exit status.

    Prints `listening on http://host:port (kind, profile, model)` on stdout once it accepts connections.
    Raises what `simulator.deployment.build` raises, and OSError when the address cannot be taken.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(options))
    return 0


async def _serve(options: ServerOptions) -> None:
    deployment = build(options)
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    with socket.create_server((options.host, options.port), family=family, backlog=2048) as listener:
        config = uvicorn.Config(
            Application(deployment),
            loop="none",
            http="httptools",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_level="warning",
            access_log=False,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=1,
            backlog=2048,
        )
        server = _Server(config, deployment, _greeting(deployment, listener))
        background = [asyncio.create_task(deployment.steps.run()), asyncio.create_task(_drain(deployment, server))]
        try:
            await server.serve(sockets=[listener])
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            if deployment.recorder:
                deployment.recorder.close()


def _greeting(deployment: Deployment, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    options = deployment.options
    return f"listening on http://{shown}:{port} ({options.kind}, {options.profile}, {deployment.model})\n"


async def _drain(deployment: Deployment, server: uvicorn.Server) -> None:
    """Once draining, let requests finish for the time allowed, then cut the rest and stop."""
    await deployment.told_to_stop.wait()
    try:
        async with asyncio.timeout(deployment.options.shutdown_timeout_s):
            await deployment.quiet.wait()
    except TimeoutError:
        deployment.steps.abort_matching(lambda request_id: True)
    server.should_exit = True
