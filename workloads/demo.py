"""A small order desk: reads text and JSON, searches, sorts, plans. Each job takes a
different road through Python and C, so its flame graph has something to show."""

import heapq
import json
import random
import re
import time

import common

LOG_LINE = re.compile(r"(?P<day>\d{4}-\d\d-\d\d) (?P<user>\w+)@(?P<host>[\w.]+) order=(?P<order>\d+)")
WORDS = "amber birch cedar daisy ember fern grove hazel iris juniper kelp lilac".split()


def make_log(rnd, lines):
    """Text as a web server would write it."""
    return "\n".join(
        f"2026-{rnd.randint(1, 12):02}-{rnd.randint(1, 28):02} {rnd.choice(WORDS)}@"
        f"{rnd.choice(WORDS)}.example order={rnd.randint(1, 9999)} total={rnd.random():.3f}"
        for _ in range(lines)
    )


def parse_log(text):
    """Orders by user."""
    orders = {}
    for match in LOG_LINE.finditer(text):
        orders.setdefault(match["user"], []).append(int(match["order"]))
    return orders


def round_trip(orders):
    """Through JSON and back, as between two services."""
    document = {"orders": [{"user": user, "ids": ids} for user, ids in orders.items()]}
    return json.loads(json.dumps(document, indent=1))


class Desk:
    """Holds orders and answers questions about them."""

    def __init__(self, document):
        self.rows = [(row["user"], number) for row in document["orders"] for number in row["ids"]]

    @staticmethod
    def rank(row):
        """Sort key: big orders first, then by name."""
        user, number = row
        return -(number % 97), user

    def best(self):
        return sorted(self.rows, key=self.rank)[:10]

    def totals(self):
        totals = {}
        for user, number in self.rows:
            totals[user] = totals.get(user, 0) + number
        return totals


def distance(left, right):
    """Edit distance by plain recursion over prefixes."""
    if not left or not right:
        return len(left) + len(right)
    if left[-1] == right[-1]:
        return distance(left[:-1], right[:-1])
    return 1 + min(
        distance(left[:-1], right), distance(left, right[:-1]), distance(left[:-1], right[:-1])
    )


def nearest_word(word):
    return min(WORDS, key=lambda other: distance(word, other[:5]))


def shortest_route(rnd, size):
    """Dijkstra over a grid of random costs."""
    costs = [[rnd.random() for _ in range(size)] for _ in range(size)]
    queue, seen = [(0.0, 0, 0)], set()
    while queue:
        cost, row, column = heapq.heappop(queue)
        if (row, column) == (size - 1, size - 1):
            return cost
        if (row, column) in seen:
            continue
        seen.add((row, column))
        for near_row, near_column in ((row + 1, column), (row, column + 1), (row - 1, column)):
            if 0 <= near_row < size and near_column < size:
                heapq.heappush(queue, (cost + costs[near_row][near_column], near_row, near_column))
    return None


def handle_requests(rnd, log):
    """One round of everything."""
    document = round_trip(parse_log(log))
    desk = Desk(document)
    desk.best()
    desk.totals()
    nearest_word("hazle")
    shortest_route(rnd, 40)


def main():
    deadline = common.start(__doc__)
    rnd = random.Random(1)
    log = make_log(rnd, 2000)
    while time.monotonic() < deadline:
        handle_requests(rnd, log)


if __name__ == "__main__":
    main()
