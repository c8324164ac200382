"""Side-by-side measurements of the gateway's data plane against its peers; results are kept as data."""
