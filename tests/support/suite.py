# SPDX-License-Identifier: Apache-2.0
"""A list of tests that are functions, run two at a time; ends with `N passed, N failed`.

    tests = Suite()

    @tests.add
    def one_thing(): ...

    tests.add_named("cases/x", function, argument)
    sys.exit(tests.run(filters))
"""
import concurrent.futures
import os
import time
import traceback

import product


class Suite:
    def __init__(self, at_once=2):
        self._tests = []
        self._at_once = at_once

    def add(self, function):
        self._tests.append((function.__name__, function, ()))
        return function

    def add_named(self, name, function, *arguments):
        self._tests.append((name, function, arguments))

    def names(self):
        return [name for name, _, _ in self._tests]

    @staticmethod
    def _run_one(test):
        name, function, arguments = test
        start = time.monotonic()
        try:
            function(*arguments)
            return name, None, time.monotonic() - start
        except product.Failure as failure:
            return name, str(failure), time.monotonic() - start
        except Exception:  # a mistake in the test itself, or a file that is not there
            return name, traceback.format_exc(), time.monotonic() - start

    def run(self, filters=()):
        """Runs the tests whose names hold one of `filters` (none: all); returns the exit code."""
        chosen = [test for test in self._tests if not filters or any(text in test[0] for text in filters)]
        failed = 0
        with concurrent.futures.ThreadPoolExecutor(self._at_once) as pool:
            for name, fault, seconds in pool.map(self._run_one, chosen):
                if fault:
                    failed += 1
                    print("FAILED %s\n  %s" % (name, fault.strip().replace("\n", "\n  ")), flush=True)
                elif os.environ.get("EXPERTMESH_TEST_VERBOSE"):
                    print("ok     %s  %.1f s" % (name, seconds), flush=True)
        print("%d passed, %d failed" % (len(chosen) - failed, failed))
        return 1 if failed or not chosen else 0
