"""Waiting precisely, for whatever paces itself; imports nothing of ours."""
