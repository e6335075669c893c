"""NQ Search."""
