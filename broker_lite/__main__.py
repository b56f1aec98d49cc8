"""``python -m broker_lite`` is the ``logbus`` command, also where no script is on the PATH."""

from broker_lite.cli.main import main

if __name__ == "__main__":
    main()
