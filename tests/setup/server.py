# SPDX-License-Identifier: Apache-2.0
"""A package index on this machine that behaves as badly as a test asks. Serves /simple/NAME/ and /files/FILE, with ranges.

    with Server({"a.whl": data}) as server:
        server.cut_after = 1000         # bytes of a body, then the connection breaks; 0: never
        ...
        server.requests                 # (path, headers) in order
"""
import base64
import hashlib
import http.server
import json
import threading
import urllib.parse


class Server:
    def __init__(self, files):
        self.files = files
        self.cut_after = 0
        self.cuts = 1 << 30        # how often
        self.stall_after = 0       # bytes of a body, then nothing comes and nothing ends
        self.has_ranges = True
        self.has_length = True
        self.refusals = []         # status codes of the next answers for files
        self.page_refusals = []    # and for pages
        self.page_kind = "json"    # or "html", "html without sums", "nonsense"
        self.listed_sum = None     # what the page says instead of the right one
        self.login = None          # "user:password" that every request needs
        self.redirect = None       # where files are: an address
        self.requests = []
        self.body_bytes = 0        # of files, all answers together
        self.release = threading.Event()

    def __enter__(self):
        owner = self

        class Handler(OneRequest):
            server_state = owner
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.address = "http://127.0.0.1:%d" % self.port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.release.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def file_requests(self):
        return [headers for path, headers in self.requests if path.startswith("/files/")]

    def ranges(self):
        """First bytes asked for, None without a range, of every request for a file."""
        return [int(headers["Range"][len("bytes="):-1]) if "Range" in headers else None for headers in self.file_requests()]


class OneRequest(http.server.BaseHTTPRequestHandler):
    server_state = None

    def log_message(self, *_):
        pass

    def do_GET(self):
        state = self.server_state
        path = self.path.partition("//")[2].partition("/")[2].join(("/", "")) if self.path.startswith("http") else self.path
        path = urllib.parse.unquote(path)
        state.requests.append((path, dict(self.headers)))
        is_file = path.startswith("/files/")
        refusals = state.refusals if is_file else state.page_refusals
        token = "Basic " + base64.b64encode((state.login or "").encode()).decode()
        if state.login and self.headers.get("Authorization") != token:
            self.send_error(401)
        elif refusals:
            self.send_error(refusals.pop(0))
        elif is_file and state.redirect:
            self.send_response(302)
            self.send_header("Location", state.redirect + path)
            self.end_headers()
        elif is_file and path[len("/files/"):] in state.files:
            self.send_file(state.files[path[len("/files/"):]])
        elif path.startswith("/simple/some-thing/"):
            self.send_page()
        else:
            self.send_error(404)

    def send_page(self):
        state = self.server_state
        sums = {name: state.listed_sum or hashlib.sha256(data).hexdigest() for name, data in state.files.items()}
        if state.page_kind == "json":
            kind = "application/vnd.pypi.simple.v1+json"
            page = json.dumps({"files": [{"filename": name, "url": "../../files/" + name, "hashes": {"sha256": value}}
                                         for name, value in sums.items()]})
        elif state.page_kind == "nonsense":
            kind, page = "application/json", "[1"
        else:
            kind = "text/html"
            mark = "" if state.page_kind == "html without sums" else "#sha256="
            page = "<html><body>%s</body></html>" % "".join(
                '<a href="/files/%s%s">%s</a>' % (name.replace("+", "%2B"), mark and mark + value, name) for name, value in sums.items())
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(page.encode())

    def send_file(self, data):
        state = self.server_state
        first = int(self.headers["Range"][len("bytes="):-1]) if state.has_ranges and "Range" in self.headers else None
        if first is not None and first >= len(data):
            self.send_response(416)
            self.send_header("Content-Range", "bytes */%d" % len(data))
            self.end_headers()
            return
        body = data[first or 0:]
        self.send_response(200 if first is None else 206)
        if first is not None:
            self.send_header("Content-Range", "bytes %d-%d/%d" % (first, len(data) - 1, len(data)))
        if state.has_length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        limit = state.stall_after
        if state.cut_after and state.cuts > 0 and state.cut_after < len(body):
            state.cuts -= 1
            limit = state.cut_after
        body = body[:limit] if limit else body
        state.body_bytes += len(body)
        self.wfile.write(body)
        if state.stall_after:
            self.wfile.flush()
            state.release.wait(60)
        self.close_connection = True
