"""What every workload does first: read --seconds, say `ready`, give the deadline."""

import argparse
import time


def arguments(doc):
    """The parser that all workloads start from."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument(
        "--seconds", type=float, default=3600.0, help="end after so long (default: an hour)"
    )
    return parser


def ready():
    """Tell whoever started this program that it is running."""
    print("ready", flush=True)


def start(doc):
    """Parse the arguments, say that the program runs; the time.monotonic() to end at."""
    seconds = arguments(doc).parse_args().seconds
    ready()
    return time.monotonic() + seconds
