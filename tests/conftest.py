"""Every asynchronous test runs on uvloop, as the programs do. Real engines take part where a run names them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import uvloop

from tools.engines.launch import KINDS


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--real", action="append", default=[], choices=KINDS, help="a real engine that this run may start (repeatable)"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Tests of real engines only where there is one."""
    real = Path(__file__).parent / "real"
    return True if collection_path == real and not config.getoption("--real") else None


@pytest.fixture(scope="session")
def real_kinds(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Real engines that this run may start."""
    return tuple(dict.fromkeys(request.config.getoption("--real")))


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}
