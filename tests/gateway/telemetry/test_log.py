"""The process log: our lines once, on stderr, and not what libraries say of every health check."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import pytest

from gateway.telemetry.log import configure


@pytest.fixture(autouse=True)
def _own_root_logger(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    names = ("root", "httpx", "uvicorn")
    before = {name: logging.getLogger(name).level for name in names}
    root = logging.getLogger()
    level = root.level
    monkeypatch.setattr(root, "handlers", [])
    # Another server in this test process may have brought uvicorn's own log configuration along.
    for name in ("uvicorn", "uvicorn.error"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])
    yield
    root.setLevel(level)
    for name in names:
        logging.getLogger(name).setLevel(before[name])


def test_one_line_per_event_with_time_level_and_place(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info")
    configure("info")
    logging.getLogger("weir.fleet").warning("endpoint %s is unhealthy", "p-0")
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} WARNING weir\.fleet: endpoint p-0 is unhealthy\n", err)


@pytest.mark.parametrize(("level", "told"), [("debug", "dDiw"), ("INFO", "iw"), ("warning", "w"), ("error", "")])
def test_the_level_decides_what_is_told(level: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure(level)
    logging.getLogger("weir").debug("d")
    logging.getLogger("weir.records").debug("D")
    logging.getLogger("weir").info("i")
    logging.getLogger("weir").warning("w")
    assert "".join(line[-1] for line in capsys.readouterr().err.splitlines()) == told


@pytest.mark.parametrize("library", ["httpx", "uvicorn", "uvicorn.error"])
def test_libraries_tell_only_what_is_wrong(library: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure("debug")
    logging.getLogger(library).info("GET /health 200")
    assert capsys.readouterr().err == ""
    logging.getLogger(library).warning("odd")
    assert capsys.readouterr().err.endswith(f"WARNING {library}: odd\n")
