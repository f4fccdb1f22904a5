"""How a verdict is told: its sentence, its next steps, the merged tree of stacks."""
