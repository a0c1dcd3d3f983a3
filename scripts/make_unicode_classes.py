#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes src/data/tokenizer_unicode_ranges.inc: the classes of code points that cutting and normalising text depend on.

They are asked of the PyPI `tokenizers` library, because its ids are the ones to reproduce: its regular expressions know
Unicode 16, its normalisation an older one. Run it with a Python that has the package, after an upgrade of that library,
and look at the difference.
"""
import os

from tokenizers import Regex, normalizers, pre_tokenizers

TARGET = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src", "data", "tokenizer_unicode_ranges.inc")
CLASSES = [("kLetter", r"\p{L}"), ("kNumber", r"\p{N}"), ("kMark", r"\p{M}"), ("kSpace", r"\s")]
POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
BATCH = 4096
ACUTE, DOT_BELOW = "\u0301", "\u0323"  # of combining class 230 and 220
COMPOSED = {"e": "\u00e9", "k": "\u1e31", "o": "\u00f3"}  # letters with an acute


def members(expression):
    """The code points that the expression matches."""
    remove = pre_tokenizers.Split(Regex(expression), "removed")
    found = set()
    for start in range(0, len(POINTS), BATCH):
        batch = POINTS[start:start + BATCH]
        kept = {ord(c) for piece, _ in remove.pre_tokenize_str("".join(map(chr, batch))) for c in piece}
        found.update(c for c in batch if c not in kept)
    return found


def combining(nfc):
    """The code points with a combining class other than 0: a mark that is ordered after them passes them."""
    found = set()
    for point in POINTS:
        char = chr(point)
        passes = any(nfc(letter + char) == letter + char and nfc(letter + char + ACUTE).startswith(composed)
                     for letter, composed in COMPOSED.items())
        if passes or nfc(char + DOT_BELOW) == DOT_BELOW + char:
            found.add(point)
    return found


def composing(nfc, nfd):
    """The code points that normalisation changes, and the last parts of those that it composes."""
    found = set()
    for point in POINTS:
        char = chr(point)
        if nfc(char) != char:
            found.add(point)
        elif nfd(char) != char:
            found.add(ord(nfd(char)[-1]))
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
             "// Made by scripts/make_unicode_classes.py: {class, first, last}. Do not edit."]
    classes = [(name, members(expression)) for name, expression in CLASSES]
    nfc, nfd = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str
    classes += [("kCombining", combining(nfc)), ("kMayCompose", composing(nfc, nfd))]
    for name, points in classes:
        row = ""
        for first, last in ranges(points):
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
