"""Training scripts, read by their syntax tree: what makes ranks part, or wait for each other. Few and sure findings."""
