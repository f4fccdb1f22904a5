"""The incident bundle on disk: written by the daemon, read by `stallwatch analyze`."""
