#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes src/data/tokenizer_unicode_ranges.inc: which code points are letters, numbers and marks (Unicode 16).

The classes are asked of the PyPI `tokenizers` library (its regular expressions know Unicode 16), because its ids are the
ones to reproduce. Run it with a Python that has the package, after an upgrade of that library, and look at the difference.
"""
import os

from tokenizers import Regex, pre_tokenizers

TARGET = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src", "data", "tokenizer_unicode_ranges.inc")
CLASSES = [("kLetter", r"\p{L}"), ("kNumber", r"\p{N}"), ("kMark", r"\p{M}"), ("kSpace", r"\s")]
BATCH = 4096


def members(expression):
    """The code points that the expression matches."""
    remove = pre_tokenizers.Split(Regex(expression), "removed")
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    found = set()
    for start in range(0, len(points), BATCH):
        batch = points[start:start + BATCH]
        kept = {ord(c) for piece, _ in remove.pre_tokenize_str("".join(map(chr, batch))) for c in piece}
        found.update(c for c in batch if c not in kept)
    return found


def ranges(points):
    out = []
    for point in sorted(points):
        if out and out[-1][1] == point - 1:
            out[-1][1] = point
        else:
            out.append([point, point])
    return out


def main():
    lines = ["// SPDX-License-Identifier: Apache-2.0",
             "// Made by scripts/make_unicode_classes.py: {class, first, last}, Unicode 16. Do not edit."]
    for name, expression in CLASSES:
        row = ""
        for first, last in ranges(members(expression)):
            item = "{%s, 0x%X, 0x%X}," % (name, first, last)
            if row and len(row) + 1 + len(item) > 120:
                lines.append(row)
                row = ""
            row += (" " if row else "") + item
        lines.append(row)
    with open(TARGET, "w", encoding="ascii") as file:
        file.write("\n".join(lines) + "\n")
    print(len(lines), "lines")


if __name__ == "__main__":
    main()
