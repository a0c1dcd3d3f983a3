# SPDX-License-Identifier: Apache-2.0
"""The built program as its users start it, for tests in Python: runs with a deadline, what they printed, what they cost.

    import product
    expertmesh = product.Program(path, folder)
    run = expertmesh(["sft", "config.yaml"], ranks=2)
    run.expect_code(0)

Every run is checked for signs of a crash and for words of libraries. Standard library only.
"""
import os
import re
import signal
import socket
import subprocess
import tempfile
import time

# What a user must never read: names of C++, of libraries, of source files; stack traces.
RAW_TEXT = re.compile(r"\bstd::|terminate called|what\(\):|\bbad_alloc|\bc10::|\bat::|\bc10d::|gloo::|yaml-cpp|YAML::|json\.exception|"
                      r"nlohmann|Exception raised from|_ZN\d|\.cc:\d+|\.cpp:\d+|Segmentation fault|core dumped|AddressSanitizer|"
                      r"ThreadSanitizer|runtime error:")
CRASH_CODES = (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL)

OK, USAGE, CONFIG, DATA, MODEL, CHECKPOINT, SETUP, PEER, TIMEOUT, NUMERICS, PREEMPTED, RESOURCES, INTERNAL = (
    0, 2, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 70)


class Failure(Exception):
    """What a test expected and did not get."""


def slowness():
    """Limits on wall time are stretched by this: by the load that the machine shows, and at least threefold, since one that
    others share stalls for seconds without a sign. A limit is there to find what hangs, not what is slow."""
    return max(3.0, 1.5 * os.getloadavg()[0] / (os.cpu_count() or 1))


class Run:
    """A finished run."""

    def __init__(self, arguments, code, out, err, seconds, cpu_seconds, rss_mib):
        self.arguments, self.code, self.out, self.err = arguments, code, out, err
        self.seconds, self.cpu_seconds, self.rss_mib = seconds, cpu_seconds, rss_mib

    def __str__(self):
        return "%s\nexit %s after %.1f s\n%s%s" % (" ".join(self.arguments), self.code, self.seconds, self.out[-3000:],
                                                   self.err[-3000:])

    def fail(self, why):
        raise Failure("%s\n  %s" % (why, str(self).strip().replace("\n", "\n  ")))

    def check_clean(self):
        if self.code in CRASH_CODES:
            self.fail("the program crashed")
        raw = RAW_TEXT.search(self.out + self.err)
        if raw:
            self.fail("raw text of a library reached the user: %r" % raw[0])
        return self

    def expect_code(self, *codes):
        if self.code not in codes:
            self.fail("exit code %s instead of %s" % (self.code, " or ".join(map(str, codes))))
        return self

    def expect(self, *texts):
        """Every text stands in stderr or stdout, without regard to letter case."""
        printed = (self.err + self.out).lower()
        for text in texts:
            if text.lower() not in printed:
                self.fail("%r is not said" % text)
        return self

    def expect_not(self, *texts):
        printed = (self.err + self.out).lower()
        for text in texts:
            if text.lower() in printed:
                self.fail("%r is said" % text)
        return self

    def expect_within(self, seconds):
        if self.seconds > seconds * slowness():
            self.fail("took %.1f s, not %.1f" % (self.seconds, seconds))
        return self


class Started:
    """A run that goes on. Output is kept in files, so that a full pipe never stops it."""

    def __init__(self, arguments, cwd, env, stdout=None, typed=""):
        self.arguments = arguments
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        with tempfile.TemporaryFile() as stdin:
            stdin.write(typed.encode("utf-8"))
            stdin.seek(0)
            self.start = time.monotonic()
            self.process = subprocess.Popen(arguments, cwd=cwd, env=env, stdin=stdin,
                                            stdout=stdout if stdout is not None else self._out, stderr=self._err)

    @property
    def pid(self):
        return self.process.pid

    def seconds(self):
        return time.monotonic() - self.start

    def send(self, number):
        os.kill(self.pid, number)

    def _text(self, file):
        # A position of its own: the child shares the file's.
        return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode("utf-8", "replace")

    def printed(self):
        return self._text(self._out) + self._text(self._err)

    def wait_for(self, condition, seconds=30, what="it"):
        """Until `condition()` holds; fails where the run ends or time is over first."""
        deadline = time.monotonic() + seconds * slowness()
        while not condition():
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None and not condition():
                self.finish().fail("%s did not happen before the end" % what)
            if time.monotonic() > deadline:
                self.process.kill()
                self.finish().fail("%s did not happen in %d s" % (what, seconds))
            time.sleep(0.01)

    def finish(self, limit=60):
        """Waits for the end; after `limit` seconds (more on a busy machine) the process is killed and the test fails."""
        deadline = time.monotonic() + limit * slowness()
        is_hung = False
        while True:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                break
            if not is_hung and time.monotonic() > deadline:
                is_hung = True
                self.process.kill()
            time.sleep(0.005)
        code = os.waitstatus_to_exitcode(status)
        self.process.returncode = code  # so that Popen does not wait for it again
        run = Run(self.arguments, code, self._text(self._out), self._text(self._err), time.monotonic() - self.start,
                  usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)
        self._out.close()
        self._err.close()
        if is_hung:
            run.fail("did not end in %d s" % limit)
        return run.check_clean()


# Variables of launchers and of this project that must not leak in from whoever runs the tests.
FOREIGN = re.compile(r"^(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT|GROUP_.*|TORCHELASTIC_.*|SLURM_.*|OMPI_.*|"
                     r"PMI_.*|PMIX_.*|EXPERTMESH_.*|OMP_.*)$")


class Program:
    """The program with a folder to work in and a token cache of its own."""

    def __init__(self, path, folder):
        self.path = os.path.abspath(path)
        self.folder = folder
        self.base_env = {key: value for key, value in os.environ.items() if not FOREIGN.match(key)}
        self.base_env["EXPERTMESH_CACHE"] = os.path.join(folder, "cache")

    def start(self, arguments, ranks=None, env=None, cwd=None, stdout=None, typed=""):
        """`typed` is what the program reads from stdin."""
        arguments = [str(a) for a in arguments]
        if ranks is not None:
            arguments += ["--ranks", str(ranks)]
        return Started([self.path] + arguments, cwd or self.folder, {**self.base_env, **(env or {})}, stdout, typed)

    def __call__(self, arguments, ranks=None, env=None, cwd=None, stdout=None, limit=60, typed=""):
        return self.start(arguments, ranks, env, cwd, stdout, typed).finish(limit)

    def start_processes(self, arguments, size, port=None, env=None, env_of_rank=None, arguments_of_rank=None):
        """One process a rank, with the variables that torchrun sets."""
        port = port or free_port()
        processes = []
        for rank in range(size):
            variables = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size,
                         "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **(env or {})}
            if env_of_rank:
                variables = env_of_rank(rank, variables)
            extra = arguments_of_rank(rank) if arguments_of_rank else []
            processes.append(self.start(list(arguments) + extra,
                                        env={key: str(value) for key, value in variables.items()}))
        return processes


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def finish_all(processes, limit=60):
    """Waits for all; every one is waited for even where one fails."""
    runs, failures = [], []
    for process in processes:
        try:
            runs.append(process.finish(limit))
        except Failure as failure:
            failures.append(str(failure))
    if failures:
        raise Failure("\n".join(failures))
    return runs
