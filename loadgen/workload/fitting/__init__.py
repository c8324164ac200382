"""How each part of a description is found in a log; `loadgen.workload.fit` puts the parts together."""
