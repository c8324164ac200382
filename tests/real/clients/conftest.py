"""Keeps what clients made of the gateway, for docs/compatibility.md."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tools.engines.launch import KINDS, RunningEngine

RESULTS = Path("docs/compatibility/clients.json")

_CLIENTS = pytest.StashKey[dict[str, dict[str, Any]]]()


def note(
    config: pytest.Config,
    engine: RunningEngine,
    *,
    name: str,
    version: str,
    what: str,
    passed: int,
    failed: dict[str, str],
    more: str = "",
) -> None:
    """One cell of the table."""
    clients = config.stash.setdefault(_CLIENTS, {})
    entry = clients.setdefault(name, {"name": name, "version": version, "what": what, "engines": {}})
    result = "pass" if not failed else "partial" if passed else "fail"
    text = "; ".join(f"{check}: {why}" for check, why in failed.items()).replace("|", "/").replace("\n", " ")
    told = [f"{passed} of {passed + len(failed)}", more, f"not {text}" if failed else ""]
    entry["engines"][engine.kind] = {"result": result, "note": "; ".join(filter(None, told))}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keeps the table where a run names both engines and is asked to."""
    clients = session.config.stash.get(_CLIENTS, {})
    if clients and set(session.config.getoption("--real")) == set(KINDS) and os.environ.get("WEIR_RECORD_RESULTS"):
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        RESULTS.write_text(json.dumps({"date": date, "clients": list(clients.values())}, indent=1) + "\n")
