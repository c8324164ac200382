"""The engine kinds, as the configuration names them and the engines' own routes have them."""

from __future__ import annotations

from typing import get_args

from gateway.config import PoolConfig
from gateway.engines.kinds import ENGINES


def test_every_kind_that_a_pool_may_name_exists_and_no_other() -> None:
    assert set(get_args(PoolConfig.model_fields["engine"].annotation)) == ENGINES.keys()
    assert all(name == kind.name for name, kind in ENGINES.items())


def test_health_is_asked_where_each_engine_answers_at_once() -> None:
    assert {name: kind.health_path for name, kind in ENGINES.items()} == {
        "vllm": "/health",
        "sglang": "/ready",
        "openai": "/v1/models",
    }
