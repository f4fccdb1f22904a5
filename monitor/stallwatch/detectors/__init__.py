"""Pure functions from snapshots to findings: symptoms, not causes."""
