"""Names, ports, interfaces and fabric ports: what a rendezvous and NCCL's bootstrap need."""
