import msgspec
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import wire


@given(ttft_ms=st.integers(0, 10_000), gap_ms=st.integers(0, 10_000), chunks=st.integers(1, 10_000))
def test_the_engine_reads_the_pace_the_load_asks_for(ttft_ms: int, gap_ms: int, chunks: int) -> None:
    body = wire.request_body(ttft_ms, gap_ms, chunks)
    assert wire.pace_of(body) == (ttft_ms, gap_ms, chunks)
    assert msgspec.json.decode(body)["stream"] is True


def test_a_small_request_asks_for_no_stream() -> None:
    body = wire.request_body(0, 0, 0)
    assert wire.pace_of(body) is None
    assert "stream" not in msgspec.json.decode(body)


@given(st.lists(st.integers(0, 10**19 - 1), min_size=1, max_size=20))
def test_stamps_come_back_and_blank_to_the_reference_stream(sent_ns: list[int]) -> None:
    count = len(sent_ns)
    body = b"".join(wire.chunk(index, count, stamp) for index, stamp in enumerate(sent_ns)) + wire.DONE
    assert [int(stamp) for stamp in wire.STAMP.findall(body)] == sent_ns
    assert wire.blanked(body) == wire.blank_stream(count)


def test_chunks_are_chat_chunks_of_a_stream_that_ends_by_length() -> None:
    *events, done, rest = wire.blank_stream(3).split(b"\n\n")
    choices = [msgspec.json.decode(event.removeprefix(b"data: "))["choices"][0] for event in events]
    assert [choice["finish_reason"] for choice in choices] == [None, None, "length"]
    assert [choice["delta"].get("role") for choice in choices] == ["assistant", None, None]
    assert (done, rest) == (b"data: [DONE]", b"")
    assert 240 <= len(wire.chunk(1, 3, 0)) <= 280
