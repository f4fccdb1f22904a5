"""Runs inside the training interpreter, Python 3.9 or newer: the standard library, torch and stallwatch's hook only."""
