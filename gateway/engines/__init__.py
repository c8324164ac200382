"""What each engine kind looks like: paths, metric names, error shapes, quirks."""
