"""Runnable experiments: `python -m experiments.<task>`."""

import os

# Only tokenizers are used of transformers; that it finds no PyTorch is no news to anyone here.
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
