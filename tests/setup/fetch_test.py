#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/fetch_wheel.py: finds a file where pip would, continues what was interrupted, and never keeps wrong bytes. Needs no
network: the index is a server of this test."""
import contextlib
import hashlib
import io
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPTS = os.path.join(HERE, "..", "..", "scripts")
sys.path[:0] = [SCRIPTS, HERE]
import download
import fetch_wheel
from server import Server

NAME, FILE = "Some.Thing", "some_thing-1.0+local-py3-none-any.whl"
DATA = random.Random(1).randbytes(3_000_001)
SUM = hashlib.sha256(DATA).hexdigest()
# Answers what fetch_wheel.py asks pip, in pip's words: the settings are the test's own, not the machine's.
PIP = """import os, sys
if sys.argv[1:] == ["config", "list"]:
    print(os.environ["TEST_PIP_CONFIG"])
else:
    print("  -i, --index-url <url>       Base URL of the Python Package Index (default %s). This should" % os.environ["TEST_PIP_DEFAULT"])
"""


class Fetch(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.server = self.enterContext(Server({FILE: DATA, "other-1.0.whl": b"other"}))
        os.makedirs(os.path.join(self.folder, "pip"))
        for name, text in (("__init__.py", ""), ("__main__.py", PIP)):
            with open(os.path.join(self.folder, "pip", name), "w", encoding="ascii") as file:
                file.write(text)
        self.path = os.path.join(self.folder, FILE)
        self.part = self.path + ".part"

    def start(self, config="", sha256=SUM, default=None, **env):
        env = {**{key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy") and not key.startswith("PIP_")},
               "PYTHONPATH": self.folder, "TEST_PIP_CONFIG": config, "NETRC": os.devnull,
               "TEST_PIP_DEFAULT": default or self.server.address + "/simple", **env}
        return subprocess.Popen([sys.executable, os.path.join(SCRIPTS, "fetch_wheel.py"), NAME, FILE, sha256, self.folder], env=env,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)

    def fetch(self, *arguments, code=0, says=(), **options):
        process = self.start(*arguments, **options)
        try:
            out = process.communicate(timeout=60)[0]
        finally:
            process.kill()
        self.assertEqual(process.returncode, code, out)
        for text in says:
            self.assertIn(text, out)
        self.assertNotIn("Traceback", out)
        return out

    def assert_fetched(self):
        with open(self.path, "rb") as file:
            self.assertEqual(file.read(), DATA)
        self.assertFalse(os.path.exists(self.part))

    def assert_nothing(self):
        self.assertFalse(os.path.exists(self.path))
        self.assertFalse(os.path.exists(self.part))

    def leave(self, data):
        """What an earlier run left."""
        with open(self.part, "wb") as file:
            file.write(data)

    def config_of(self, **values):
        return "\n".join("global.%s=%r" % (name.replace("_", "-"), value) for name, value in values.items())

    # --- continuing ---

    def test_whole(self):
        self.fetch(says=["2.9 MiB"])
        self.assert_fetched()
        self.assertEqual(self.server.ranges(), [None])

    def test_connection_that_breaks_goes_on(self):
        self.server.cut_after, self.server.cuts = 1_000_000, 2
        self.fetch(says=["interrupted at 1.0 MiB (the connection ended early)", "interrupted at 1.9 MiB"])
        self.assert_fetched()
        self.assertEqual(self.server.ranges(), [None, 1_000_000, 2_000_000])
        self.assertEqual(self.server.body_bytes, len(DATA))  # no byte twice

    def interrupted(self, number):
        self.server.stall_after = 1_500_000
        process = self.start()
        deadline = time.monotonic() + 60
        while download.size_of(self.part) < 1_500_000:
            self.assertLess(time.monotonic(), deadline)
            self.assertIsNone(process.poll())
            time.sleep(0.01)
        process.send_signal(number)
        out = process.communicate(timeout=60)[0]
        self.server.stall_after = 0
        return process.returncode, out

    def test_killed_process_is_continued(self):
        self.assertEqual(self.interrupted(signal.SIGKILL)[0], -signal.SIGKILL)
        self.fetch(says=["going on behind the 1.4 MiB"])
        self.assert_fetched()
        self.assertEqual(self.server.ranges(), [None, 1_500_000])

    def test_interrupt_is_continued(self):
        code, out = self.interrupted(signal.SIGINT)
        self.assertEqual(code, 130, out)
        self.assertIn("the next run goes on from there", out)
        self.assertNotIn("Traceback", out)
        self.fetch()
        self.assert_fetched()
        self.assertEqual(self.server.ranges(), [None, 1_500_000])

    def test_whole_part(self):
        self.leave(DATA)
        self.fetch()
        self.assert_fetched()
        self.assertEqual(self.server.body_bytes, 0)

    def test_part_that_does_not_fit_is_dropped_once(self):
        self.leave(b"x" * 1_000_000)
        self.fetch(says=["does not fit; fetching the whole file"])
        self.assert_fetched()
        self.assertEqual(self.server.ranges(), [1_000_000, None])

    def test_part_longer_than_the_file(self):
        self.leave(DATA + b"more")
        self.fetch()
        self.assert_fetched()

    def test_server_without_ranges(self):
        self.server.has_ranges = False
        self.leave(DATA[:1_000_000])
        self.fetch()
        self.assert_fetched()
        self.assertEqual(self.server.body_bytes, len(DATA))

    def test_server_without_ranges_that_breaks(self):
        self.server.has_ranges = False
        self.server.cut_after, self.server.cuts = 1_000_000, 1
        self.fetch()
        self.assert_fetched()

    def test_server_without_lengths(self):
        self.server.has_length = False
        self.fetch()
        self.assert_fetched()

    def test_busy_server_is_asked_again(self):
        self.server.page_refusals, self.server.refusals = [503], [429, 500]
        self.fetch(says=["429", "500"])
        self.assert_fetched()

    def test_gives_up_and_keeps_what_arrived(self):
        class Broken:
            requests = 0

            def open(self, request):
                self.requests += 1
                raise ConnectionResetError("reset")
        self.leave(DATA[:1000])
        broken, waits = Broken(), []
        with contextlib.redirect_stdout(io.StringIO()), unittest.mock.patch.object(download.time, "sleep", waits.append), \
                self.assertRaisesRegex(download.Fault, "http://nowhere.invalid/a: reset; given up after 8 tries"):
            download.download(broken.open, "http://nowhere.invalid/a?secret", self.path, SUM)
        self.assertEqual(broken.requests, 9)  # the first found bytes that were new to it
        self.assertEqual(waits[-1], 30)
        self.assertEqual(download.size_of(self.part), 1000)

    def test_progress_in_lines(self):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), unittest.mock.patch.object(download.time, "monotonic", iter([0.0, 4.0, 12.0]).__next__):
            progress = download.Progress(100 << 20, 500 << 20)
            progress.update(120 << 20)
            progress.update(160 << 20)
            progress.clear()
        self.assertEqual(out.getvalue(), "download: 160.0 of 500.0 MiB (32 %), 5.0 MiB/s, 1:08 min left\n")

    # --- wrong bytes ---

    def test_wrong_checksum(self):
        self.server.page_kind = "html without sums"
        wrong = hashlib.sha256(b"").hexdigest()
        self.fetch(sha256=wrong, code=1, says=[SUM, wrong, "It was deleted", "PIP_FIND_LINKS"])
        self.assert_nothing()
        self.assertEqual(self.server.ranges(), [None])

    def test_wrong_checksum_and_an_old_part(self):
        self.server.page_kind = "html without sums"
        self.leave(DATA[:1000])
        self.fetch(sha256=hashlib.sha256(b"").hexdigest(), code=1, says=["It was deleted"])
        self.assert_nothing()
        self.assertEqual(self.server.ranges(), [1000, None])  # once more, not for ever

    def test_index_with_another_file_of_that_name(self):
        self.server.listed_sum = "0" * 64
        self.fetch(code=1, says=["is another file: sha256 " + "0" * 64])
        self.assertEqual(self.server.ranges(), [])

    # --- where files are ---

    def test_page_of_html(self):
        self.server.page_kind = "html"
        self.fetch()
        self.assert_fetched()

    def test_folder_of_wheels(self):
        wheels = os.path.join(self.folder, "my wheels")
        os.makedirs(wheels)
        with open(os.path.join(wheels, FILE), "wb") as file:
            file.write(DATA)
        # pip splits the setting at blanks, so the path is given as an address.
        self.fetch(self.config_of(find_links="file://" + wheels.replace(" ", "%20")))
        self.assert_fetched()
        self.assertEqual(self.server.requests and self.server.ranges(), [])

    def test_folder_by_path_without_index(self):
        wheels = os.path.join(self.folder, "wheels")
        os.makedirs(wheels)
        with open(os.path.join(wheels, FILE), "wb") as file:
            file.write(DATA)
        self.fetch(self.config_of(find_links=wheels, no_index="true"))
        self.assert_fetched()
        self.assertEqual(self.server.requests, [])

    def test_wrong_file_in_a_folder_is_passed_over(self):
        wheels = os.path.join(self.folder, "wheels")
        os.makedirs(wheels)
        with open(os.path.join(wheels, FILE), "wb") as file:
            file.write(b"another")
        self.fetch(self.config_of(find_links=wheels))
        self.assert_fetched()

    def test_local_page(self):
        page = os.path.join(self.folder, "links.html")
        with open(page, "w", encoding="ascii") as file:
            file.write('<a href="%s/files/%s#sha256=%s">it</a>' % (self.server.address, FILE, SUM))
        self.fetch("global.find-links=%r\n:env:.no-index='1'" % page)
        self.assert_fetched()

    def test_missing_folder_and_extra_index(self):
        self.fetch(self.config_of(find_links="/nowhere/at/all", index_url=self.server.address + "/empty",
                                  extra_index_url="\n" + self.server.address + "/simple/"))
        self.assert_fetched()

    def test_environment_wins_over_files(self):
        self.fetch("global.index-url='http://nowhere.invalid'\n:env:.index-url='%s/simple'" % self.server.address)
        self.assert_fetched()

    def test_nowhere(self):
        out = self.fetch(self.config_of(index_url="http://me:secret@127.0.0.1:%d/empty" % self.server.port), code=1,
                         says=[FILE, "404", "/empty/some-thing/", "PIP_INDEX_URL", self.folder])
        self.assertNotIn("secret", out)

    def test_page_that_is_no_index(self):
        self.server.page_kind = "nonsense"
        self.fetch(code=1, says=["the page is no package index"])

    def test_pip_is_not_there(self):
        os.remove(os.path.join(self.folder, "pip", "__main__.py"))
        self.fetch(code=1, says=["-m pip config list failed"])

    # --- how to get there ---

    def test_credentials(self):
        self.server.login = "me:se:cret"
        self.fetch(code=1, says=["401"])
        out = self.fetch(self.config_of(index_url="http://me:se%%3Acret@127.0.0.1:%d/simple" % self.server.port))
        self.assert_fetched()
        self.assertNotIn("cret", out)

    def test_credentials_of_netrc(self):
        self.server.login = "me:secret"
        netrc = os.path.join(self.folder, "netrc")
        with open(netrc, "w", encoding="ascii") as file:
            file.write("machine 127.0.0.1 login me password secret\n")
        self.fetch(NETRC=netrc)
        self.assert_fetched()

    def test_credentials_stay_with_their_host(self):
        self.server.login = "me:secret"
        with Server({FILE: DATA}) as other:
            self.server.redirect = other.address
            self.fetch(self.config_of(index_url="http://me:secret@127.0.0.1:%d/simple" % self.server.port))
            self.assertNotIn("Authorization", other.file_requests()[0])
        self.assert_fetched()

    def test_continues_behind_a_redirect(self):
        with Server({FILE: DATA}) as other:
            self.server.redirect = other.address
            self.leave(DATA[:1000])
            self.fetch()
            self.assertEqual(other.ranges(), [1000])
        self.assert_fetched()

    def test_proxy_of_the_environment(self):
        self.fetch(default="http://index.invalid/simple", http_proxy=self.server.address)
        self.assert_fetched()

    def test_proxy_of_pip(self):
        self.fetch(self.config_of(proxy=self.server.address), default="http://index.invalid/simple")
        self.assert_fetched()

    @unittest.skipUnless(subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0,
                         "this Python has no pip")
    def test_pip_itself(self):
        """The real pip says what the test's stand-in says."""
        shutil.rmtree(os.path.join(self.folder, "pip"))
        real = {"PIP_CONFIG_FILE": os.devnull, "HOME": self.folder}
        self.fetch(PIP_INDEX_URL=self.server.address + "/simple", **real)
        self.assert_fetched()
        environment = {**os.environ, **real}
        environment.pop("PIP_INDEX_URL", None)
        with unittest.mock.patch.dict(os.environ, environment, clear=True):
            settings = fetch_wheel.Settings(sys.executable)
        self.assertRegex(settings.indexes[0], r"^https://[a-z.]+/simple/?$")


if __name__ == "__main__":
    unittest.main()
