import hashlib

import pytest

from loadgen.workload.traces import TraceRow, read_trace
from protocol.records import encode_line

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"


@pytest.fixture
def log(tmp_path):
    def write(content, name="log.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def test_azure_times_are_exact_to_the_seventh_digit(log):
    path = log(HEAD + "2023-11-16 18:15:59.9999999,374,44\r\n2023-11-16 18:16:00.0000001,396,109")
    trace = read_trace(path, "azure")
    assert trace.rows == [TraceRow(0.0, 374, 44), TraceRow(2e-7, 396, 109)]
    assert trace.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (trace.name, trace.without_usage, trace.zero_rows) == ("log", 0, 0)


def test_times_of_2024_and_times_without_a_fraction_are_read(log):
    path = log(HEAD + "2024-05-10 00:00:00,1,2\n2024-05-10 00:00:01.250000+00:00,3,4\n")
    assert [row.at_s for row in read_trace(path, "azure").rows] == [0.0, 1.25]


def test_rows_are_sorted_and_zero_tokens_stay_as_logged(log):
    path = log(HEAD + "2023-11-16 18:00:02.0,5,0\n2023-11-16 18:00:00.0,0,6\n2023-11-16 18:00:01.0,1,1\n")
    trace = read_trace(path, "azure")
    assert trace.rows == [TraceRow(0.0, 0, 6), TraceRow(1.0, 1, 1), TraceRow(2.0, 5, 0)]
    assert trace.zero_rows == 2


def test_a_slice_counts_from_its_start(log):
    path = log(HEAD + "".join(f"2023-11-16 18:00:0{k}.0,{k},1\n" for k in range(5)))
    assert read_trace(path, "azure").slice(1, 2) == [TraceRow(0.0, 1, 1), TraceRow(1.0, 2, 1)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("2023-11-16T18:00:00.0,1,1", r"log\.csv:3: TIMESTAMP '2023-11-16T18:00:00\.0': expected YYYY"),
        ("2023-11-31 18:00:00.0,1,1", r"log\.csv:3: TIMESTAMP '2023-11-31 18:00:00\.0'"),
        ("2023-11-16 18:00:00.0,-1,1", r"log\.csv:3: ContextTokens '-1': expected a count"),
        ("2023-11-16 18:00:00.0,1,1.5", r"log\.csv:3: GeneratedTokens '1\.5'"),
        ("2023-11-16 18:00:00.0,1,²", r"log\.csv:3: GeneratedTokens '²'"),
        ("2023-11-16 18:00:00.0,1", r"log\.csv:3: GeneratedTokens None"),
    ],
)
def test_a_bad_row_is_named_with_line_column_and_value(log, row, message):
    path = log(HEAD + "2023-11-16 18:00:00.0,1,1\r\n" + row)
    with pytest.raises(ValueError, match=message):
        read_trace(path, "azure")


def test_a_missing_column_is_named(log):
    with pytest.raises(ValueError, match="no column GeneratedTokens"):
        read_trace(log("TIMESTAMP,ContextTokens\n"), "azure")


@pytest.mark.parametrize("content", ["", HEAD])
def test_a_log_without_a_row_is_refused(log, content):
    with pytest.raises(ValueError, match=r"no column TIMESTAMP|no usable row among 0"):
        read_trace(log(content), "azure")


def test_an_unknown_format_is_refused(log):
    with pytest.raises(ValueError, match="trace format 'csv': one of azure, weir"):
        read_trace(log(""), "csv")


def test_gateway_records_are_a_trace_in_order_of_arrival(log, made):
    late, early = made.request(1, at_ms=2000), made.request(0, at_ms=500, tokens=5)
    unknown = made.gateway(late, prompt_tokens=None, completion_tokens=None)
    half = made.gateway(late, completion_tokens=None)
    records = [made.gateway(late), unknown, made.gateway(early), half]
    trace = read_trace(log(b"".join(map(encode_line, records)), "records.jsonl"), "weir")
    assert trace.rows == [TraceRow(0.0, 100, 5), TraceRow(1.5, 100, 11)]
    assert trace.without_usage == 2


def test_a_gateway_record_that_is_none_is_named(log):
    with pytest.raises(ValueError, match=r"records\.jsonl:1: not a GatewayRecord"):
        read_trace(log("{}\n", "records.jsonl"), "weir")
