"""The standard suite of langchain-tests for chat models, as far as a model of random weights goes; run by pytest."""

import os
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests


class TestThroughTheGateway(ChatModelIntegrationTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "base_url": os.environ["WEIR_URL"] + "/v1",
            "api_key": "none",
            "model": os.environ["WEIR_MODEL"],
            "temperature": 0,
            "max_tokens": 16,
            "stream_usage": True,
        }

    # What needs a model that can follow an instruction.
    has_tool_calling = False
    has_tool_choice = False
    has_structured_output = False
    supports_json_mode = False
