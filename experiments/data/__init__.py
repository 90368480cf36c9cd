"""Text on its way to batches: corpora, the vocabulary, packing and batches."""
