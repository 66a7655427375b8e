"""``python -m pulsark`` is the command line."""

from pulsark.cli import main

if __name__ == "__main__":
    main()
