"""The formats all packages speak; imports nothing of theirs."""
