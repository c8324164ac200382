import msgspec
import pytest

from loadgen.drive.chat import ChatRequests
from loadgen.drive.client import Client, Exchange, parse_target
from loadgen.drive.tokenize import engine_vocabulary
from loadgen.workload.prompts import WORDS
from loadgen.workload.texts import Texts
from simulator.tokens import encode
from tests.scripted_engine import json_response, running


async def vocabulary_of(script):
    async with running(script) as engine:
        target = parse_target(engine.url)
        client = await Client.open(target)
        chat = ChatRequests(target, model="m", run_id="r", api_key="secret")

        async def ask(wire):
            exchange = Exchange(wire)
            await client.send(exchange)
            return exchange

        try:
            return await engine_vocabulary(chat, ask), engine
        finally:
            client.close()


async def tokenizing(request, conversation):
    """As vLLM and SGLang answer, with the stand-in engines' tokenizer."""
    tokens = encode(msgspec.json.decode(request.body)["prompt"])
    answer = {"count": len(tokens), "max_model_len": 8192, "tokens": tokens, "token_strs": None}
    await conversation.send(json_response(msgspec.json.encode(answer)))


async def test_an_engine_says_what_texts_are_made_of():
    found, engine = await vocabulary_of(tokenizing)
    assert set(found.words) == set(WORDS)
    assert found.book
    assert len(encode(Texts(found).text(3000, 5))) == 3000
    asked = msgspec.json.decode(engine.requests[0].body)
    assert (asked["model"], asked["add_special_tokens"]) == ("m", False)
    assert engine.requests[0].headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (json_response(b'{"error":{"message":"no such path"}}', status=404), "http 404 no such path"),
        (json_response(b'{"detail":"Not Found"}', status=404), 'http 404 {"detail":"Not Found"}'),
        (json_response(b'{"count":3}'), "Object missing required field `tokens`"),
        (None, "connection"),
    ],
)
async def test_an_engine_that_does_not_say_is_told_of(answer, why):
    async def script(request, conversation):
        if answer is None:
            conversation.reset()
        else:
            await conversation.send(answer)

    with pytest.raises(ValueError, match=why):
        await vocabulary_of(script)
