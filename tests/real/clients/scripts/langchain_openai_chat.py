"""ChatOpenAI of langchain-openai: langchain_openai_chat.py BASE_URL MODEL"""

import sys

from checks import TOKENS, refused, run
from langchain_openai import ChatOpenAI

url, model = sys.argv[1:]
llm = ChatOpenAI(
    base_url=f"{url}/v1",
    api_key="none",
    model=model,
    temperature=0,
    max_tokens=TOKENS,
    max_retries=0,
    stream_usage=True,
)
QUESTION = "Tell me of rivers."


def invoke() -> None:
    answer = llm.invoke(QUESTION)
    assert answer.content
    assert answer.usage_metadata["output_tokens"] <= TOKENS


def stream_equals_whole() -> None:
    chunks = list(llm.stream(QUESTION))
    assert "".join(chunk.content for chunk in chunks) == llm.invoke(QUESTION).content
    assert any(chunk.usage_metadata for chunk in chunks)


def batch() -> None:
    assert all(answer.content for answer in llm.batch([QUESTION, "And of lakes?"]))


def unknown_model() -> None:
    refused(
        lambda: ChatOpenAI(base_url=f"{url}/v1", api_key="none", model="gpt-9", max_retries=0).invoke(QUESTION),
        Exception,
        "gpt-9",
    )


run([invoke, stream_equals_whole, batch, unknown_model])
