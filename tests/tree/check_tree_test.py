#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/check_tree.py finds each kind of fault in a small bad tree, and none in a good one."""
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts"))
import check_tree

SPDX = "// SPDX-License-Identifier: Apache-2.0\n"
BUILD = """# SPDX-License-Identifier: Apache-2.0
expertmesh_room(base DEPS fmt::fmt)
expertmesh_room(comm DEPS expertmesh_base)
expertmesh_room(comm/c10d TORCH DEPS expertmesh_comm)
expertmesh_room(model TORCH DEPS expertmesh_comm)
"""


class CheckTree(unittest.TestCase):
    def faults(self, files):
        with tempfile.TemporaryDirectory() as root:
            for path, text in {"CMakeLists.txt": BUILD, **files}.items():
                os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text)
            return list(check_tree.check_tree(root))

    def assert_fault(self, path, text, *words):
        faults = self.faults({path: text})
        self.assertEqual(len(faults), 1, faults)
        for word in (path, *words):
            self.assertIn(word, faults[0])

    def test_good_tree(self):
        header = SPDX + "#pragma once\n#include <vector>\n"
        self.assertEqual(self.faults({"src/base/a.h": header,
                                      "src/comm/b.h": header + '#include "base/a.h"\n',
                                      "src/comm/b.cc": SPDX + '#include "comm/b.h"\n#include <nlohmann/json.hpp>\n',
                                      "src/model/c.h": header + '#include <ATen/core/Tensor.h>\n#include "base/a.h"\n',
                                      "data/rows.jsonl": "{}\n"}), [])

    def test_include_of_a_later_room(self):
        self.assert_fault("src/base/a.cc", SPDX + '#include "comm/b.h"\n', "a.cc:2", "may include from base, not from comm")

    def test_include_of_a_room_that_was_not_named(self):
        self.assert_fault("src/model/a.cc", SPDX + '#include "comm/c10d/b.h"\n', "not from comm/c10d")

    def test_include_outside_the_rooms(self):
        self.assert_fault("src/base/a.cc", SPDX + '#include "b.h"\n', "in no room")

    def test_torch_in_a_room_without(self):
        self.assert_fault("src/comm/a.cc", SPDX + "#include <ATen/core/Tensor.h>\n", "free of torch")

    def test_heavy_header_anywhere(self):
        self.assert_fault("src/model/a.cc", SPDX + "#include <torch/torch.h>\n", "torch/torch.h")
        self.assert_fault("tests/dist/a.cc", SPDX + "#include <ATen/ATen.h>\n", "ATen/ATen.h")

    def test_heavy_header_in_a_header(self):
        for header in ("nlohmann/json.hpp", "torch/csrc/autograd/custom_function.h", "torch/csrc/distributed/c10d/Store.hpp"):
            self.assert_fault("src/model/a.h", SPDX + "#pragma once\n#include <%s>\n" % header, header, ".cc files only")

    def test_licence_line(self):
        self.assert_fault("src/base/a.cc", "int a;\n", "SPDX")
        self.assert_fault("docs/a.md", "# A\n", "SPDX")

    def test_not_ascii(self):
        self.assert_fault("src/base/a.cc", SPDX + "// \u2192\n", "a.cc:2", "ASCII")

    def test_pragma_once(self):
        self.assert_fault("src/base/a.h", SPDX, "#pragma once")

    def test_document_names_a_missing_file(self):
        spdx = "<!-- SPDX-License-Identifier: Apache-2.0 -->\n"
        self.assert_fault("README.md", spdx + "Read `src/base/gone.h` and `src/model/foo/foo.h`.\n", "src/base/gone.h")

    def test_unfinished(self):
        self.assert_fault("src/base/a.cc", SPDX + "// TO" + "DO: more\n", "unfinished")


if __name__ == "__main__":
    unittest.main()
