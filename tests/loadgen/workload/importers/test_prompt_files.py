import msgspec
import pytest

from loadgen.workload.importers.json_logs import OWN_TEXT
from loadgen.workload.importers.prompt_files import Aiperf, read_guidellm, read_vllm
from loadgen.workload.importers.rows import BadRow, LeftOut, Row


def words(text):
    return len(text.split())


@pytest.fixture
def file(tmp_path):
    def write(content, name="in.jsonl"):
        path = tmp_path / name
        text = (
            content
            if isinstance(content, str)
            else "".join(msgspec.json.encode(one).decode() + "\n" for one in content)
        )
        path.write_text(text)
        return path

    return write


@pytest.fixture
def aiperf(file):
    return lambda rows: list(Aiperf(words).read(file(rows)))


def test_single_turns_of_aiperf(aiperf):
    rows = [
        {"text": "a b c", "output_length": 5, "timestamp": 0},
        {"texts": ["a", "b"], "output_length": 6, "timestamp": 20},
        {"text_input": "a", "output_length": 6, "timestamp": 30},
        {"input_length": 600, "hash_ids": [1, 2], "output_length": 6, "timestamp": 40},
    ]
    first, second, third, fourth = aiperf(rows)
    assert first == Row(0, 3, 5, None, ((OWN_TEXT, 3),))
    assert (second[:3], third[:3]) == ((20_000_000, 2, 6), (30_000_000, 1, 6))
    assert fourth == Row(40_000_000, 600, 6, None, ((1, 512), (2, 88)))
    assert len({second.segments[0][0], third.segments[0][0], OWN_TEXT}) == 3


def test_a_turn_begins_with_all_that_was_said_before(aiperf):
    turns = [
        {"text": "a b", "output_length": 10, "timestamp": 100},
        {"text": "c", "output_length": 4, "delay": 50},
        {"text": "d", "output_length": 4},
    ]
    said = tuple((OWN_TEXT + number, length) for number, length in enumerate((2, 10, 1, 4, 1)))
    expected = [
        Row(100_000_000, 2, 10, "s", said[:1]),
        Row(150_000_000, 13, 4, "s", said[:3]),
        Row(150_000_000, 18, 4, "s", said),
    ]
    assert list(aiperf([{"session_id": "s", "turns": turns}])) == expected
    assert list(aiperf([{"session_id": "s", **turn} for turn in turns])) == expected


def test_conversations_go_on_from_file_to_file_and_others_share_nothing(file):
    rows = [{"session_id": name, "text": "a", "output_length": 5, "timestamp": 0} for name in ("s", "t")]
    reader = Aiperf(words)
    first = list(reader.read(file(rows, "1.jsonl")))
    again, other = reader.read(file([rows[0], {"turns": [rows[0] | {"session_id": None}]}], "2.jsonl"))
    assert again.segments[0] == first[0].segments[0]
    assert (again.prompt_tokens, other.prompt_tokens) == (7, 1)
    assert other.session.endswith("2.jsonl:2")
    assert not {other.segments[0][0]} & {identity for row in (*first, again) for identity, _ in row.segments}


def test_after_a_turn_that_is_not_there_a_conversation_is_left_out(aiperf):
    rows = [{"text": "a", "output_length": 5}, {"text": 5, "output_length": 5}, {"text": "a", "output_length": 5}]
    good, bad, after = aiperf([{"session_id": "s", **row} for row in rows])
    assert isinstance(good, Row)
    assert isinstance(bad, BadRow)
    assert after == LeftOut("after a turn that is left out")
    assert list(aiperf([{"turns": [{"text": "a"}, rows[0]]}])) == [LeftOut("no output length"), after]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"turns": "x"}, "turns 'x': expected a list of objects"),
        ({"text": 5, "output_length": 5}, "text 5: expected a text, a list of them, or input_length"),
        ({"messages": [], "output_length": 5}, "text None: expected a text, a list of them, or input_length"),
        ({"text": "a", "output_length": 5, "timestamp": -1}, "timestamp -1: expected milliseconds"),
        ({"text": "a", "output_length": "x"}, "output_length 'x': expected a count of tokens"),
    ],
)
def test_what_is_no_input_of_aiperf_is_named(aiperf, row, message):
    (found,) = aiperf([row])
    assert isinstance(found, BadRow)
    assert str(found).endswith("in.jsonl:1: " + message)


def test_a_prompt_whose_answer_has_no_length_is_left_out(file):
    assert list(Aiperf(words).read(file([{"text": "a"}]))) == [LeftOut("no output length")]
    assert list(read_guidellm(file([{"prompt": "a"}]), words)) == [LeftOut("no output length")]
    assert list(read_vllm(file([{"prompt": "a"}]), words)) == [LeftOut("no output length")]


@pytest.mark.parametrize("reader", [read_guidellm, read_vllm])
def test_text_needs_a_tokenizer(file, reader):
    (found,) = reader(file([{"prompt": "a", "output_tokens": 5}]), None)
    assert str(found).endswith("give --tokenizer FILE, the model's tokenizer.json, to count its tokens")


def test_guidellm_states_counts_or_has_them_counted(file):
    rows = [
        {"prompt": "a b", "prompt_tokens_count": 7, "output_tokens_count": 5},
        {"text": "a b", "output_tokens_count": 5},
    ]
    assert list(read_guidellm(file(rows), words)) == [Row(None, 7, 5), Row(None, 2, 5)]
    table = file("prompt,output_tokens_count\na b c,9\n", "in.csv")
    assert list(read_guidellm(table, words)) == [Row(None, 3, 9)]
    (found,) = read_guidellm(file([{"output_tokens_count": 5}]), words)
    assert "no prompt: expected a column prompt" in str(found)


def test_vllms_custom_and_sharegpt(file):
    assert list(read_vllm(file([{"prompt": "a b", "output_tokens": 3}]), words)) == [Row(None, 2, 3)]
    (found,) = read_vllm(file([{"prompt": 5, "output_tokens": 3}]), words)
    assert "prompt 5: expected a text" in str(found)
    said = [{"from": "human", "value": "a b c"}, {"from": "gpt", "value": "d e"}, {"from": "human", "value": "f"}]
    talks = msgspec.json.encode([{"conversations": said}, {"conversations": said[:1]}, {}]).decode()
    assert list(read_vllm(file(talks, "in.json"), words)) == [
        Row(None, 3, 2),
        LeftOut("fewer than two messages"),
        LeftOut("fewer than two messages"),
    ]
    (found,) = read_vllm(file("[5]", "in.json"), words)
    assert "in.json: conversation 0: not a JSON object: " in str(found)
    with pytest.raises(BadRow, match=r"in\.json: not a JSON list of conversations"):
        list(read_vllm(file("{}", "in.json"), words))
