import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import wire
from benchmarks.wire import Shape

SHAPES = st.builds(
    Shape,
    ttft_ms=st.integers(0, 10_000),
    gap_ms=st.integers(0, 10_000),
    chunks=st.integers(1, 10_000),
    pad_bytes=st.integers(0, 1 << 20),
)


@given(shape=SHAPES, prompt_bytes=st.integers(0, 1 << 16))
def test_the_engine_reads_the_shape_the_load_asks_for_from_the_start_of_the_body(
    shape: Shape, prompt_bytes: int
) -> None:
    body = wire.request_body(shape, prompt_bytes)
    assert wire.shape_of(body[: wire.SHAPE_WITHIN_BYTES]) == shape
    assert msgspec.json.decode(body)["stream"] is True
    assert len(body) > prompt_bytes


@pytest.mark.parametrize("prompt_bytes", [0, 5000])
def test_a_small_request_asks_for_no_stream(prompt_bytes: int) -> None:
    body = wire.request_body(wire.SMALL, prompt_bytes)
    assert wire.shape_of(body) == wire.SMALL
    request = msgspec.json.decode(body)
    assert "stream" not in request
    assert len(request["messages"][0]["content"]) == prompt_bytes + len("What does a weir do?")


def test_a_request_carries_the_key_and_its_length() -> None:
    head, _, body = wire.request(80, b"{}").partition(b"\r\n\r\n")
    assert b"authorization: Bearer " + wire.KEY in head
    assert head.endswith(b"content-length: 2")
    assert body == b"{}"


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
