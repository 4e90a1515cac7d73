"""`python -m xgemm.cli`, where the console script is not on the PATH."""

from xgemm.cli import main

main()
