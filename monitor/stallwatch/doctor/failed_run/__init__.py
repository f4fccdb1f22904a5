"""A run that failed: first cause in its logs, and the decision tree from incidents."""
