"""Where things lie: banks of shared memory, swizzles, orders of tiles, and the algebra of layouts.

`xgemm layout NAME` prints them. Everything here is integers; nothing needs a GPU.
"""
