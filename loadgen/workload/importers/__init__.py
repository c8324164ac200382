"""One module for each family of request logs; `loadgen.workload.traces` chooses among them."""
