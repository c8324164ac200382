"""The composition root: builds a gateway from its configuration. The only module that knows every class."""

from __future__ import annotations

import gc
import logging
import resource
import socket
from pathlib import Path

import uvloop
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector

from gateway.asgi import WeirAsgi
from gateway.config import Config
from gateway.control import Control
from gateway.discovery import static
from gateway.errors import ConfigError
from gateway.fleet import Fleet
from gateway.proxy import Proxy
from gateway.server import WeirServer, make_server
from gateway.telemetry import log
from gateway.telemetry.metrics import GatewayMetrics
from gateway.telemetry.records import RecordWriter
from gateway.upstream.client import UpstreamClient

_log = logging.getLogger("weir")


class Gateway:
    """One gateway process: the parts that tests and servers need to reach."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.fleet = Fleet(config, static.addresses)
        self.upstream = UpstreamClient()
        self.records = RecordWriter(Path(config.records.path) if config.records.path else None)
        self.metrics = GatewayMetrics(
            endpoints=self.fleet.snapshot,
            in_flight=lambda: len(self.proxy.live),
            records_dropped=lambda: self.records.dropped,
        )
        self.proxy = Proxy(config, self.fleet, self.upstream, self.metrics, self.records)
        registry = CollectorRegistry()
        self.metrics.register(registry)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self.control: FastAPI = Control(config, self.fleet, self.proxy, registry).app(on_close=self.close)

    def server(self) -> WeirServer:
        """This gateway on uvicorn with the data path below ASGI."""
        return make_server(self.control, self.config, self.proxy)

    def asgi(self) -> WeirAsgi:
        """This gateway as an ASGI application for any server."""
        return WeirAsgi(self.proxy, self.control)

    def close(self) -> None:
        """Lets go of idle connections and writes out the last records."""
        self.upstream.close()
        self.records.close()


def serve(config: Config, log_level: str) -> int:
    """Serves until SIGTERM or SIGINT and a drain; the exit status. Raises ConfigError when it cannot start."""
    log.configure(log_level)
    _raise_file_limit()
    with bind(config) as listener:
        try:
            gateway = Gateway(config)
        except OSError as error:
            raise ConfigError([f"records.path: {config.records.path!r}: cannot be opened: {error.strerror}"]) from error
        _settle_memory()
        host, port = listener.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        server = gateway.server()
        server.on_started = lambda: print(f"weir listening on {url}", flush=True)  # noqa: T201
        uvloop.run(server.serve(sockets=[listener]))
    return 0


def bind(config: Config) -> socket.socket:
    """The listening socket. Raises ConfigError naming the setting when the address cannot be had."""
    host, port = config.listen.host, config.listen.port
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family, backlog=4096)
    except OSError as error:
        raise ConfigError([f"listen: cannot listen on {host}:{port}: {error.strerror or error}"]) from error


def _settle_memory() -> None:
    """Keeps the cycle collector out of the way: requests leave no cycles, so their memory goes by reference counts.

    What start-up made lives for ever and need not be looked at again; and with Python's default of 700, the objects
    of a few dozen requests in flight would start a collection every dozen requests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def _raise_file_limit() -> None:
    """Two sockets per stream: the usual soft limit of 1024 would end at 500 clients."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        _log.info("file descriptor limit raised from %d to %d", soft, hard)
