"""Who called what: streams aligned across ranks, sequences of calls, counts that drift apart."""
