"""Freshness-aware prioritized experience replay for LLM and VLM agents, in JAX."""
