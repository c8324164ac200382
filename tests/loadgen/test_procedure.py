import asyncio
import io
import re
import zlib
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest

from loadgen import record
from loadgen.plan.making import make_schedule
from loadgen.plan.schedule_file import encode_schedule
from loadgen.plan.sources import Part, Replayed
from loadgen.procedure import RunError, RunRequest, run
from loadgen.report.evidence import read_evidence
from loadgen.workload.vocabulary import read_book
from tests.loadgen.rows import TraceRow, columns
from tests.scripted_engine import DONE, LAST_CHUNK, SSE_HEAD, chunk, json_response, running, token

TEMPLATE = 9
ROWS = (TraceRow(0.0, 30, 2), TraceRow(0.01, 5, 2))


async def serve(request, conversation):
    """Counts one token per word and nine for the template, as the stand-in engines do."""
    asked = msgspec.json.decode(request.body)
    prompt = len(asked["messages"][0]["content"].split()) + TEMPLATE
    usage = b'{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}' % (prompt, asked["max_tokens"])
    if "stream" not in asked:
        await conversation.send(json_response(usage))
        return
    await conversation.send(SSE_HEAD + chunk(token("a")))
    await conversation.send(chunk(token("b", "length") + b"data: " + usage + b"\n\n" + DONE) + LAST_CHUNK)


def request(engine, directory, *, rows=ROWS, **changes):
    source = Replayed(name="t", sha256="0" * 64, requests=columns(rows))
    schedule = make_schedule(source, Part(seed=1, duration_s=100))
    values = {
        "url": engine.url,
        "model": "m",
        "schedule": encode_schedule(schedule),
        "requests": schedule,
        "directory": directory,
        "run_id": "run",
        "command": ["weir", "run"],
    }
    return RunRequest(**(values | changes))


async def test_a_run_leaves_verified_evidence_of_every_request(tmp_path):
    async with running(serve) as engine:
        plan = request(engine, tmp_path / "run")
        assert await run(plan, asyncio.Event()) == tmp_path / "run"
    manifest = record.read_manifest(plan.directory)
    assert record.verify(plan.directory) == []
    assert (manifest.status, manifest.scheduled, manifest.outcomes) == ("complete", 2, {"ok": 2})
    assert (manifest.template_tokens, manifest.run_id, manifest.command) == (TEMPLATE, "run", ["weir", "run"])
    assert manifest.host["event_loop"].startswith("uvloop")
    assert manifest.versions.keys() >= {"python", "uvloop", "weir-llm"}
    assert (plan.directory / record.SCHEDULE).read_bytes() == plan.schedule
    records = sorted(record.read_requests(plan.directory), key=lambda each: each.index)
    assert [each.prompt_tokens for each in records] == [30, 1 + TEMPLATE]
    assert [each.output_tokens for each in records] == [2, 2]
    assert manifest.duration_ns >= max(each.end_ns for each in records)
    assert {chunks.index for chunks in record.read_chunks(plan.directory)} == {0, 1}
    sent = {each.headers["x-request-id"]: each.headers["traceparent"].split("-")[1] for each in engine.requests[1:]}
    assert sent == {each.request_id: each.trace_id for each in records}


async def test_progress_and_the_last_state_are_shown(tmp_path):
    shown = io.StringIO()
    async with running(serve) as engine:
        await run(request(engine, tmp_path), asyncio.Event(), show=shown)
    assert "sent 2/2  in flight 0" in shown.getvalue()


async def test_a_stopped_run_is_sealed_as_interrupted(tmp_path):
    stop = asyncio.Event()

    async def script(received, conversation):
        await serve(received, conversation)
        if len(engine.requests) == 2:
            stop.set()

    async with running(script) as engine:
        rows = [TraceRow(0.0, 30, 2), TraceRow(60.0, 5, 2)]
        await run(request(engine, tmp_path, rows=rows), stop)
    manifest = record.read_manifest(tmp_path)
    assert (manifest.status, manifest.outcomes) == ("interrupted", {"ok": 1, "unsent": 1})
    assert record.verify(tmp_path) == []


async def test_a_halted_run_cancels_what_is_in_flight(tmp_path):
    stop, halt = asyncio.Event(), asyncio.Event()

    async def script(received, conversation):
        if len(engine.requests) == 1:
            await serve(received, conversation)
            return
        stop.set()
        halt.set()
        await conversation.until_left()

    async with running(script) as engine:
        await run(request(engine, tmp_path, grace_s=60.0), stop, halt=halt)
    assert record.read_manifest(tmp_path).outcomes["cancelled"] == 1


@pytest.mark.parametrize(
    ("usage", "warning"),
    [
        (b'{"choices":[]}', "reports no usage"),
        (b'{"usage":{"prompt_tokens":60,"completion_tokens":1}}', "reports 60 tokens for 64 words"),
    ],
)
async def test_an_engine_that_does_not_count_words_is_told_and_gets_whole_prompts(tmp_path, usage, warning):
    async def script(received, conversation):
        if len(engine.requests) == 1:
            await conversation.send(json_response(usage))
        else:
            await serve(received, conversation)

    shown = io.StringIO()
    async with running(script) as engine:
        await run(request(engine, tmp_path), asyncio.Event(), show=shown)
    assert f"warning: the engine {warning}" in shown.getvalue()
    assert record.read_manifest(tmp_path).template_tokens == 0


async def test_a_model_that_is_not_served_is_refused_with_those_that_are(tmp_path):
    async with running(serve) as engine:
        with pytest.raises(RunError, match=r"has no model 'other': it has m$"):
            await run(request(engine, tmp_path / "run", model="other"), asyncio.Event())
    assert not (tmp_path / "run").exists()


async def test_a_target_that_lists_no_models_is_refused(tmp_path):
    async with running(serve) as engine:
        engine._answer_get = lambda path: json_response(b'{"error":{"message":"no key"}}', status=401)
        with pytest.raises(RunError, match="answers GET /v1/models with http 401 no key"):
            await run(request(engine, tmp_path), asyncio.Event())


async def test_a_calibration_that_fails_is_refused(tmp_path):
    async def script(received, conversation):
        await conversation.send(json_response(b'{"error":{"message":"too busy"}}', status=503))

    async with running(script) as engine:
        with pytest.raises(RunError, match="the calibration request failed: http 503 too busy"):
            await run(request(engine, tmp_path), asyncio.Event())


async def test_a_target_that_does_not_answer_in_time_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("loadgen.procedure._CHECK_TIMEOUT_S", 0.05)

    async def script(received, conversation):
        await conversation.until_left()

    async with running(script) as engine:
        with pytest.raises(RunError, match=r"calibration request failed: no answer within 0\.05 s"):
            await run(request(engine, tmp_path), asyncio.Event())


async def test_a_target_that_is_not_there_is_refused(tmp_path, unused_tcp_port):
    async with running(serve) as engine:
        gone = request(engine, tmp_path, url=f"http://127.0.0.1:{unused_tcp_port}")
        with pytest.raises(RunError, match="does not answer GET /v1/models: connect: "):
            await run(gone, asyncio.Event())
        nameless = request(engine, tmp_path, url="http://no-such-host.invalid")
        with pytest.raises(RunError, match=r"no-such-host\.invalid cannot be resolved"):
            await run(nameless, asyncio.Event())


async def tokenizing(received, conversation):
    """Answers `/tokenize` beside what `serve` answers; each word is a token, and so is a line break."""
    if received.path != "/tokenize":
        await serve(received, conversation)
        return
    pieces = re.findall(r"\n|\S+", msgspec.json.decode(received.body)["prompt"])
    tokens = [zlib.crc32(piece.encode()) for piece in pieces]
    await conversation.send(json_response(msgspec.json.encode({"tokens": tokens, "count": len(tokens)})))


async def test_an_engine_is_asked_what_texts_are_made_of(tmp_path):
    async with running(tokenizing) as engine:
        plan = request(engine, tmp_path, rows=(TraceRow(0.0, 500, 2),), tokenize_url=engine.url)
        await run(plan, asyncio.Event())
    (sent,) = record.read_requests(tmp_path)
    assert (sent.outcome, sent.prompt_tokens) == ("ok", 500)
    (asked,) = [each for each in engine.requests if each.headers.get("x-request-id") == sent.request_id]
    words = msgspec.json.decode(asked.body)["messages"][0]["content"].split(" ")
    assert " ".join(words[8:]) in " ".join(read_book())


async def test_a_tokenizer_that_does_not_add_up_is_told_of(tmp_path):
    async def script(received, conversation):
        if received.path == "/tokenize":
            received = replace(received, body=received.body.replace(b"ship at sea", b"shipatsea"))
        await tokenizing(received, conversation)

    shown = io.StringIO()
    async with running(script) as engine:
        await run(request(engine, tmp_path, tokenize_url=engine.url), asyncio.Event(), show=shown)
    assert "warning: words do not add up to texts in this tokenizer" in shown.getvalue()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://no-such-host.invalid", r"no-such-host\.invalid cannot be resolved"),
        (None, "does not say what texts are made of at POST /tokenize: http 404 nothing here"),
    ],
)
async def test_an_engine_that_says_nothing_of_texts_is_refused(tmp_path, url, why):
    async def script(received, conversation):
        await conversation.send(json_response(b'{"error":{"message":"nothing here"}}', status=404))

    async with running(script) as engine:
        with pytest.raises(RunError, match=why):
            await run(request(engine, tmp_path, tokenize_url=url or engine.url), asyncio.Event())


async def test_a_directory_in_use_is_refused_before_anything_is_sent(tmp_path):
    (tmp_path / "note").write_text("mine")
    async with running(serve) as engine:
        with pytest.raises(FileExistsError, match="not empty"):
            await run(request(engine, tmp_path), asyncio.Event())
        assert len(engine.requests) == 1


def test_the_key_is_not_shown(tmp_path):
    plan = request(SimpleNamespace(url="http://h"), tmp_path, api_key="secret")
    assert "secret" not in repr(plan)


async def test_a_warm_up_comes_before_the_run_and_is_no_part_of_it(tmp_path):
    shown = io.StringIO()

    async def script(received, conversation):
        if received.headers.get("x-request-id") == "run-warm-up-0":
            await conversation.send(json_response(b'{"error":{"message":"not yet"}}', status=500))
            return
        await serve(received, conversation)

    async with running(script) as engine:
        await run(request(engine, tmp_path, warm_up=3), asyncio.Event(), show=shown)
    manifest = record.read_manifest(tmp_path)
    assert (manifest.warm_up, manifest.outcomes) == ({"error": 1, "ok": 2}, {"ok": 2})
    sent = [each.headers["x-request-id"] for each in engine.requests if "x-request-id" in each.headers]
    assert sorted(sent[:3]) == [f"run-warm-up-{number}" for number in range(3)]
    assert sorted(sent[3:]) == ["run-0", "run-1"]
    assert {each.request_id for each in record.read_warm_up(tmp_path)} == set(sent[:3])
    assert "warning: of 3 requests of the warm-up, 1 error: see warm-up.jsonl" in shown.getvalue()
    assert record.WARM_UP in manifest.files
    found = read_evidence(tmp_path, [])
    assert ([each.request_id for each in found.requests], found.damage) == (["run-0", "run-1"], ())


async def test_a_warm_up_of_less_than_no_request_is_refused(tmp_path):
    async with running(serve) as engine:
        with pytest.raises(ValueError, match="--warm-up -1: expected a number of requests"):
            await run(request(engine, tmp_path, warm_up=-1), asyncio.Event())
