"""Shared fixtures. Helpers that several tests need live in modules beside them, not here."""
