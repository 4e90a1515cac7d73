"""`python -m xgemm`, where the console script is not on the PATH."""


def main() -> None:
    from xgemm.cli import main as command  # which may say that an extra is missing

    command()


main()
