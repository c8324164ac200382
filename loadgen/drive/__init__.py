"""Sends a schedule and keeps the raw marks."""
