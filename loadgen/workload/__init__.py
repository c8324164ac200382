"""Descriptions of traffic: traces, fits, arrivals, lengths and prompts."""
