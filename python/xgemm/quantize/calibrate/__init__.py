"""Quantizing with calibration data: the model's own forward replayed block by block."""
