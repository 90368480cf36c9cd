"""Compares attention, training and decoding with other libraries, and times the runner.

Each benchmark is a folder with a `command.py`, or a file of `runner/`, that has a
`Benchmark`; `__main__` lists them. `README.md` says what each measures.
"""
