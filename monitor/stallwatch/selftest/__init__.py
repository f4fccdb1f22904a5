"""Which collective works, which does not, and what makes it pass."""
