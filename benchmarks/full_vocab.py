"""The tables of `lens-diversity bench`, from a checkout.

python -m benchmarks.full_vocab [squared] [softmax] [forward] [growth] [--shape llama3] ...
"""

import sys

from lens_diversity.cli import app

if __name__ == "__main__":
    app(["bench", *sys.argv[1:]])
