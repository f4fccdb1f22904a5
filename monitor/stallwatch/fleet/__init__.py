"""Beyond one node: summaries that other nodes merge."""
