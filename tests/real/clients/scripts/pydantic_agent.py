"""pydantic-ai on its OpenAI provider: pydantic_agent.py BASE_URL MODEL"""

import asyncio
import sys

from checks import TOKENS, refused, run
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

url, model = sys.argv[1:]
provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
agent = Agent(OpenAIChatModel(model, provider=provider), model_settings={"max_tokens": TOKENS, "temperature": 0})
QUESTION = "Tell me of rivers."


def run_sync() -> None:
    answer = agent.run_sync(QUESTION)
    assert answer.output
    assert answer.usage.output_tokens <= TOKENS


def stream_equals_whole() -> None:
    async def streamed() -> str:
        async with agent.run_stream(QUESTION) as answer:
            return await answer.get_output()

    assert asyncio.run(streamed()) == agent.run_sync(QUESTION).output


def unknown_model() -> None:
    refused(lambda: Agent(OpenAIChatModel("gpt-9", provider=provider)).run_sync(QUESTION), Exception, "gpt-9")


run([run_sync, stream_equals_whole, unknown_model])
