"""Multi-turn episodes over text environments."""
