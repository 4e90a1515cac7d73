"""The command line that the sweep scripts share: build, run and show."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path


class Commands:
    """`run` and `show` are parsers, to which a script adds options of its own."""

    def __init__(self, doc: str | None, library: Path, things: str) -> None:
        self._parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
        self._parser.add_argument(
            "--library", type=Path, default=library, help="what `build` links"
        )
        self._parser.add_argument(
            "--worst", type=int, default=20, help=f"of the {things}, how many to list"
        )
        commands = self._parser.add_subparsers(dest="command", required=True)
        commands.add_parser("build", help="link the kernels of the last `make build`")
        self.run = commands.add_parser("run", help="measure on this GPU")
        self.run.add_argument("--seed", type=int, help="fresh if absent")
        self.run.add_argument("--seconds", type=float, default=600.0, help="stop after as many")
        self.run.add_argument("--output", type=Path, help="write JSON here")
        self.show = commands.add_parser("show", help="judge the choice by a sweep")
        self.add = commands.add_parser  # of more commands, which `execute` is given by name
        self.show.add_argument("--recorded", action="store_true", help="the choices of back then")

    def add_compact(self) -> None:
        small = self.add("compact", help="write some of a sweep's times to a small file, for tests")
        small.add_argument("sweep", type=Path)
        small.add_argument("--output", type=Path, required=True)
        small.add_argument("--records", type=int, default=240)
        small.add_argument("--command-line", required=True, help="that made the sweep")
        small.add_argument("--measured", required=True, help="when: a month")

    def execute(
        self,
        build: Callable[[], Path],
        run: Callable[[argparse.Namespace], None],
        show: Callable[[argparse.Namespace], None],
        **others: Callable[[argparse.Namespace], None],
    ) -> None:
        options = self._parser.parse_args()
        if options.command == "build":
            print(build())
        else:
            {"run": run, "show": show, **others}[options.command](options)
