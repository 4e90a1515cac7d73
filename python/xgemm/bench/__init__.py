"""Benchmarks against torch: `xgemm bench`, and the scripts in benchmarks/. They assert nothing."""
