"""Examples from the documentation, whole."""
