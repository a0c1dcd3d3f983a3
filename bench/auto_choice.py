#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `ep_dispatcher: auto` takes on six meshes, and how far it is from the best dispatcher there.

    bench/auto_choice.py build/release/expertmesh [--rounds 9] [arguments of `expertmesh bench moe`, such as --tokens 2048]
"""
import json
import os
import socket
import subprocess
import sys
import tempfile

MESHES = [  # name, ranks, ep_size, whether ranks are processes
    ("ep 2", 2, 2, False),
    ("ep 4", 4, 4, False),
    ("ep 2 x efsdp 2", 4, 2, False),
    ("ep 8", 8, 8, False),
    ("ep 4 x efsdp 2", 8, 4, False),
    ("ep 2, processes", 2, 2, True),
]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_processes(command, ranks):
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    running = [subprocess.Popen(command, env={**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=subprocess.DEVNULL)
               for rank in range(ranks)]
    if any([process.wait() for process in running]):
        sys.exit("%s failed" % " ".join(command))


def measure(program, ranks, ep_size, are_processes, arguments):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "times.json")
        command = [program, "bench", "moe", "--workload", "balanced", "--dispatcher", "all,auto", "--ep-size", str(ep_size), "--json", path]
        if are_processes:
            run_processes(command + arguments, ranks)
        else:
            subprocess.run(command + arguments + ["--ranks", str(ranks)], check=True, stdout=subprocess.DEVNULL)
        with open(path) as file:
            return json.load(file)["runs"][0]


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    arguments = sys.argv[2:]
    if "--rounds" not in arguments:
        arguments += ["--rounds", "9"]
    names = None
    for mesh, ranks, ep_size, are_processes in MESHES:
        run = measure(sys.argv[1], ranks, ep_size, are_processes, arguments)
        rows = run["dispatchers"]
        if names is None:
            names = [row["dispatcher"] for row in rows]
            print("| mesh | %s | auto takes | to the best |" % " | ".join(names))
            print("|---|%s---|---|" % ("---|" * len(names)))
        times = ["%.1f ms" % rows[0]["milliseconds"]] + ["%.2f" % row["to_eager"] for row in rows[1:]]
        print("| %s | %s | %s | %.3f |" % (mesh, " | ".join(times), run["auto"], run["auto_to_best"]), flush=True)


if __name__ == "__main__":
    main()
