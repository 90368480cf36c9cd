"""Measures trained models: perplexity, translations and their scores, attention, heads."""
