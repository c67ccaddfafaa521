"""`pronto`, which `python -m prontosched` is too."""

import signal


def main() -> None:
    """Run the command line; Ctrl-C while it is being imported ends the process without a word."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from prontosched.cli import main as command_line

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command_line()


if __name__ == "__main__":
    main()
