"""How long requests are: lognormal mixtures in whole tokens, prompt and output coupled by a copula.

Pure functions of figures and uniform numbers; nothing here knows a trace or a file.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

Mixture = Sequence[tuple[float, float, float]]
"""Weight, mean and standard deviation of ln(tokens) of each component."""


def rounded_cdf(mixture: Mixture, min_tokens: int, max_tokens: int) -> Floats:
    """Probability of at most k tokens for k = min_tokens … max_tokens, of the mixture rounded to integers.

    What lies below `min_tokens` or above `max_tokens` falls on the limit: a context limit is an atom.
    """
    edges = np.log(np.arange(min_tokens, max_tokens + 1) + 0.5)
    cdf = np.zeros(len(edges))
    for weight, mu, sigma in mixture:
        cdf += weight * ndtr((edges - mu) / sigma)
    cdf[-1] = 1.0
    return cdf


def quantiles(cdf: Floats, min_tokens: int, uniforms: npt.ArrayLike) -> Ints:
    """The smallest lengths whose probability reaches each uniform number."""
    return min_tokens + np.searchsorted(cdf, uniforms, side="left")


def coupled_uniforms(rng: np.random.Generator, pairs: int, spearman: float) -> tuple[Floats, Floats]:
    """Uniform numbers in pairs with a Gaussian copula of the given Spearman correlation.

    The normal correlation is 2 sin(pi rho / 6) (Kruskal 1958). Fewer pairs are a prefix of more.
    """
    r = 2 * np.sin(np.pi * spearman / 6)
    normals = rng.standard_normal((pairs, 2))
    first = normals[:, 0]
    return ndtr(first), ndtr(r * first + np.sqrt(max(0.0, 1 - r * r)) * normals[:, 1])
