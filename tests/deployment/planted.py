"""Whether rows of a site's file have come out anywhere."""

import re


def rows_in(files, table):
    """Files that hold three neighbouring cells of a row of a csv table, however they are set."""
    rows = [line.split(",") for line in table.decode("ascii").splitlines()[1:]]
    found = "|".join(r"\D{1,4}".join(map(re.escape, row[:3])) for row in rows)
    pattern = re.compile(rf"(?<![\d.])(?:{found})(?![\d.])".encode())
    return [str(path) for path in files if pattern.search(path.read_bytes())]
