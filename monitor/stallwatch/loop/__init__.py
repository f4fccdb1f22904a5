"""Parts of the daemon's loop that are not thinking: its clock, its children, its files, its control
service. See daemon.py."""
