"""Remakes tests/golden/llama_cpp_tokens.json: what llama.cpp makes of the texts.

Needs llama-cpp-python, which nothing else here needs:

    python -m tests.golden.make_tokens
"""

import json
import tempfile
from pathlib import Path

import gguf
import llama_cpp

from tests.golden import vocabularies
from tests.golden.cases import FOLDER


def write_vocabulary(path, metadata):
    """Writes a GGUF file that holds a tokenizer and no weights."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(16)
    writer.add_embedding_length(8)
    writer.add_feed_forward_length(8)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in metadata.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_tokens():
    """Writes the ids of every text by every vocabulary, a beginning added where it is usual."""
    ids = {}
    for name, metadata in vocabularies.all_vocabularies().items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "vocabulary.gguf"
            write_vocabulary(path, metadata)
            theirs = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
            ids[name] = [
                theirs.tokenize(text.encode(), add_bos=True, special=True)
                for text in vocabularies.TEXTS
            ]
    golden = {"origin": f"llama-cpp-python {llama_cpp.__version__}", "ids": ids}
    (FOLDER / "llama_cpp_tokens.json").write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    make_tokens()
