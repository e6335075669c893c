"""Runnable experiments: `python -m experiments.<task>`."""
