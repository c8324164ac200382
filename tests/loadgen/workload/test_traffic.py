import numpy as np

from loadgen.workload.traffic import Requests


def test_unshared_prompts_are_one_segment_each_that_nothing_else_has() -> None:
    requests = Requests.unshared(np.array([0.0, 0.5, 2.0]), np.array([5, 7, 9]), np.array([1, 2, 3]))
    assert len(requests) == 3
    assert requests.segment_offsets.tolist() == [0, 1, 2, 3]
    assert requests.segment_tokens.tolist() == requests.prompt_tokens.tolist()
    assert (requests.segment_ids < 0).all()
    assert requests.session.tolist() == [-1, -1, -1]
