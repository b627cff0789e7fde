"""``python -m manifed`` is the command ``manifed``."""

from manifed.cli.main import main

if __name__ == "__main__":
    main()
