"""Key/value cache, extend, and the decode loop."""
