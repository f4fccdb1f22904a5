"""`python -m stallwatch.run train.py`: attach without an edit."""
