"""One suite, four subjects: vLLM and SGLang where a run names them, and always what stands in for each.

`--capture` writes down what the real engines answer, raw; that is what every subject is compared with.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.contract.probes import CONTEXT_TOKENS
from tests.simulator.conftest import started
from tools.engines.launch import VERSIONS, running

HERE = Path(__file__).parent
CAPTURES = HERE / "captures"
RESULTS = Path("docs/compatibility/contract.json")

STAND_IN = ("--profile", "h100_llama-3-8b")


@dataclass(kw_only=True)
class Subject:
    """An engine under test."""

    kind: str
    real: bool
    http: httpx.Client
    results: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.kind} {VERSIONS[self.kind]}" if self.real else f"{self.kind} stand-in"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "subject" in metafunc.fixturenames:
        real = metafunc.config.getoption("--real")
        names = [f"{kind}-stand-in" for kind in VERSIONS] + [f"{kind}-real" for kind in real]
        metafunc.parametrize("subject", names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    kind, _, nature = request.param.partition("-")
    if nature == "real":
        environment = {"vllm": {"VLLM_SERVER_DEV_MODE": "1"}, "sglang": {}}[kind]
        with (
            running(kind, env=environment) as engine,
            httpx.Client(base_url=engine.url, timeout=120, trust_env=False) as client,
        ):
            yield Subject(kind=kind, real=True, http=client)
    else:
        with started(kind, *STAND_IN, "--max-model-len", str(CONTEXT_TOKENS)) as stand_in:
            yield Subject(kind=kind, real=False, http=stand_in.http)


_RESULTS = pytest.StashKey[dict[str, dict[str, str]]]()


def note(config: pytest.Config, row: str, subject: Subject, result: str) -> None:
    """One cell of the table of docs/compatibility.md."""
    config.stash.setdefault(_RESULTS, {}).setdefault(row, {})[subject.name] = result


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keeps the table where a run names both engines and is asked to."""
    rows = session.config.stash.get(_RESULTS, {})
    if rows and set(session.config.getoption("--real")) == set(VERSIONS) and os.environ.get("WEIR_RECORD_RESULTS"):
        RESULTS.parent.mkdir(exist_ok=True)
        content: dict[str, Any] = {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), "rows": rows}
        RESULTS.write_text(json.dumps(content, indent=1) + "\n")
