# SPDX-License-Identifier: Apache-2.0
"""Fetches one large file of known checksum so that nothing is fetched twice: what arrived lies beside its place as FILE.part, and
the next try goes on behind its last byte, in the same process or after it was killed. Standard library only.

    download(open_url, url, path, sha256)

The checksum is looked at once, at the end. Bytes of an earlier run that turn out wrong are dropped once and the file is fetched
whole. A server that knows no ranges sends the file from its start.
"""
import hashlib
import http.client
import os
import shutil
import ssl
import sys
import time
import urllib.error
import urllib.request

CHUNK = 1 << 18
MAX_TRIES = 8  # in a row that brought nothing new
WAITS_S = (1, 2, 4, 8, 15, 30)
LINE_EVERY_S = 10
MIB = float(1 << 20)


class Fault(Exception):
    """Cannot go on; the text is for the user."""


def say(text):
    print("download: " + text, flush=True)


def size_of(path):
    return os.path.getsize(path) if os.path.exists(path) else 0


def sum_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


class Progress:
    """One line that moves on a terminal; elsewhere a line every ten seconds."""

    def __init__(self, start, total):
        self.start, self.total = start, total
        self.begin = self.shown = time.monotonic()
        self.is_terminal = sys.stdout.isatty()

    def update(self, done):
        now = time.monotonic()
        if now - self.shown < (0.2 if self.is_terminal else LINE_EVERY_S):
            return
        self.shown = now
        rate = (done - self.start) / (now - self.begin)
        text = "%.1f MiB, %.1f MiB/s" % (done / MIB, rate / MIB)
        if self.total:
            text = "%.1f of %.1f MiB (%d %%), %.1f MiB/s, %s left" % (
                done / MIB, self.total / MIB, 100 * done // self.total, rate / MIB, duration((self.total - done) / max(rate, 1)))
        if self.is_terminal:
            print("\r\033[K" + text, end="", flush=True)
        else:
            say(text)

    def clear(self):
        if self.is_terminal:
            print("\r\033[K", end="", flush=True)


def duration(seconds):
    seconds = round(seconds)
    return "%d s" % seconds if seconds < 60 else "%d:%02d min" % divmod(seconds, 60)


def write(out, chunk):
    """A full disk is no broken connection."""
    try:
        out.write(chunk)
        out.flush()
    except OSError as error:
        raise Fault("cannot write %s: %s" % (out.name, error.strerror)) from error


def range_of(response):
    """(first byte, size of the whole file) of a Content-Range header; None for what it does not say."""
    unit, _, rest = (response.headers.get("Content-Range") or "").partition(" ")
    span, _, total = rest.partition("/")
    first = span.partition("-")[0]
    if unit != "bytes":
        return None, None
    return int(first) if first.isdigit() else None, int(total) if total.isdigit() else None


def receive(open_url, url, part):
    """One request for what is missing behind the end of `part`; True where the file is whole then."""
    start = size_of(part)
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity"})
    if start:
        request.add_header("Range", "bytes=%d-" % start)
    try:
        response = open_url(request)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not start:
            raise
        if range_of(error)[1] == start:  # there is nothing behind the last byte
            return True
        os.remove(part)
        return False
    with response:
        first, total = range_of(response)
        if response.status == 206 and first != start:
            raise http.client.HTTPException("the server sent bytes from %s on, asked for those from %d on" % (first, start))
        if response.status != 206:  # no ranges here: the whole file comes
            start, total = 0, int(response.headers["Content-Length"]) if response.headers.get("Content-Length") else None
        progress = Progress(start, total)
        try:
            with open(part, "ab" if start else "wb") as out:
                while chunk := response.read1(CHUNK):  # at once what is there
                    write(out, chunk)
                    progress.update(out.tell())
        finally:
            progress.clear()
    return total is None or size_of(part) == total


def is_final(error):
    """Whether asking again would change nothing."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code < 500 and error.code not in (408, 425, 429)
    return isinstance(getattr(error, "reason", None), ssl.SSLCertVerificationError)


def receive_all(open_url, url, part):
    """Requests until the file is whole; gives up after MAX_TRIES in a row that brought nothing new."""
    tries = furthest = 0
    while True:
        try:
            if receive(open_url, url, part):
                return
            why = "the connection ended early"
        except (OSError, http.client.HTTPException) as error:
            why = str(error) or type(error).__name__
            if is_final(error):
                raise Fault("%s: %s" % (shown(url), error)) from error
        tries = 0 if size_of(part) > furthest else tries + 1
        furthest = max(furthest, size_of(part))
        if tries >= MAX_TRIES:
            raise Fault("%s: %s; given up after %d tries. What arrived is kept: run it again to go on at %.1f MiB."
                        % (shown(url), why, tries, size_of(part) / MIB))
        wait = WAITS_S[min(tries, len(WAITS_S) - 1)]
        say("interrupted at %.1f MiB (%s); going on in %g s" % (size_of(part) / MIB, why, wait))
        time.sleep(wait)


def shown(url):
    """Without what may be secret."""
    return url.partition("?")[0].partition("#")[0]


def download(open_url, url, path, sha256):
    """`path` holds the bytes of this checksum afterwards. open_url(Request) -> response, as urllib's. Errors: Fault."""
    part = path + ".part"
    if os.path.isabs(url):
        shutil.copyfile(url, part)
    else:
        begin, start = time.monotonic(), size_of(part)
        if start:
            say("going on behind the %.1f MiB that are there" % (start / MIB))
        receive_all(open_url, url, part)
        if start and sum_of(part) != sha256:
            say("what an earlier run left does not fit; fetching the whole file")
            os.remove(part)
            start = 0
            receive_all(open_url, url, part)
        say("%.1f MiB in %s" % ((size_of(part) - start) / MIB, duration(time.monotonic() - begin)))
    got = sum_of(part)
    if got != sha256:
        os.remove(part)
        raise Fault("%s has the sha256 sum %s, expected %s. It was deleted." % (shown(url), got, sha256))
    os.replace(part, path)
