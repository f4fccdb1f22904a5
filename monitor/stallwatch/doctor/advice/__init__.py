"""Advice that harms: what guides recommend against hangs and should not."""
