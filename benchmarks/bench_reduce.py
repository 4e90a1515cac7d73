"""Times reduce against its peers: a table, JSON and a plot; `--help` lists the options.

The same as `xgemm bench reduce`; how it is timed is in python/xgemm/bench.
"""

import sys

from xgemm.cli import main

if __name__ == "__main__":
    sys.argv[1:] = ["bench", "reduce", *sys.argv[1:]]
    main()
