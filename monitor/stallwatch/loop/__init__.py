"""Parts of the daemon's loop that are not thinking: its clock, its children, its files, its desk. See daemon.py."""
