"""Figures of lengths: the distribution of rounded lognormal mixtures, and pairs that hang together.

Pure functions of figures; nothing here knows a trace or a file.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import ndtr

from loadgen.workload.traffic import Floats

Mixtures = Sequence[tuple[float, float, float]]
"""Weight, mean and standard deviation of ln(tokens) of each component."""


def rounded_cdf(mixture: Mixtures, min_tokens: int, max_tokens: int) -> Floats:
    """Probability of at most k tokens for k = min_tokens … max_tokens, of the mixture rounded to integers.

    What lies below `min_tokens` or above `max_tokens` falls on the limit: a context limit is an atom.
    """
    edges = np.log(np.arange(min_tokens, max_tokens + 1) + 0.5)
    cdf = np.zeros(len(edges))
    for weight, mu, sigma in mixture:
        cdf += weight * ndtr((edges - mu) / sigma)
    cdf[-1] = 1.0
    return cdf


def coupled_uniforms(normals: Floats, spearman: float) -> tuple[Floats, Floats]:
    """Uniform numbers in pairs with a Gaussian copula of the given Spearman correlation, from pairs of normal ones.

    The normal correlation is 2 sin(pi rho / 6) (Kruskal 1958). `normals` has shape (n, 2).
    """
    r = 2 * np.sin(np.pi * spearman / 6)
    first = normals[:, 0]
    return ndtr(first), ndtr(r * first + np.sqrt(max(0.0, 1 - r * r)) * normals[:, 1])
