"""`python -m kl_proteus` is the command `kl-proteus`."""

import sys

from kl_proteus.cli import main

if __name__ == "__main__":
    sys.exit(main())
