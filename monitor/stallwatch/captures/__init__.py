"""Evidence on demand, taken by children with deadlines and written to the incident bundle."""
