"""Where the stand-ins answer otherwise than the engines they stand in for, and why that is left so."""

_PROBABILITIES = "none are given: the text of a stand-in is drawn, not computed"

KNOWN: dict[tuple[str, str], str] = {
    **{
        (kind, f"chat{stream}, log probabilities"): _PROBABILITIES
        for kind in ("vllm", "sglang")
        for stream in ("", " stream")
    },
    ("sglang", "loads"): "no running totals of prefill and decode; names the accelerator, which a CPU has not",
    ("sglang", "model information"): "only what gateways read of it",
    ("sglang", "JSON of another type"): "a 400; SGLang fails inside, answers 500 and resets the connection later",
}
"""Reason by kind and probe."""

FROM_THE_FIRST_EVENT = {"sglang:num_retracted_requests_total"}
"""Series that the real engine shows only once there was something to count; a stand-in shows them at 0."""
