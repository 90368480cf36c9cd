"""Compiles for TPUs and GPUs that are not there, and reads what the compilers say."""
