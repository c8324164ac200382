import hashlib
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.plan import decode_schedule, encode_schedule, schedule_from_rows, schedule_from_workload
from loadgen.workload.traces import TraceRow
from protocol.records import ScheduledRequest, ScheduleHeader, encode_line

rows = st.lists(
    st.builds(TraceRow, st.floats(0, 100, allow_nan=False), st.integers(0, 10_000), st.integers(0, 1000)), max_size=40
).map(sorted)


@dataclass(frozen=True)
class Even:
    """Traffic of one request per second of the described time."""

    name: str = "even"

    def digest(self):
        return "d" * 64

    def draw(self, rng, *, start_s, duration_s, rate_scale):
        count = int(duration_s * rate_scale)
        return [TraceRow(k / rate_scale, int(length), 7) for k, length in enumerate(rng.integers(1, 100, count))]


def replay(traffic, **changes):
    values = {"source": "t", "source_sha256": "0" * 64, "seed": 1, "duration_s": 50.0}
    return schedule_from_rows(traffic, **(values | changes))


@given(rows)
def test_a_schedule_survives_its_file(traffic):
    schedule = replay(traffic)
    assert decode_schedule(encode_schedule(*schedule)) == schedule


@given(rows, st.floats(0, 60), st.floats(0.1, 10))
def test_a_replay_keeps_the_slice_in_order_and_in_time(traffic, start_s, rate_scale):
    header, requests = replay(traffic, start_s=start_s, rate_scale=rate_scale)
    expected = [row for row in traffic if start_s <= row.at_s < start_s + 50 * rate_scale]
    assert header.requests == len(requests) == len(expected)
    for request, row in zip(requests, expected, strict=True):
        assert request.at_ns == pytest.approx((row.at_s - start_s) / rate_scale * 1e9, abs=1)
        assert (request.prompt_tokens, request.output_tokens) == (max(1, row.prompt_tokens), max(1, row.output_tokens))


def test_the_header_tells_what_it_was_made_from():
    header, _ = replay([TraceRow(0.0, 1, 1)], source="azure", start_s=3, rate_scale=0.5)
    assert header == ScheduleHeader(
        source="azure[3s+50s]x0.5", source_sha256="0" * 64, seed=1, requests=0, duration_ns=50_000_000_000
    )


def test_equal_seeds_give_equal_files_and_other_seeds_other_ones():
    def identity(seed):
        schedule = schedule_from_workload(Even(), seed=seed, duration_s=20)
        return hashlib.sha256(encode_schedule(*schedule)).hexdigest()

    assert identity(5) == identity(5)
    assert len({identity(seed) for seed in range(20)}) == 20


def test_traffic_decides_lengths_and_each_request_has_its_own_prompt():
    header, requests = schedule_from_workload(Even(), seed=3, duration_s=100, rate_scale=2, start_s=1)
    assert header.source == "even[1s+100s]x2"
    assert header.source_sha256 == "d" * 64
    assert [request.at_ns for request in requests[:3]] == [0, 500_000_000, 1_000_000_000]
    assert len({request.prompt_seed for request in requests}) == len(requests) == 200


def test_prompts_do_not_depend_on_how_much_traffic_was_drawn():
    _, short = schedule_from_workload(Even(), seed=3, duration_s=10)
    _, long = schedule_from_workload(Even(), seed=3, duration_s=20)
    assert [request.prompt_seed for request in long[:10]] == [request.prompt_seed for request in short]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"duration_s": 0}, "duration_s is 0"),
        ({"duration_s": float("inf")}, "duration_s is inf"),
        ({"rate_scale": -1}, "rate_scale is -1"),
        ({"rate_scale": float("nan")}, "rate_scale is nan"),
        ({"start_s": -0.5}, r"start_s is -0\.5"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_a_slice_that_is_none_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replay([], **changes)


def test_rows_out_of_order_are_refused():
    with pytest.raises(ValueError, match="request 1: at_ns goes back by 1000000000 ns"):
        replay([TraceRow(2.0, 1, 1), TraceRow(1.0, 1, 1)])


def lines(*requests, count=None):
    header = ScheduleHeader(source="s", source_sha256="", seed=0, requests=count or len(requests), duration_ns=1)
    return encode_schedule(header, requests)


def entry(index=0, at_ns=0, prompt_tokens=1, output_tokens=1):
    return ScheduledRequest(
        index=index, at_ns=at_ns, prompt_tokens=prompt_tokens, output_tokens=output_tokens, prompt_seed=0
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1: "),
        (lines(entry()) + b'{"index": 1', "line 3: "),
        (encode_line(entry()), "line 1: "),
        (lines(entry(), count=2), "promises 2 requests, the file has 1"),
        (lines(entry(index=1)), "request 0 says it is 1"),
        (lines(entry(at_ns=-1)), "at_ns is -1, before the start"),
        (lines(entry(at_ns=5), entry(index=1, at_ns=4)), "request 1: at_ns goes back by 1 ns"),
        (lines(entry(prompt_tokens=0)), "must be at least 1"),
        (lines(entry(output_tokens=-3)), "must be at least 1"),
    ],
)
def test_a_file_that_is_no_schedule_is_refused(content, message):
    with pytest.raises(ValueError, match=message):
        decode_schedule(content)


def test_traffic_is_drawn_from_a_seeded_generator():
    draws = []

    class Recorder(Even):
        def draw(self, rng, **slice_):
            draws.append(rng.integers(2**63))
            assert isinstance(rng, np.random.Generator)
            return []

    schedule_from_workload(Recorder(), seed=9, duration_s=1)
    schedule_from_workload(Recorder(), seed=9, duration_s=1)
    assert draws[0] == draws[1]
