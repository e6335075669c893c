"""Train state, update, loop, checkpoints and metrics."""
