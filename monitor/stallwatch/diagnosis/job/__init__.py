"""The job as a whole: its members, its process groups, its pace, and what nothing tells of it."""
