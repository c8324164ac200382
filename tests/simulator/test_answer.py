"""The two encodings of JSON, and a sum."""

from __future__ import annotations

from simulator.answer import DONE, Usage, compact, spaced

ERROR = {"error": {"message": "queue full, é", "code": 503}}


def test_answers_are_written_without_spaces_and_errors_in_streams_with_them() -> None:
    assert compact(ERROR) == '{"error":{"message":"queue full, é","code":503}}'.encode()
    assert spaced(ERROR) == b'{"error": {"message": "queue full, \\u00e9", "code": 503}}'


def test_the_last_event_of_a_stream() -> None:
    assert DONE == b"data: [DONE]\n\n"


def test_the_total_is_prompt_and_completion_whatever_was_cached() -> None:
    for cached in (None, 0, 5):
        assert Usage(prompt_tokens=7, completion_tokens=3, cached_tokens=cached).total_tokens == 10
