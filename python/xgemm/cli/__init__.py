"""The command `xgemm`. Needs the extra `cli`: typer and rich."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TextIO

EXIT_FAILURE = 1  # the command ran and failed; 130 is an interrupt
EXIT_USAGE = 2
MOST_CHARACTERS = 4000  # of an error's line: a name in a file may be as long as the file
# What a command needs beside a package that is missing. The packages are named, not xgemm's extras:
# those can be asked for only where xgemm itself can be fetched from, which a checkout does not say.
TOGETHER = {
    "typer": "typer rich",
    "rich": "typer rich",
    **dict.fromkeys(
        ("transformers", "accelerate", "safetensors"), "transformers accelerate safetensors"
    ),
}


def main() -> None:
    """The console script: errors in one line, unless --debug stands anywhere before a `--`."""
    arguments, debug = _take_debug(sys.argv[1:])
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError as error:
        print(
            f"xgemm: the command line needs {error.name}, which is not installed:"
            f" {_install(error.name)}",
            file=sys.stderr,
        )
        sys.exit(EXIT_FAILURE)
    from xgemm.cli.app import app

    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            code = app(args=arguments, prog_name="xgemm", standalone_mode=False)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if debug:
            raise
        usage = hasattr(error, "format_message")  # how click marks an error in the arguments
        hint = "see --help" if usage else "--debug shows where"
        print(f"xgemm: {_one_line(error)} ({hint})", file=sys.stderr)
        sys.exit(EXIT_USAGE if usage else EXIT_FAILURE)
    sys.exit(code if isinstance(code, int) else 0)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """As Python shows it, but for control characters: what a file says is in some warnings."""
    from xgemm.quoting import printable

    text = warnings.formatwarning(message, category, filename, lineno, line)
    print(printable(text), file=file or sys.stderr, end="")


def _take_debug(arguments: list[str]) -> tuple[list[str], bool]:
    end = arguments.index("--") if "--" in arguments else len(arguments)
    kept = [argument for argument in arguments[:end] if argument != "--debug"]
    return kept + arguments[end:], len(kept) < end


def _install(package: str | None) -> str:
    """The command that brings a missing package, into this very Python."""
    return f"{Path(sys.executable).name} -m pip install {TOGETHER.get(package or '', package)}"


def _one_line(error: Exception) -> str:
    from xgemm.quoting import printable

    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        return f"this command needs {package}, which is not installed: {_install(package)}"
    message = getattr(error, "format_message", error.__str__)()
    text = printable(" ".join(message.split())[: MOST_CHARACTERS + 1])
    if len(text) > MOST_CHARACTERS:
        text = text[:MOST_CHARACTERS] + "..."
    return text or type(error).__name__
