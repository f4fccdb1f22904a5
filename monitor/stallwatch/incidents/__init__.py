"""The life of an incident, who is told when, and the store on disk."""
