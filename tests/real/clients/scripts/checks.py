"""Runs the checks of one client and prints a JSON line for each. For scripts in environments of their own."""

import json
from collections.abc import Callable, Sequence

MESSAGES = [{"role": "user", "content": "Tell me of rivers."}]
TOKENS = 12


def run(checks: Sequence[Callable[[], object]]) -> None:
    """Each check is a function; what it raises is its failure, what it returns a note."""
    for check in checks:
        try:
            note = check()
            line = {"check": check.__name__, "ok": True, "note": str(note or "")}
        except Exception as error:  # noqa: BLE001 - whatever a client makes of an answer is the result
            line = {"check": check.__name__, "ok": False, "note": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(line), flush=True)


def refused(call: Callable[[], object], kind: type[Exception], said: str) -> None:
    """Raises unless `call` fails as the client's own `kind` of error, with `said` in its text."""
    try:
        call()
    except kind as error:
        if said in str(error):
            return
        raise
    raise AssertionError("no error")
