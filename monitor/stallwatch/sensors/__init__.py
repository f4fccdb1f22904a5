"""One file per source of facts; each reads the outside once a tick, in a child with a deadline."""
