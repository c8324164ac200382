import numpy as np
import pytest

from loadgen.workload.fitting.shared_text import fit_sharing
from loadgen.workload.sharing import Sharing, hit_ratio
from loadgen.workload.traffic import Requests


def talks(seed=1, count=4000):
    rng = np.random.default_rng(seed)
    at_s = np.sort(rng.random(count) * count / 5)
    prompt = rng.integers(500, 8000, count)
    model = Sharing(
        block_tokens=128,
        common_blocks=3,
        common_share=1.0,
        continue_share=[0.2, 0.6],
        reused=[0.2, 0.9],
        delay_s=[20.0, 120.0],
        fit=None,
    )
    return model.draw(rng, at_s, prompt, prompt)


def test_a_model_of_prompts_that_share_text_shares_as_much():
    requests = talks()
    found = fit_sharing(requests, requests.at_s)
    assert found is not None
    assert (found.block_tokens, found.common_blocks) == (128, 3)
    assert found.common_share == pytest.approx(1.0, abs=0.05)
    assert found.continue_share[0] < found.continue_share[-1]
    assert found.fit is not None
    assert found.fit.verdict == "adequate"
    assert found.fit.trace_hit_ratio == pytest.approx(hit_ratio(requests), abs=1e-4)
    assert found.fit.model_hit_ratio == pytest.approx(found.fit.trace_hit_ratio, abs=0.05)


def test_a_common_beginning_alone_is_no_conversation():
    count = 300
    requests = Requests(
        at_s=np.arange(count, dtype=np.float64),
        prompt_tokens=np.full(count, 30),
        output_tokens=np.full(count, 5),
        session=np.full(count, -1),
        segment_offsets=np.arange(count + 1) * 2,
        segment_ids=np.array([[0, 10 + number] for number in range(count)]).ravel(),
        segment_tokens=np.full(2 * count, 15),
    )
    found = fit_sharing(requests, requests.at_s)
    assert found is not None
    assert (found.common_blocks, found.common_share, set(found.continue_share)) == (1, 1.0, {0.0})
    assert found.fit is not None
    assert found.fit.model_hit_ratio == pytest.approx(0.5, abs=0.02)


def test_a_log_that_says_nothing_of_texts_has_no_model():
    requests = Requests.unshared(np.arange(5.0), np.full(5, 10), np.full(5, 10))
    assert fit_sharing(requests, requests.at_s) is None
