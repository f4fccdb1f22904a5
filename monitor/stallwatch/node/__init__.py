"""How this node's files are read: /proc, hook records, files that other users wrote. Shared by sensors and captures;
reads and parses, decides nothing."""
