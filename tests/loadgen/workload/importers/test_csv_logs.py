import pytest

from loadgen.workload.importers.csv_logs import read_azure, read_burstgpt
from loadgen.workload.importers.rows import BadRow, LeftOut, Row

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


@pytest.fixture
def log(tmp_path):
    def write(content):
        path = tmp_path / "log.csv"
        path.write_text(content, newline="")
        return path

    return write


def test_azure_times_are_exact_to_the_seventh_digit(log):
    first, second = read_azure(log(AZURE + "2023-11-16 18:15:59.9999999,374,44\r\n2023-11-16 18:16:00.0000001,396,109"))
    assert (second.at_ns - first.at_ns, first[1:3], second[1:3]) == (200, (374, 44), (396, 109))


def test_times_of_2024_and_times_without_a_fraction_are_read(log):
    first, second = read_azure(log(AZURE + "2024-05-10 00:00:00,1,2\n2024-05-10 00:00:01.250000+00:00,3,4\n"))
    assert second.at_ns - first.at_ns == 1_250_000_000


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("2023-11-16T18:00:00.0,1,1", r"log\.csv:2: TIMESTAMP '2023-11-16T18:00:00\.0': expected YYYY"),
        ("2023-11-31 18:00:00.0,1,1", r"log\.csv:2: TIMESTAMP '2023-11-31 18:00:00\.0'"),
        ("9999-12-31 18:00:00.0,1,1", r"log\.csv:2: TIMESTAMP '9999-12-31 18:00:00\.0'"),
        ("2023-11-16 18:00:00.0,-1,1", r"log\.csv:2: ContextTokens '-1': expected a count"),
        ("2023-11-16 18:00:00.0,1,1.5", r"log\.csv:2: GeneratedTokens '1\.5'"),
        ("2023-11-16 18:00:00.0,1", r"log\.csv:2: GeneratedTokens None"),
    ],
)
def test_a_bad_row_is_named_with_line_column_and_value(log, row, message):
    (found,) = read_azure(log(AZURE + row))
    with pytest.raises(BadRow, match=message):
        raise found


def test_a_missing_column_is_named(log):
    with pytest.raises(BadRow, match=r"log\.csv:1: no column GeneratedTokens: an Azure trace has TIMESTAMP"):
        list(read_azure(log("TIMESTAMP,ContextTokens\n")))


def test_burstgpt_requests_that_failed_are_left_out(log):
    content = BURSTGPT + "5,ChatGPT,472,18,490,Conversation log\n45.5,GPT-4,1087,0,1087,API log\n"
    assert list(read_burstgpt(log(content))) == [
        Row(5_000_000_000, 472, 18),
        LeftOut("failed: 0 response tokens"),
    ]


def test_burstgpt_sessions_are_kept(log):
    head = BURSTGPT.replace("Model", "Session ID,Elapsed time,Model")
    content = head + "1,s1,2.5,GPT-4,10,5,15,Conversation log\n2,,1.0,GPT-4,10,5,15,API log\n"
    assert [row.session for row in read_burstgpt(log(content))] == ["s1", None]


def test_bytes_that_are_no_text_spoil_their_own_row_only(log):
    path = log(AZURE)
    path.write_bytes(AZURE.encode() + b"2023-11-16 18:00:00.0,\xff,1\n2023-11-16 18:00:01.0,2,3\n")
    bad, good = read_azure(path)
    assert str(bad).endswith(r"log.csv:2: ContextTokens '\udcff': expected a count of tokens")
    assert good[1:3] == (2, 3)


def test_a_time_that_is_none_is_named(log):
    (found,) = read_burstgpt(log(BURSTGPT + "soon,GPT-4,10,5,15,API log\n"))
    assert str(found).endswith("log.csv:2: Timestamp 'soon': expected seconds")
