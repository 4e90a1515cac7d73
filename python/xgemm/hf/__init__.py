"""Models of the Hugging Face ecosystem on xgemm's kernels. Needs the extra: pip install xgemm[hf]."""
