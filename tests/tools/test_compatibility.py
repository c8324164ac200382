import pytest

from tools import compatibility
from tools.compatibility import Client, Clients, Contract, Verdict


def test_the_page_is_what_its_data_says() -> None:
    page = compatibility.PAGE.read_text(encoding="utf-8")
    assert compatibility.render(page) == page, "run: python -m tools.compatibility"


def test_what_differs_is_numbered_and_explained_once() -> None:
    data = Contract(
        date="2026-12-01",
        rows={
            "chat": {"vllm 1": "same", "vllm stand-in": "no dice"},
            "loads": {"vllm stand-in": "no dice", "sglang stand-in": "too short"},
        },
    )
    assert compatibility.contract_table(data) == [
        "As of 2026-12-01.",
        "",
        "|  | vllm 1 | vllm stand-in | sglang stand-in |",
        "| --- | --- | --- | --- |",
        "| chat | ✓ | differs (1) | – |",
        "| loads | – | differs (1) | differs (2) |",
        "",
        "1. no dice.",
        "2. too short.",
    ]


def test_a_client_has_a_verdict_for_each_engine_it_met() -> None:
    data = Clients(
        date="2026-12-01",
        clients=[
            Client(name="a", version="1", what="asks", engines={"vllm": Verdict(result="pass")}),
            Client(name="b", version="2", what="begs", engines={"sglang": Verdict(result="fail", note="no answer")}),
        ],
    )
    assert compatibility.clients_table(data)[2:] == [
        "| client | what it does | vllm | sglang |",
        "| --- | --- | --- | --- |",
        "| a 1 | asks | pass | – |",
        "| b 2 | begs | – | fail: no answer |",
    ]


def test_a_page_without_a_place_for_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="no <!-- contract -->"):
        compatibility.render("# Compatibility\n")
