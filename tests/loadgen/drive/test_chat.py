import msgspec
import pytest

from loadgen.drive.chat import ChatRequests
from loadgen.drive.client import parse_target
from loadgen.workload.prompts import WORDS, prompt
from loadgen.workload.texts import Texts, Vocabulary
from protocol.records import ScheduledRequest

REQUEST = ScheduledRequest(index=7, at_ns=0, prompt_tokens=50, output_tokens=20, segments=((3, 50),))


def chat(url="http://h:8000/base", **changes):
    values = {"model": "m", "run_id": "r", "random_bytes": lambda count: bytes(range(1, count + 1))}
    return ChatRequests(parse_target(url), **(values | changes))


def parts(wire):
    head, _, body = wire.partition(b"\r\n\r\n")
    line, *fields = head.decode().split("\r\n")
    return line, dict(field.split(": ", 1) for field in fields), body


def test_a_streamed_request_asks_for_exactly_what_was_planned():
    outgoing = chat().streamed(REQUEST)
    line, headers, body = parts(outgoing.wire)
    assert line == "POST /base/v1/chat/completions HTTP/1.1"
    assert msgspec.json.decode(body) == {
        "model": "m",
        "messages": [{"role": "user", "content": prompt(50, 3)}],
        "max_tokens": 20,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert headers["host"] == "h:8000"
    assert headers["content-length"] == str(len(body))
    assert headers["x-request-id"] == outgoing.request_id == "r-7"
    assert "authorization" not in headers


def test_the_trace_is_sampled_and_its_id_is_the_records():
    outgoing = chat().streamed(REQUEST)
    _, headers, _ = parts(outgoing.wire)
    version, trace_id, _, flags = headers["traceparent"].split("-")
    assert (version, trace_id, flags) == ("00", outgoing.trace_id, "01")
    assert outgoing.trace_id == bytes(range(1, 17)).hex()


def test_every_request_has_a_trace_of_its_own():
    requests = ChatRequests(parse_target("http://h"), model="m", run_id="r")
    assert requests.streamed(REQUEST).trace_id != requests.streamed(REQUEST).trace_id


@pytest.mark.parametrize(("template", "words"), [(0, 50), (9, 41), (49, 1), (80, 1)])
def test_the_template_takes_its_tokens_from_the_text(template, words):
    requests = chat()
    requests.template_tokens = template
    _, _, body = parts(requests.streamed(REQUEST).wire)
    content = msgspec.json.decode(body)["messages"][0]["content"]
    assert content == prompt(words, 3)


def test_the_key_is_sent_with_every_request():
    requests = chat(api_key="secret")
    for wire in (requests.models(), requests.calibration(1, 0), requests.streamed(REQUEST).wire):
        assert parts(wire)[1]["authorization"] == "Bearer secret"


def test_a_calibration_is_one_token_and_no_stream():
    _, headers, body = parts(chat().calibration(2, 5))
    asked = msgspec.json.decode(body)
    assert (asked["max_tokens"], asked["messages"][0]["content"], asked.get("stream")) == (1, prompt(2, 5), None)
    assert "traceparent" not in headers
    assert parts(chat().models())[0] == "GET /base/v1/models HTTP/1.1"


IDS = Vocabulary(book_ids=tuple(range(5000)))


def test_prompts_of_ids_are_completions_of_the_same_length():
    line, headers, body = parts(chat(vocabulary=IDS, token_ids=True).streamed(REQUEST).wire)
    asked = msgspec.json.decode(body)
    assert line == "POST /base/v1/completions HTTP/1.1"
    assert headers["x-request-id"].endswith("-7")
    assert asked.pop("prompt") == Texts(IDS).prompt_ids(REQUEST.segments, 50)
    assert asked == {
        "model": "m",
        "max_tokens": 20,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_calibration_of_ids_is_a_completion_too():
    line, _, body = parts(chat(vocabulary=IDS, token_ids=True).calibration(64, 0))
    asked = msgspec.json.decode(body)
    assert line == "POST /base/v1/completions HTTP/1.1"
    assert (len(asked["prompt"]), asked["max_tokens"], asked.get("stream")) == (64, 1, None)


def test_tokens_are_asked_of_the_text_alone():
    line, headers, body = parts(chat(api_key="secret").tokenize("one two"))
    assert line == "POST /base/tokenize HTTP/1.1"
    assert headers["authorization"] == "Bearer secret"
    assert msgspec.json.decode(body) == {"model": "m", "prompt": "one two", "add_special_tokens": False}


def test_prompts_are_made_of_the_vocabulary():
    vocabulary = Vocabulary(words=tuple(word.upper() for word in WORDS))
    _, _, body = parts(chat(vocabulary=vocabulary).streamed(REQUEST).wire)
    assert msgspec.json.decode(body)["messages"][0]["content"] == prompt(50, 3).upper()
