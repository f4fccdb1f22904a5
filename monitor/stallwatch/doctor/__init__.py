"""What is misconfigured, before or after a run."""
