"""Unmodified clients, each from an environment of its own, with nothing but the gateway's URL."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from asyncio.subprocess import PIPE
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.gateway.conftest import StartGateway
from tests.real.clients.conftest import note
from tests.real.conftest import ROUTES, pool_of, until_idle
from tools.clients import install
from tools.engines.launch import MODEL_NAME, RunningEngine

pytestmark = pytest.mark.timeout(300)

SCRIPTS = Path(__file__).parent / "scripts"

_ONE_LOOP = ("-o", "asyncio_mode=auto", "-o", "asyncio_default_test_loop_scope=session")
"""langchain-openai keeps one HTTP client for all tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One client; `known` has, by kind and check, why a check fails that is not the gateway's to pass."""

    name: str
    package: str
    environment: str
    script: str
    what: str
    known: dict[tuple[str, str], str] = field(default_factory=dict)


CLIENTS = (
    Client(
        name="OpenAI SDK",
        package="openai",
        environment="sdk",
        script="openai_sdk.py",
        what="chat, completions, responses, streams, usage, log probabilities, errors, models, leaving, timeout",
    ),
    Client(
        name="Anthropic SDK",
        package="anthropic",
        environment="sdk",
        script="anthropic_sdk.py",
        what="messages, streams, token count, errors, leaving",
    ),
    Client(
        name="langchain-openai",
        package="langchain-openai",
        environment="sdk",
        script="langchain_openai_chat.py",
        what="invoke, stream, batch, usage, errors",
    ),
    Client(
        name="pydantic-ai",
        package="pydantic-ai-slim",
        environment="sdk",
        script="pydantic_agent.py",
        what="agent runs, streams, errors",
    ),
    Client(
        name="LiteLLM SDK",
        package="litellm",
        environment="litellm",
        script="litellm_sdk.py",
        what="completion, streams, errors",
    ),
    Client(
        name="Vercel ai",
        package="ai",
        environment="vercel",
        script="vercel_ai.mjs",
        what="generateText, streamText, usage, errors",
    ),
)


async def run(command: list[str], cwd: Path, **environment: str) -> str:
    """What the command prints; its errors where it fails."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    process = await asyncio.create_subprocess_exec(
        *command, stdout=PIPE, stderr=PIPE, cwd=cwd, env={**clean, "DO_NOT_TRACK": "1", **environment}
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()[-3000:]
    return output.decode()


async def version_of(environment: str, package: str) -> str:
    place = install.place(environment)
    if environment == "vercel":
        return str(json.loads((place / "node_modules" / package / "package.json").read_text())["version"])
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return (await run([*install.program(environment), "-c", code], place)).strip()


def needs(environment: str) -> None:
    if not install.installed(environment):
        pytest.skip(f"not installed: python -m tools.clients {environment}")


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.environment + "-" + client.package)
async def test_a_client_works_as_with_its_own_service(
    engine: RunningEngine, start_gateway: StartGateway, client: Client, request: pytest.FixtureRequest
) -> None:
    needs(client.environment)
    command = [*install.program(client.environment), str(SCRIPTS / client.script)]
    async with start_gateway([engine.url], pool=pool_of(engine), routes=ROUTES) as gateway:
        output = await run([*command, gateway.url, MODEL_NAME], install.place(client.environment))
        await until_idle(engine)
    lines = [json.loads(line) for line in output.splitlines() if line.startswith('{"check"')]
    known = {check: why for (kind, check), why in client.known.items() if kind == engine.kind}
    failed = {line["check"]: line["note"] for line in lines if not line["ok"]}
    note(
        request.config,
        engine,
        name=client.name,
        version=await version_of(client.environment, client.package),
        what=client.what,
        passed=len(lines) - len(failed),
        failed={check: known.get(check, text) for check, text in failed.items()},
    )
    assert lines
    assert failed.keys() == known.keys(), failed


async def test_the_standard_suite_of_langchain(
    engine: RunningEngine, start_gateway: StartGateway, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    needs("sdk")
    report = tmp_path / "report.xml"
    # Away from this project's settings for pytest.
    suite = shutil.copy(SCRIPTS / "langchain_standard.py", tmp_path)
    async with start_gateway([engine.url], pool=pool_of(engine), routes=ROUTES) as gateway:
        python = install.program("sdk")
        # Its status says whether any failed; the report says which.
        pytest_command = [*python, "-m", "pytest", "-q", *_ONE_LOOP, suite, f"--junitxml={report}"]
        command = ["sh", "-c", '"$@" || true', "sh", *pytest_command]
        output = await run(command, tmp_path, WEIR_URL=gateway.url, WEIR_MODEL=MODEL_NAME)
        await until_idle(engine, within_s=60)
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = {
        case.attrib["name"]: str(problem.attrib.get("message"))[:200]
        for case in cases
        for problem in case
        if problem.tag in ("failure", "error")
    }
    skipped = sum(problem.tag == "skipped" for case in cases for problem in case)
    note(
        request.config,
        engine,
        name="langchain-tests",
        version=await version_of("sdk", "langchain-tests"),
        what="the standard suite for chat models, but what needs tools or structured output",
        passed=len(cases) - len(failed) - skipped,
        failed=failed,
        more=f"{skipped} skipped",
    )
    assert len(cases) > 20, output[-2000:]
    assert failed == {}
