"""``python -m lens_diversity``: the command line."""

from lens_diversity.cli import main

if __name__ == "__main__":
    main()
