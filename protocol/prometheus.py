"""The Prometheus text format 0.0.4, and what engines emit of OpenMetrics: text in, samples out.

Hides escapes, number spellings, timestamps and exemplars (both dropped). It never interprets a name: `# TYPE`
is not read, so a counter is called what the engine calls it. (`prometheus_client.parser` appends `_total` to
counters without it, names no line in its errors, and takes 17 ms for one SGLang scrape, which would hold up
every stream of the event loop that scrapes.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One line: a series and its value."""

    name: str
    labels: dict[str, str]
    value: float


_B = r"[ \t]"
_LABEL_NAME = r"[a-zA-Z_][a-zA-Z0-9_]*"
_LABEL_VALUE = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_PAIR = rf"{_LABEL_NAME}{_B}*={_B}*{_LABEL_VALUE}"
_LABELS = rf"\{{{_B}*(?:{_PAIR}{_B}*(?:,{_B}*{_PAIR}{_B}*)*(?:,{_B}*)?)?\}}"
_NUMBER = r"[+-]?(?:[0-9.]+(?:[eE][+-]?[0-9]+)?|[iI]nf|[nN]a[nN])"
_TIMED_NUMBER = rf"{_NUMBER}(?:{_B}+{_NUMBER})?"

_sample = re.compile(
    rf"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:{_B}*({_LABELS}){_B}*|{_B}+)({_NUMBER})(?:{_B}+{_NUMBER})?"
    rf"(?:{_B}+#{_B}+{_LABELS}{_B}*{_TIMED_NUMBER})?"
)
_label = re.compile(rf"({_LABEL_NAME}){_B}*={_B}*({_LABEL_VALUE})")
_escape = re.compile(r'\\([\\"n])')


def parse(text: str) -> list[Sample]:
    """All samples, in order. Raises ValueError naming the first malformed line."""
    samples = []
    # Not splitlines(): a label value may hold other characters that Unicode counts as line ends.
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip(" \t\r")
        if line and line[0] != "#":
            try:
                samples.append(_parse_sample(line))
            except ValueError as error:
                raise ValueError(f"line {number}: {error}: {line[:200]!r}") from None
    return samples


def _parse_sample(line: str) -> Sample:
    match = _sample.fullmatch(line)
    if match is None:
        raise ValueError("not a Prometheus sample")
    name, block, value = match.groups()
    return Sample(name=name, labels=_parse_labels(block) if block else {}, value=float(value))


def _parse_labels(block: str) -> dict[str, str]:
    pairs: list[tuple[str, str]] = _label.findall(block)
    labels = {name: quoted[1:-1] for name, quoted in pairs}
    if len(labels) != len(pairs):
        raise ValueError("the same label twice")
    if "\\" in block:
        return {name: _escape.sub(_unescape, value) for name, value in labels.items()}
    return labels


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
