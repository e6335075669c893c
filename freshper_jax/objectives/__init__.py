"""Advantages, policy losses and off-policy corrections."""
