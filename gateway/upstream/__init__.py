"""The streaming client to engines and its connection reuse."""
