"""What each rank's flight recorder says: entries as operations, over several rounds of dumps, reduced to a summary."""
