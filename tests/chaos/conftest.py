"""The gateway of `tests/gateway`, and a scorecard that is printed when the failover scenarios have run."""

from __future__ import annotations

import pytest

from tests.gateway.conftest import start_gateway

__all__ = ["start_gateway"]

_SCORES = pytest.StashKey[list[str]]()


@pytest.fixture
def scorecard(request: pytest.FixtureRequest) -> list[str]:
    """Lines to print at the end of the run."""
    return request.config.stash.setdefault(_SCORES, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = terminalreporter.config.stash.get(_SCORES, [])
    if lines:
        terminalreporter.section("sixteen failover scenarios")
        for line in sorted(lines):
            terminalreporter.write_line(line)
