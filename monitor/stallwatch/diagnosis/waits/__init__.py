"""Who waits for whom: the wait-for graph over all groups and transfers, its roots and its replay."""
