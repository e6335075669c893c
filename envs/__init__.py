"""Text environments on the host; none of them imports JAX."""
