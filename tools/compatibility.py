"""Renders the tables of docs/compatibility.md from what test runs against real engines wrote down.

`python -m tools.compatibility` rewrites the page between its markers; a test compares the two, so neither can be
edited alone. Measures and judges nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

PAGE = Path("docs/compatibility.md")
DATA = Path("docs/compatibility")


class Contract(msgspec.Struct, forbid_unknown_fields=True):
    """`contract.json`: what each subject did, by item; `same` or how it differs."""

    date: str
    rows: dict[str, dict[str, str]]


class Verdict(msgspec.Struct, forbid_unknown_fields=True):
    result: str
    """`pass`, `partial`, `fail` or `skip`."""
    note: str = ""


class Client(msgspec.Struct, forbid_unknown_fields=True):
    """One unmodified client; verdicts by kind of engine."""

    name: str
    version: str
    what: str
    engines: dict[str, Verdict]


class Clients(msgspec.Struct, forbid_unknown_fields=True):
    date: str
    clients: list[Client]


def contract_table(data: Contract) -> list[str]:
    """A row for each item, a column for each subject; a mark for what is the same, a note below for what is not."""
    subjects = list(dict.fromkeys(subject for row in data.rows.values() for subject in row))
    reasons = list(dict.fromkeys(cell for row in data.rows.values() for cell in row.values() if cell != "same"))

    def cell(row: dict[str, str], subject: str) -> str:
        result = row.get(subject)
        return "–" if result is None else "✓" if result == "same" else f"differs ({reasons.index(result) + 1})"

    table = _table(["", *subjects], [[name, *(cell(row, one) for one in subjects)] for name, row in data.rows.items()])
    notes = [f"{number}. {reason}." for number, reason in enumerate(reasons, start=1)]
    return [f"As of {data.date}.", "", *table, "", *notes]


def clients_table(data: Clients) -> list[str]:
    """A row for each client, a column for each engine."""
    kinds = list(dict.fromkeys(kind for client in data.clients for kind in client.engines))
    rows = [
        [f"{client.name} {client.version}", client.what, *(_verdict(client.engines.get(kind)) for kind in kinds)]
        for client in data.clients
    ]
    return [f"As of {data.date}.", "", *_table(["client", "what it does", *kinds], rows)]


def _verdict(verdict: Verdict | None) -> str:
    if verdict is None:
        return "–"
    return f"{verdict.result}: {verdict.note}" if verdict.note else verdict.result


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]


def _lines(name: str) -> list[str]:
    content = (DATA / f"{name}.json").read_bytes()
    return _RENDERERS[name](content)


_RENDERERS: dict[str, Callable[[bytes], list[str]]] = {
    "contract": lambda content: contract_table(msgspec.json.decode(content, type=Contract)),
    "clients": lambda content: clients_table(msgspec.json.decode(content, type=Clients)),
}


def render(page: str) -> str:
    """The page with every table between its markers, `<!-- NAME -->` and `<!-- /NAME -->`, made anew.

    Raises ValueError for a page without one of them.
    """
    for name in _RENDERERS:
        before, start, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->\n")
        if not (start and end):
            raise ValueError(f"{PAGE}: no <!-- {name} --> … <!-- /{name} -->: put both where the table belongs")
        page = before + start + "\n" + "\n".join(_lines(name)) + "\n\n" + end + after
    return page


def main() -> int:
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
