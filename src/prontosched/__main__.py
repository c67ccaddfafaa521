"""`python -m prontosched` is `pronto`."""

from prontosched.cli import main

if __name__ == "__main__":
    main()
