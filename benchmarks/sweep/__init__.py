"""The parts of benchmarks/sweep_mul.py."""
