"""Metrics, records and logs of the gateway."""
