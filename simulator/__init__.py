"""Stand-in engines over one continuous-batching model."""
