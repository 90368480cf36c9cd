"""The parts that every benchmark uses: processes, turns, tables and records.

Nothing here knows a benchmark, and nothing here imports a library that is compared.
"""
