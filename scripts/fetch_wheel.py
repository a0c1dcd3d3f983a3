#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fetches one file of the package index that pip is set up for, without installing anything; an interrupted run is continued.

    scripts/fetch_wheel.py [--pip PYTHON] NAME FILE SHA256 FOLDER

NAME is the distribution, FILE the exact name of its file. pip itself is asked where to look (PYTHON -m pip: its configuration
files, PIP_INDEX_URL and the rest of its environment): find-links first, then index-url and extra-index-url. Proxies come from the
environment or pip's setting, credentials from the index's address or ~/.netrc, certificates from pip's cert. Standard library only.
"""
import argparse
import ast
import base64
import html.parser
import http.client
import json
import netrc
import os
import re
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import download  # noqa: E402
from download import Fault  # noqa: E402

TIMEOUT_S = 60  # of one connection or read
PAGE_TRIES = 4


class Settings:
    """pip's own, as far as they say where files are and how to reach them."""

    def __init__(self, python):
        values = {}
        for line in self._ask(python, "config", "list").splitlines():
            key, _, value = line.partition("=")
            section, _, name = key.rpartition(".")
            if section in ("global", "download", ":env:"):
                values.setdefault(name, {})[section] = str(ast.literal_eval(value))

        def get(name):
            sections = values.get(name, {})
            return sections.get(":env:") or sections.get("download") or sections.get("global") or ""
        self.find_links = get("find-links").split()
        self.indexes = []
        if get("no-index").lower() not in ("1", "true", "yes", "on"):
            self.indexes = [get("index-url") or self._default_index(python)] + get("extra-index-url").split()
        self.cert = get("cert") or os.environ.get("REQUESTS_CA_BUNDLE") or None
        self.proxy = get("proxy")
        self.trusted_hosts = get("trusted-host").split()

    @staticmethod
    def _ask(python, *arguments):
        # Wide, so that no address is broken in two.
        done = subprocess.run([python, "-m", "pip", *arguments], env={**os.environ, "COLUMNS": "1000"}, capture_output=True, text=True,
                              check=False)
        if done.returncode:
            raise Fault("%s -m pip %s failed: %s" % (python, " ".join(arguments), done.stderr.strip()))
        return done.stdout

    def _default_index(self, python):
        found = re.search(r"--index-url <url>[^(]*\(default (\S+?)\)", self._ask(python, "download", "--help"))
        if not found:
            raise Fault("pip names no index. Set PIP_INDEX_URL.")
        return found[1]


class Web:
    """open(Request) with pip's proxy, certificates and credentials."""

    def __init__(self, settings):
        proxies = {"http": settings.proxy, "https": settings.proxy} if settings.proxy else None
        self._verified = self._opener(proxies, ssl.create_default_context(cafile=settings.cert))
        # What pip is told to trust unseen; checksums are compared in any case.
        self._trusting = self._opener(proxies, ssl._create_unverified_context())
        self._trusted_hosts = settings.trusted_hosts
        self._credentials = {}  # host with port -> user, password

    @staticmethod
    def _opener(proxies, context):
        return urllib.request.build_opener(urllib.request.ProxyHandler(proxies), urllib.request.HTTPSHandler(context=context))

    def without_credentials(self, url):
        """The address alone; user and password are kept for its host."""
        parts = urlsplit(url)
        login, at, host = parts.netloc.rpartition("@")
        if at:
            user, _, password = login.partition(":")
            self._credentials[host] = (unquote(user), unquote(password))
        return urlunsplit(parts._replace(netloc=host))

    def _login(self, host, hostname):
        if host in self._credentials:
            return self._credentials[host]
        try:
            found = netrc.netrc(os.environ.get("NETRC")).authenticators(hostname)
        except (OSError, netrc.NetrcParseError):
            return None
        return (found[0], found[2]) if found else None

    def open(self, request):
        parts = urlsplit(request.full_url)
        login = self._login(parts.netloc, parts.hostname)
        if login:  # not for whom the server redirects to
            token = base64.b64encode(":".join(login).encode()).decode()
            request.add_unredirected_header("Authorization", "Basic " + token)
        is_trusted = parts.netloc in self._trusted_hosts or parts.hostname in self._trusted_hosts
        return (self._trusting if is_trusted else self._verified).open(request, timeout=TIMEOUT_S)


class Anchors(html.parser.HTMLParser):
    """Addresses of a page's links."""

    def __init__(self):
        super().__init__()
        self.base, self.addresses = "", []

    def handle_starttag(self, tag, attrs):
        address = dict(attrs).get("href")
        if address and tag == "base":
            self.base = address
        elif address and tag == "a":
            self.addresses.append(address)


def links_of_html(text, url):
    """(file name, address, sha256 or "") of every link."""
    page = Anchors()
    page.feed(text)
    for address in page.addresses:
        address = urljoin(urljoin(url, page.base), address)
        parts = urlsplit(address)
        sha256 = re.search(r"sha256=([0-9a-f]{64})", parts.fragment)
        yield unquote(parts.path).rpartition("/")[2], urlunsplit(parts._replace(fragment="")), sha256[1] if sha256 else ""


def links_of_json(text, url):
    for file in json.loads(text)["files"]:
        yield file["filename"], urljoin(url, file["url"]), file.get("hashes", {}).get("sha256", "")


def read_page(web, url):
    """(text, content type, final address); asks again where the connection breaks."""
    request = urllib.request.Request(url, headers={"Accept": "application/vnd.pypi.simple.v1+json, text/html;q=0.1"})
    for number in range(PAGE_TRIES):
        try:
            with web.open(request) as response:
                return response.read().decode("utf-8", "replace"), response.headers.get_content_type(), response.url
        except (OSError, http.client.HTTPException) as error:
            if download.is_final(error) or number == PAGE_TRIES - 1:
                raise Fault(str(error)) from error
            time.sleep(download.WAITS_S[number])


def links_at(web, place):
    """What a folder, a local page or a page of the network offers."""
    parts = urlsplit(place)
    if parts.scheme in ("http", "https"):
        text, kind, url = read_page(web, web.without_credentials(place))
        try:
            return list(links_of_json(text, url) if kind.endswith("json") else links_of_html(text, url))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Fault("the page is no package index (%s)" % error) from error
    path = os.path.abspath(os.path.expanduser(unquote(parts.path) if parts.scheme == "file" else place))
    if os.path.isdir(path):
        return [(name, os.path.join(path, name), "") for name in os.listdir(path)]
    if not os.path.isfile(path):
        raise Fault("there is no such file or folder")
    with open(path, encoding="utf-8", errors="replace") as file:
        return list(links_of_html(file.read(), "file://" + path))


def find_addresses(web, settings, name, file, sha256):
    """Addresses of the file, best first; and for messages, why each place without it has none."""
    project = re.sub(r"[-_.]+", "-", name).lower()
    places = settings.find_links + [index.rstrip("/") + "/" + project + "/" for index in settings.indexes]
    addresses, misses = [], []
    for place in places:
        visible = download.shown(web.without_credentials(place))
        try:
            found = [link for link in links_at(web, place) if link[0] == file]
        except Fault as fault:
            misses.append("%s: %s" % (visible, fault))
            continue
        fitting = [address for _, address, offered in found if offered in ("", sha256)]
        if not fitting:
            misses.append("%s: %s" % (visible, "its %s is another file: sha256 %s" % (file, found[0][2]) if found else "no such file"))
        addresses += [unquote(address[len("file://"):]) if address.startswith("file://") else address for address in fitting]
    return addresses, misses


def fetch(web, settings, name, file, sha256, folder):
    addresses, faults = find_addresses(web, settings, name, file, sha256)
    for address in addresses:
        try:
            return download.download(web.open, web.without_credentials(address), os.path.join(folder, file), sha256)
        except Fault as fault:
            faults.append(str(fault))
    raise Fault("cannot get %s\n  %s\n  Put the file into %s yourself, or set PIP_FIND_LINKS to a folder that has it, or PIP_INDEX_URL "
                "to an index that has it." % (file, "\n  ".join(faults), folder))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pip", metavar="PYTHON", default=sys.executable, help="the Python that has pip; left out: this one")
    for name in ("name", "file", "sha256", "folder"):
        parser.add_argument(name, metavar=name.upper())
    arguments = parser.parse_args()
    try:
        settings = Settings(arguments.pip)
        fetch(Web(settings), settings, arguments.name, arguments.file, arguments.sha256, arguments.folder)
    except Fault as fault:
        sys.exit("download: error: %s" % fault)
    except KeyboardInterrupt:
        print("\ndownload: stopped; what arrived is kept, and the next run goes on from there", flush=True)
        sys.exit(130)


if __name__ == "__main__":
    main()
