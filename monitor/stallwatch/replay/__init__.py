"""The past once more: recorded snapshots through detection and incidents, as the daemon would have taken them."""
