"""The load generator: workload, plan, drive, sample, join, analyse, report."""
