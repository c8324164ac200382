"""Definitions and statistics over finished records: pure functions."""
