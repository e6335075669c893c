"""Freshness-aware prioritized replay."""
