"""Decisions: synchronous, values in, values out."""
