"""The parts that every benchmark uses: processes, turns, tables and records."""
