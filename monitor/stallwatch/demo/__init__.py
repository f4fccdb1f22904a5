"""Real local jobs that hang on purpose, and a daemon that is not told why."""
