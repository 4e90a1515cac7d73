"""The command `xgemm`. Needs the extra: pip install 'xgemm[cli]'."""

from __future__ import annotations

import sys

EXIT_FAILURE = 1  # the command ran and failed; 130 is an interrupt
EXIT_USAGE = 2
# The least extra that has a package; the demo's has all.
EXTRAS = {"matplotlib": "bench", "safetensors": "hf", "transformers": "hf", "accelerate": "hf"}


def main() -> None:
    """The console script: errors in one line, unless --debug stands anywhere before a `--`."""
    arguments, debug = _take_debug(sys.argv[1:])
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError as error:
        print(
            f"xgemm: the command line needs {error.name}: pip install 'xgemm[cli]'", file=sys.stderr
        )
        sys.exit(EXIT_FAILURE)
    from xgemm.cli.app import app

    try:
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


def _take_debug(arguments: list[str]) -> tuple[list[str], bool]:
    end = arguments.index("--") if "--" in arguments else len(arguments)
    kept = [argument for argument in arguments[:end] if argument != "--debug"]
    return kept + arguments[end:], len(kept) < end


def _one_line(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        extra = EXTRAS.get(package, "demo")
        return f"this command needs {package}, which is not installed: pip install 'xgemm[{extra}]'"
    message = getattr(error, "format_message", error.__str__)()
    text = " ".join(message.split())
    return text or type(error).__name__
