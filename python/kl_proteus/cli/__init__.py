"""The command `kl-proteus`.

Nothing here imports gymnasium before a command needs it, so that `--help` answers at once.
"""

from collections.abc import Sequence

from kl_proteus.cli import streams
from kl_proteus.cli.failures import CommandError, Interrupted

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        argv: The arguments after the command's name; None takes them from `sys.argv`.

    Returns:
        The exit status: 0 done, 1 failed, 2 called wrongly, 130 interrupted.
    """
    try:
        # Ctrl-C may come at any time, so little is imported outside.
        from kl_proteus.cli import parser

        streams.check_output()
        options = parser.parse(argv)
        # `parse` answers --help, --version and wrong usage by itself.
        if isinstance(options, int):
            streams.write("")
            return options
        from kl_proteus.cli.options import CollectOptions

        if isinstance(options, CollectOptions):
            from kl_proteus.cli import collect

            return collect.run(options)
        from kl_proteus.cli import score

        return score.run(options)
    except CommandError as error:
        streams.complain(error)
        return error.status
    except KeyboardInterrupt:
        interrupted = Interrupted("interrupted")
        streams.complain(interrupted)
        return interrupted.status
