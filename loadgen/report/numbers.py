"""Numbers as people read them: units, three significant digits, thousands separators.

Only formats; a value that is missing reads "–".
"""

from loadgen.analyze.stats import Quantile
from loadgen.analyze.summary import Summary

MISSING = "–"


def duration(seconds: float | None) -> str:
    """Seconds in the unit that suits them: 870 µs, 12.3 ms, 1.24 s, 1,240 s."""
    if seconds is None:
        return MISSING
    size = abs(seconds)
    if size >= 0.9995:
        return f"{number(seconds)} s"
    return f"{number(seconds * 1e3)} ms" if size >= 0.0009995 else f"{number(seconds * 1e6)} µs"


def number(value: float | None) -> str:
    """Three significant digits, all digits of the whole part, thousands separators: 0.0123, 4.56, 1,234."""
    if value is None:
        return MISSING
    size = abs(value)
    if size >= 99.95 or value == 0:
        return f"{value:,.0f}"
    decimals = 1 if size >= 9.995 else 2 if size >= 0.9995 else 3 if size >= 0.09995 else 4
    return f"{value:.{decimals}f}"


def percent(share: float | None) -> str:
    """A share (0–1) as a percentage with two decimals; 0 and 1 without."""
    if share is None:
        return MISSING
    return f"{share:.0%}" if share in (0, 1) else f"{share:.2%}"


def quantile(value: Quantile) -> str:
    """A percentile as a duration, or the missing mark when it was refused."""
    return duration(value.value)


def interval(value: Quantile) -> str:
    """The bounds of a percentile, such as "11.9 ms – 12.6 ms"; empty without either."""
    if value.low is None and value.high is None:
        return ""
    low = "unbounded" if value.low is None else duration(value.low)
    high = "unbounded" if value.high is None else duration(value.high)
    return f"{low} – {high}"


def load(summary: Summary) -> str:
    """What was offered: a rate, or, plainly marked, a closed loop."""
    if summary.concurrency is not None:
        return (
            f"CLOSED LOOP, {summary.concurrency:,} requests at once: a slow server is asked for less;"
            f" {number(summary.sent_per_s)}/s sent"
        )
    family = "" if summary.arrivals == "own" else f" by {summary.arrivals}"
    return f"{number(summary.scheduled_per_s)} requests/s scheduled{family}, {number(summary.sent_per_s)}/s sent"
