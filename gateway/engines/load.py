"""How busy an engine says it is: its Prometheus text in, one set of figures for every kind out.

Hides the engines' names and how they split a figure over ranks. Lines of other series are not even parsed: an
engine shows thousands, and every stream of the event loop waits meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.model import EngineLoad, LoadSeries
from protocol.prometheus import Sample, parse


def read_load(text: str, series: LoadSeries) -> EngineLoad:
    """The load in a scrape; None for each figure that the engine does not show.

    Raises ValueError when a line that is needed is malformed.
    """
    wanted = (series.running, series.waiting, series.kv_usage, series.prefix_hits, series.prefix_queries)
    found: dict[str, list[Sample]] = {name: [] for name in wanted}
    for sample in parse("\n".join(line for line in text.split("\n") if line.startswith(wanted))):
        if sample.name in found:
            found[sample.name].append(sample)
    running, waiting, kv_usage = (_by_rank(found[name], series.rank_label) for name in wanted[:3])
    hits, queries = ([sample.value for sample in found[name]] for name in wanted[3:])
    return EngineLoad(
        running=sum(running) if running else None,
        waiting=sum(waiting) if waiting else None,
        kv_usage=max(kv_usage) if kv_usage else None,
        # A counter appears with its first hit, which may never come.
        prefix_hit_tokens=sum(hits) if queries else None,
        prefix_query_tokens=sum(queries) if queries else None,
    )


def _by_rank(samples: Iterable[Sample], rank_label: str) -> list[float]:
    """One value for each data-parallel rank.

    Tensor-parallel ranks, where all of them report, repeat it, and series for each priority of requests stand beside
    their total: within a rank the largest is the figure.
    """
    ranks: dict[str, float] = {}
    for sample in samples:
        rank = sample.labels.get(rank_label, "")
        ranks[rank] = max(ranks.get(rank, sample.value), sample.value)
    return list(ranks.values())
