"""What weights look like outside the kernels: canonical, packed, and on disk."""
