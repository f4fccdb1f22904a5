"""Where people see it: metrics, page, API, Slack, log. Each has its own queue and deadline."""
