"""SGLang's new-token ratio: falls while decoding goes well, is corrected by a retraction."""

import pytest

from simulator.reserve import DECAY_STEPS, INITIAL_RATIO, LEAST_RATIO, OutputReserve


def test_running_count_by_the_ratio_and_the_candidate_in_full_each_clipped() -> None:
    reserve = OutputReserve()
    assert reserve.tokens([100, 10_000], 50) == int(INITIAL_RATIO * (100 + 4096)) + 50
    assert reserve.tokens([], 9000) == 4096


def test_the_ratio_decays_to_its_least_and_stays_there() -> None:
    reserve = OutputReserve()
    for _ in range(DECAY_STEPS):
        reserve.decoded()
    assert reserve.ratio == pytest.approx(LEAST_RATIO)
    reserve.decoded()
    assert reserve.ratio == pytest.approx(LEAST_RATIO)


def test_a_retraction_sets_the_ratio_from_what_was_produced() -> None:
    reserve = OutputReserve()
    reserve.retracted(running=2, produced_tokens=60, allowed_tokens=999)
    assert reserve.ratio == pytest.approx((60 + 40) / 1000)
    reserve.retracted(running=1, produced_tokens=90, allowed_tokens=100)
    assert reserve.ratio == 1.0
