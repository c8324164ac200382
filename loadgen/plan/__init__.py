"""Traffic becomes schedules, and schedules experiments: all of it is written down before anything is sent."""
