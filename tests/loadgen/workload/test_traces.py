"""Which format a log is, and what becomes of one whatever its format."""

import gzip
import hashlib

import numpy as np
import pyarrow
import pytest

from loadgen.workload.traces import FORMATS, detect_format, read_trace
from tests.loadgen.rows import TraceRow, rows

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
MOONCAKE = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n'


@pytest.fixture
def log(tmp_path):
    def write(content, name="log.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def azure(*seconds):
    return AZURE + "".join(f"2023-11-16 18:00:{second:04.1f},{round(second * 10)},1\n" for second in seconds)


@pytest.mark.parametrize(
    ("line", "format"),
    [
        (AZURE, "azure"),
        ("Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n", "burstgpt"),
        (MOONCAKE, "mooncake"),
        ('{"schema":"weir.gateway-record/1","request_id":"r"}\n', "weir"),
        ('{"created": 1, "usage": {"prompt_tokens": 1, "completion_tokens": 1}}\n', "openai"),
        ('{"session_id": "a", "turns": []}\n', "aiperf"),
        ('{"session_id": "a", "input_length": 5, "output_length": 5}\n', "aiperf"),
        ('{"text_input": "a", "output_length": 5}\n', "aiperf"),
        ("prompt,output_tokens_count\n", "guidellm"),
        ('[\n  {\n    "id": "x",\n    "conversations": [', "vllm"),
        ('{"created": 1, "error": "x"}\n\n{"created": 2, "usage": {}}\n', "openai"),
        ('{"text": "hello", "output_length": 5}\n', "aiperf"),
        ('{"prompt": "hello", "output_tokens_count": 5}\n', "guidellm"),
        ('{"prompt": "hello", "output_tokens": 5}\n', "vllm"),
    ],
)
def test_a_format_is_known_by_its_first_lines(log, line, format):
    assert detect_format(log(line)) == format
    assert format in FORMATS


def test_what_is_of_no_known_format_is_refused(log, tmp_path):
    with pytest.raises(ValueError, match="of no format that is known: give --format, one of aiperf"):
        detect_format(log("a,b,c\n"))
    with pytest.raises(ValueError, match="is a folder without chunk-N-trace"):
        detect_format(tmp_path)
    with pytest.raises(ValueError, match="trace format 'csv': one of aiperf"):
        read_trace(log(""), format="csv")


def test_rows_are_sorted_and_times_count_from_the_first(log):
    path = log(azure(2, 0.5, 1))
    trace = read_trace(path)
    assert rows(trace.requests) == [TraceRow(0.0, 5, 1), TraceRow(0.5, 10, 1), TraceRow(1.5, 20, 1)]
    assert (trace.name, trace.format, trace.timed, trace.left_out) == ("log", "azure", True, {})
    assert trace.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_zero_tokens_stay_as_logged_and_are_counted(log):
    trace = read_trace(log(AZURE + "2023-11-16 18:00:00,0,6\n2023-11-16 18:00:01,5,0\n2023-11-16 18:00:02,5,1\n"))
    assert trace.zero_rows == 2
    assert trace.requests.prompt_tokens.tolist() == [0, 5, 5]


def test_the_parts_of_a_rotated_log_are_one(log):
    late, early = log(azure(3, 4), "b.csv"), log(azure(1, 2), "a.csv")
    trace = read_trace(late, early)
    assert trace.requests.at_s.tolist() == [0, 1, 2, 3]
    assert trace.sha256 not in {read_trace(late).sha256, read_trace(early).sha256}


def test_a_packed_log_is_read_as_it_is(log):
    plain = read_trace(log("\ufeff" + azure(1, 2)))
    content = azure(1, 2).encode()
    for name, packed in (("log.csv.gz", gzip.compress(content)), ("log.csv.zst", pyarrow.compress(content, "zstd"))):
        trace = read_trace(log(packed.to_pybytes() if name.endswith("zst") else packed, name))
        assert rows(trace.requests) == rows(plain.requests)
        assert trace.name == "log"
    with pytest.raises(ValueError, match=r"packed as \.xz: unpack it, or pack it with gzip"):
        detect_format(log(b"", "log.csv.xz"))


def test_a_packed_log_that_was_cut_is_an_error(log):
    path = log(gzip.compress(azure(*range(50)).encode())[:-20], "log.csv.gz")
    with pytest.raises(ValueError, match=r"log\.csv\.gz: cannot be read to its end: Compressed file ended"):
        read_trace(path, format="azure")


def test_a_pattern_stands_for_all_files_of_such_names(log, tmp_path):
    early, late = log(azure(1, 2), "log-1.csv"), log(azure(3, 4), "log-2.csv")
    found, named = read_trace(tmp_path / "log-*.csv"), read_trace(early, late)
    assert (found.sha256, rows(found.requests)) == (named.sha256, rows(named.requests))
    with pytest.raises(ValueError, match=r"no-\*\.csv: no file has such a name"):
        read_trace(tmp_path / "no-*.csv")
    with pytest.raises(FileNotFoundError):
        read_trace(tmp_path / "no.csv")


@pytest.mark.parametrize("content", [AZURE, '{"created": 1}\n'])
def test_a_log_without_a_usable_row_is_refused(log, content):
    format = "azure" if content == AZURE else "openai"
    with pytest.raises(ValueError, match=r"no usable row \((it is empty|1 no usage)\)"):
        read_trace(log(content), format=format)


def test_bad_rows_are_left_out_up_to_the_share_that_is_allowed(log):
    path = log(azure(*range(9)) + "2023-11-16 18:00:59.0,x,1\n")
    with pytest.raises(ValueError, match=r"log\.csv:11: ContextTokens 'x': expected a count of tokens"):
        read_trace(path)
    assert read_trace(path, bad_rows=0.1).left_out == {"not readable": 1}
    with pytest.raises(ValueError, match=r"1 of 10 rows are not readable, more than 5\.00%: .*ContextTokens 'x'"):
        read_trace(path, bad_rows=0.05)


def test_a_log_whose_rows_have_a_time_or_not_is_refused(log):
    lines = '{"text": "a", "output_length": 1, "timestamp": 5}\n{"text": "b", "output_length": 1}\n'
    with pytest.raises(ValueError, match="1 of 2 rows have no time"):
        read_trace(log(lines, "log.jsonl"), count=len)
    untimed = read_trace(log('{"text": "b", "output_length": 1}\n', "log.jsonl"), count=len)
    assert not untimed.timed


def test_what_prompts_share_follows_the_rows_when_they_are_sorted(log):
    first = '{"timestamp": 9000, "input_length": 1000, "output_length": 5, "hash_ids": [7, 8]}\n'
    requests = read_trace(log(first + MOONCAKE, "log.jsonl")).requests
    assert requests.at_s.tolist() == [0, 9]
    assert requests.segment_ids.tolist() == [0, 1, 7, 8]
    assert requests.segment_tokens.tolist() == [512, 88, 512, 488]
    assert np.add.reduceat(requests.segment_tokens, requests.segment_offsets[:-1]).tolist() == [600, 1000]
