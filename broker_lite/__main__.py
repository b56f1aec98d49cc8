"""``python -m broker_lite`` runs the ``logbus`` command, for hosts where it is not on PATH."""

from broker_lite.cli.main import main

if __name__ == "__main__":
    main()
