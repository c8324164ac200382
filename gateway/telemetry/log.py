"""The process log: one line per event on stderr, never a prompt, a completion or a key."""

from __future__ import annotations

import logging
import sys


def configure(level: str) -> None:
    """Sets up the root logger; `level` is a name of the logging module, in any case."""
    logging.basicConfig(
        level=level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        force=True,
    )
    # httpx reports every health check at INFO.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    # uvicorn's own start and stop lines repeat ours.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
