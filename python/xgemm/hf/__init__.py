"""Hugging Face models on xgemm's kernels. Needs the extra: pip install 'xgemm[hf]'."""
