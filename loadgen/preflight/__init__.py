"""Checks before a run: is the engine what its configuration says, and is a command line one that the engine knows."""
