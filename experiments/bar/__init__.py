"""The bar: a fixed test of attention that anybody can enter; README.md has its rules."""
