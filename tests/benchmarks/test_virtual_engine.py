import numpy as np
import pytest

from benchmarks.virtual_engine import serve, slowed
from loadgen.workload.traffic import Requests
from simulator.profile import load_profile

PROFILE = load_profile("h100_llama-3-8b")


def apart(count=50, prompt=1000, output=20, every_s=1.0):
    lengths = np.full(count, prompt, dtype=np.int64), np.full(count, output, dtype=np.int64)
    return Requests.unshared(np.arange(count) * every_s, *lengths)


def test_requests_far_apart_do_not_wait_for_each_other():
    served = serve(apart(), PROFILE, seed=1)
    assert len(served.ttft_s) == len(served.e2e_s) == 50
    assert served.ttft_s.std() < 0.1 * served.ttft_s.mean()
    assert (served.e2e_s > served.ttft_s).all()
    assert served.cached_share == 0


def test_slower_hardware_takes_as_much_longer():
    fast, slow = serve(apart(), PROFILE, seed=1), serve(apart(), slowed(PROFILE, 3.0), seed=1)
    assert slow.ttft_s.mean() == pytest.approx(3 * fast.ttft_s.mean(), rel=0.05)
    assert slow.e2e_s.mean() == pytest.approx(3 * fast.e2e_s.mean(), rel=0.05)


def test_more_than_it_can_do_waits():
    served = serve(apart(count=200, every_s=0.001), PROFILE, seed=1)
    assert served.ttft_s.max() > 10 * served.ttft_s.min()


def test_text_that_prompts_share_is_found_in_the_cache():
    count = 20
    requests = Requests(
        at_s=np.arange(count, dtype=np.float64),
        prompt_tokens=np.full(count, 1000),
        output_tokens=np.full(count, 5),
        session=np.full(count, -1),
        segment_offsets=np.arange(count + 1) * 2,
        segment_ids=np.array([[3, -1]] * count).ravel(),
        segment_tokens=np.array([[800, 200]] * count).ravel(),
    )
    assert serve(requests, PROFILE, seed=1).cached_share == pytest.approx(0.8 * (count - 1) / count, abs=0.01)
