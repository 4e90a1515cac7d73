"""The ladders: kernels from the plainest to the product's, one optimisation step a rung.

`xgemm ladder NAME` checks and times them; docs/ladders has a page for each. Nothing here is loaded
by `import xgemm`: the kernels lie in a library of their own, `_ladder.abi3.so`.
"""
